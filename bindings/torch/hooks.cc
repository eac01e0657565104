#include "hooks.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace closeranks::torch_binding {
namespace {

template <class Hook>
std::vector<Hook> copy_of(const std::map<std::int64_t, Hook>& hooks) {
  std::vector<Hook> copies;
  copies.reserve(hooks.size());
  for (const auto& [id, hook] : hooks) {
    copies.push_back(hook);
  }
  return copies;
}

// A hook is a guest: what it throws must not become the op's error.
template <class Hook, class... Arguments>
void run(const std::vector<Hook>& hooks, const char* kind, const Arguments&... arguments) {
  for (const Hook& hook : hooks) {
    try {
      hook(arguments...);
    } catch (const std::exception& error) {
      log::warning(std::string(kind) + " hook failed: " + error.what());
    }
  }
}

}  // namespace

HookTable::~HookTable() { join(); }

void HookTable::add_completion(std::int64_t id, c10d::CompletionHook hook) {
  const std::lock_guard lock(mutex_);
  completion_.insert_or_assign(id, std::move(hook));
  has_completion_.store(true, std::memory_order_relaxed);
}

void HookTable::remove_completion(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  completion_.erase(id);
  has_completion_.store(!completion_.empty(), std::memory_order_relaxed);
}

void HookTable::add_abort(std::int64_t id, c10d::AbortHook hook) {
  const std::lock_guard lock(mutex_);
  abort_.insert_or_assign(id, std::move(hook));
}

void HookTable::remove_abort(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  abort_.erase(id);
}

void HookTable::completed(std::uint64_t completion_key) {
  if (!has_completion_.load(std::memory_order_relaxed)) {
    return;
  }
  std::unique_lock lock(mutex_);
  const auto hooks = copy_of(completion_);
  lock.unlock();
  run(hooks, "completion", c10d::CompletionHookArgs{completion_key, std::nullopt});
}

void HookTable::failed(Fault fault) {
  if (fault == Fault::none || fault == Fault::closed || fault == Fault::invalid_argument ||
      fault == Fault::unsupported) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (aborted_ || abort_.empty()) {
    return;
  }
  aborted_ = true;
  aborting_ = std::thread([hooks = copy_of(abort_)] { run(hooks, "abort"); });
}

void HookTable::join() {
  std::unique_lock lock(mutex_);
  std::thread aborting = std::exchange(aborting_, {});
  lock.unlock();
  if (!aborting.joinable()) {
    return;
  }
  if (aborting.get_id() == std::this_thread::get_id()) {
    aborting.detach();  // a hook dropped the last reference to its own group
    return;
  }
  aborting.join();
}

}  // namespace closeranks::torch_binding
