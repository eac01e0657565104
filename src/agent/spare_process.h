// A spare's process and its orders. The socket is its standard input: it says "ready" there once it has imported what
// a worker needs, waits, and is told once what to become (python/closeranks/spare.py is the other end).
//
//   spare -> agent   "ready PID\n"
//   agent -> spare   2 x uint32, little endian: bytes of the environment, bytes of the command; then the entries of
//                    both, each ended by a NUL. The command: what stands after `python -u`. With the first byte come
//                    (SCM_RIGHTS) none or three descriptors: stdin, stdout and stderr of a successor.
// Given these, the spare forks before it becomes the worker: the child is the next spare, with all that its parent has
// imported, and says so on a socket of its own. It is made an orphan at once, so its parent is the agent.
// End of file on the socket: the agent is gone, and the spare ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/worker_process.h"
#include "base/file_descriptor.h"
#include "closeranks/status.h"

namespace closeranks::agent {

struct SpareProcess {
  WorkerProcess process;
  FileDescriptor orders;  // our end, non-blocking
};

// As start_worker. Any thread.
Result<SpareProcess> start_spare(std::span<const std::string> command, std::span<const std::string> environment);

// What a spare has said so far. Does not wait.
struct SpareWord {
  std::optional<pid_t> pid;  // once it is ready
  bool gone = false;         // it has ended without a word
};
SpareWord word_of(const FileDescriptor& orders);

// The ends of a successor: ours as of any spare's, and those for its process.
struct SuccessorEnds {
  FileDescriptor orders;
  OutputPipe output, errors;
  FileDescriptor its_orders;
};
Result<SuccessorEnds> make_successor_ends();

// The bytes of the orders.
std::string encode_orders(std::span<const std::string> environment, std::span<const std::string> command);

// Tells the spare what to become, and to leave a successor with its ends of `successor` (null: none); it reads them
// when it has finished importing. Fault::peer_lost when it is gone, Fault::system when the orders do not fit into the
// socket.
Status send_orders(const FileDescriptor& orders, std::span<const std::string> environment,
                   std::span<const std::string> command, const SuccessorEnds* successor);

// Memory of the process that is in use; 0 when that cannot be told.
std::uint64_t resident_bytes(pid_t pid);

// The last line of what can be read from a pipe without waiting: a spare's error.
std::string last_line(const FileDescriptor& pipe);

}  // namespace closeranks::agent
