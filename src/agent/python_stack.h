// The Python stack of a hung worker: asking for it, and reading what faulthandler wrote. closeranks registers
// faulthandler for `stack_signal` when it is imported under `closeranks run`, to append to $CLOSERANKS_STACK_FILE.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace closeranks::agent {

// SIGRTMIN+6: a real-time signal that no training library uses.
int stack_signal();

// True when the process catches the signal: sent to one that does not, it would kill it. A process that is stopped
// cannot answer either: false.
bool answers_stack_signal(pid_t pid);

// The most recent frames, at most `most`, of the thread that matters: the one that took the signal ("Current thread",
// the main thread unless that blocks it), else the first. "train.py:17 in wait_for_data", innermost first. `text`: what
// faulthandler wrote for one signal; anything else gives none. Pure.
std::vector<std::string> recent_frames(std::string_view text, std::size_t most);

}  // namespace closeranks::agent
