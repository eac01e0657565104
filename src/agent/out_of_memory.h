// Whether the kernel killed a worker for want of memory: by the kernel's own count, which grows by one with each such
// kill in a control group (or, where there is none to ask, on the machine). Not thread-safe.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace closeranks::agent {

// The file with the count of the control group that `pid` is in, as it is now; /proc/vmstat without one.
std::string out_of_memory_file(pid_t pid);
// The count in it; nullopt: it does not say.
std::optional<std::uint64_t> out_of_memory_kills(const std::string& file);

// Of one worker: its count from the time before its death. An older kill in its group (a data loader's, say) counts for
// nothing.
class OutOfMemoryWatch {
 public:
  using Clock = std::chrono::steady_clock;
  // To be called again and again while it lives.
  void look(pid_t pid, Clock::time_point now);
  // It has died by SIGKILL. The kernel's count if that has grown shortly before; nullopt: it was another's SIGKILL.
  [[nodiscard]] std::optional<std::uint64_t> killed() const;

 private:
  std::string file_;
  std::uint64_t before_ = 0;  // the count that has stood for a while
  std::uint64_t last_ = 0;
  Clock::time_point since_;  // of `last_`
};

}  // namespace closeranks::agent
