// Fuzz target: a command line of `closeranks run`, arguments separated by newlines. It may be refused, never crash.
#include "agent/command_line.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/assert.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> arguments(1);
  for (std::size_t at = 0; at < size; ++at) {
    if (data[at] == '\n') {
      arguments.emplace_back();
    } else if (data[at] != 0) {
      arguments.back().push_back(static_cast<char>(data[at]));
    }
  }
  const auto parsed = closeranks::agent::parse_run(arguments);
  CR_ASSERT(parsed.ok() || !parsed.status().message().empty());
  if (parsed.ok() && parsed.value().help.empty()) CR_ASSERT(!parsed.value().options.script.empty());
  return 0;
}
