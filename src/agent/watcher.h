// Notices the death of workers in a fraction of a millisecond and proves that they are gone: one thread, ahead of
// ordinary ones, that sleeps on the life words of all workers.
//
//   life word says "owner died"  -> suspected -> (SIGKILL to be sure) -> no thread has memory -> fenced -> reaped ->
//   exited fence() or reap() asked       ----------------^
//
// Nothing here names a worker by its pid once it is reaped: a pid can come to mean another process.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/file_descriptor.h"
#include "closeranks/ids.h"
#include "membership/messages.h"
#include "transport/life.h"

namespace closeranks::agent {

// Called on the watching thread, or on the one that calls reap(), with no lock held. Per worker: suspected at most
// once, then fenced at most once, then exited exactly once. A worker that ends with status 0 is exited only.
struct WatcherHandlers {
  std::function<void(const membership::AgentSuspicion&)> suspected;
  std::function<void(const membership::Fenced&)> fenced;
  std::function<void(const membership::Exited&)> exited;
};

class Watcher {
 public:
  explicit Watcher(WatcherHandlers handlers);
  // Stops the thread; workers that still live are left alone.
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // All functions may be called from any thread.

  // A new worker: `process` is duplicated.
  void follow(WorkerId worker, pid_t pid, const FileDescriptor& process);
  // Its life word, once it is found. `holder`: the process it was found in, which is a child of the worker's own where
  // that is a shell script around it.
  void attach_life(WorkerId worker, transport::PeerLife life, pid_t holder);
  // Kills the worker and every process of its tree that could write into shared memory, and proves it. Idempotent.
  void fence(WorkerId worker, const std::string& reason);
  // Reaps the worker, which is a zombie (its pidfd is readable). Returns the status as from waitpid; nullopt when it
  // was not yet a zombie.
  std::optional<int> reap(WorkerId worker);
  // Sends a signal to the worker's own process only, unless it is reaped.
  void signal(WorkerId worker, int signal);
  // Sends a signal to the worker's process group, unless it is reaped.
  void signal_group(WorkerId worker, int signal);
  // Processes that workers left behind when they ended (and, once all have, any descendant of ours): those of a worker
  // that was reaped `grace` ago or more get SIGKILL. Returns how many there were; call again until 0.
  std::size_t kill_leftovers(std::chrono::milliseconds grace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace closeranks::agent
