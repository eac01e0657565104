#include "hooks.h"

#include <exception>
#include <string>
#include <utility>

#include "base/log.h"

namespace closeranks::torch_binding {

void CompletionHooks::add(std::int64_t id, c10d::CompletionHook hook) {
  const std::lock_guard lock(changing_);
  Table table = *table_.load();
  table.insert_or_assign(id, std::move(hook));
  table_.store(std::make_shared<const Table>(std::move(table)));
}

void CompletionHooks::remove(std::int64_t id) {
  const std::lock_guard lock(changing_);
  Table table = *table_.load();
  table.erase(id);
  table_.store(std::make_shared<const Table>(std::move(table)));
}

void CompletionHooks::completed(std::uint64_t completion_key) {
  const std::shared_ptr<const Table> table = table_.load();
  for (const auto& [id, hook] : *table) {
    try {
      hook({completion_key, std::nullopt});
    } catch (const std::exception& error) {
      // A hook is a guest: what it throws must not become the op's error.
      log::warning(std::string("a completion hook failed: ") + error.what());
    }
  }
}

}  // namespace closeranks::torch_binding
