#include "base/priority.h"

#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace closeranks {
namespace {

constexpr int nice_when_not_real_time = -10;

bool make_real_time(pid_t thread) {
  sched_param lowest{};
  lowest.sched_priority = ::sched_get_priority_min(SCHED_FIFO);
  return ::sched_setscheduler(thread, SCHED_FIFO | SCHED_RESET_ON_FORK, &lowest) == 0;
}

}  // namespace

void raise_own_priority() {
  if (make_real_time(0)) return;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), nice_when_not_real_time);
}

void hasten_death(pid_t pid, bool ahead) {
  DIR* threads = ::opendir(("/proc/" + std::to_string(pid) + "/task").c_str());
  if (threads == nullptr) return;
  while (const dirent* entry = ::readdir(threads)) {
    const pid_t thread = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (thread <= 0) continue;
    const sched_param ordinary{};
    if (ahead) {
      make_real_time(thread);
    } else {
      ::sched_setscheduler(thread, SCHED_OTHER, &ordinary);
    }
  }
  ::closedir(threads);
}

}  // namespace closeranks
