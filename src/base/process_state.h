// What the kernel knows of a process, for agents and observers: is it running, stopped, stuck, without memory, gone.
// Reads /proc; every function may be called from any thread and never blocks on the process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "closeranks/status.h"

namespace closeranks {

// A handle on the process that cannot come to mean another one (a pid can, once reaped). Fault::peer_lost: no such
// process; Fault::system otherwise. Readable (poll) when the process has ended.
Result<FileDescriptor> open_process(pid_t pid);
// ok, also when the process has ended already; Fault::system when not permitted.
Status send_signal(const FileDescriptor& process, int signal);
// True once the process has ended (zombie or reaped). Does not wait.
bool has_ended(const FileDescriptor& process);

// The fence by observation: true when every thread of `pid` has given up its memory (its /proc statm is all zero, or
// it is gone), so that no user instruction of it can run again. Comes 1-10 ms after a SIGKILL, before the reap.
// Only a proof after the process was sent SIGKILL or is known to be exiting: a clone in between is not possible then.
bool all_threads_without_memory(pid_t pid);

struct ProcessState {
  char letter = '?';  // R, S, D, T (stopped), t (traced), Z, X: /proc/PID/stat
  pid_t parent = 0;
  bool exiting = false;           // the kernel takes it down
  std::uint64_t start_ticks = 0;  // since boot: tells a reused pid apart
  std::string command;
};
// nullopt: no such process.
std::optional<ProcessState> process_state(pid_t pid);
// SIGKILL is pending for its main thread, or it is exiting, or gone: no user instruction of that thread runs again once
// it leaves the kernel. A process with much memory is so for a while.
bool is_ending(pid_t pid);
// SIGKILL is pending and every thread sits in uninterruptible sleep: no user instruction will run (protocol rule 23).
bool is_unkillable(pid_t pid);
// Where it sleeps, for error texts: "futex_wait_queue" or "" when the kernel does not tell.
std::string waiting_channel(pid_t pid);

// What it does, for a person: "running (R)", "sleeping (S)", "stopped (T)", "traced (t)", "in the kernel: WHERE" of a
// process in uninterruptible sleep, "dead".
std::string describe_process(pid_t pid);

// All living descendants of `pid` (children first, then theirs), without itself. A snapshot: call again after killing.
std::vector<pid_t> descendants_of(pid_t pid);

// "killed by signal 9 (SIGKILL)", "exited with status 1", from a waitpid status.
std::string describe_wait_status(int wait_status);

}  // namespace closeranks
