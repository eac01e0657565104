#include "child_process.h"

#include <algorithm>
#include <filesystem>

#if defined(__SANITIZE_THREAD__)
// Children of these tests start threads of their own, whatever the parent had running when it forked.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

namespace closeranks::transport {

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  // Without the iterator's own.
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries))) - 1;
}

}  // namespace closeranks::transport
