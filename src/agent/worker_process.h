// Starting a worker: a program in a process group of its own, with pipes for its output and a pidfd from birth.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "closeranks/status.h"

namespace closeranks::agent {

struct WorkerProcess {
  pid_t pid = 0;           // also the number of its process group
  FileDescriptor process;  // pidfd: readable when it has ended; never comes to mean another process
  FileDescriptor output;   // read end, non-blocking, of its stdout
  FileDescriptor errors;   // read end, non-blocking, of its stderr
};

// A pipe for a worker's stdout or stderr: our end does not block, the worker's does.
struct OutputPipe {
  FileDescriptor read;
  FileDescriptor write;
};
Result<OutputPipe> make_output_pipe();

// Starts `command` (looked up in PATH) with exactly `environment`. Its stdin is empty (or `input`, which stays the
// caller's), its signal handling the default. The caller reaps it. Fault::system, naming the program, when it cannot be
// started. Any thread.
Result<WorkerProcess> start_worker(std::span<const std::string> command, std::span<const std::string> environment,
                                   const FileDescriptor* input = nullptr);

// How a process that is ending (or is a zombie) ends, from /proc, before it can be reaped: a status as from waitpid.
// The kernel sets it before it tears the memory down. 0 also for a process that is not ending: ask only about one
// that is known to be. -1: no such process, or not ours to see. Precondition: `pid` is not reaped.
int status_of_ending(pid_t pid);

}  // namespace closeranks::agent
