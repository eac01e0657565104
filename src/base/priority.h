// Running ahead of training that keeps every core busy. Each of these does nothing, silently, where the system does not
// permit it (no CAP_SYS_NICE): then a death is noticed later, and nothing else changes.
#pragma once

#include <sys/types.h>

namespace closeranks {

// The calling thread runs before ordinary ones: real-time at the lowest level, else a better nice value. Only for
// threads that nearly always sleep. Threads and processes it starts are ordinary again.
void raise_own_priority();

// All threads of `pid`, which was sent SIGKILL or is known to be dying: with `ahead`, what is left of it runs at once
// (giving up its memory and its words), else as an ordinary process. Precondition: `pid` is not reaped.
void hasten_death(pid_t pid, bool ahead);

}  // namespace closeranks
