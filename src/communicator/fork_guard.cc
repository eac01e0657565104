#include "communicator/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace closeranks::communicator {
namespace {

// Forks between the process that loaded this library and this one. pthread_atfork takes no argument, so this is one of
// the few globals; it is a plain counter, safe to touch between fork and whatever the child does.
std::atomic<std::uint64_t> generation{0};

void count_fork() { generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

ForkGuard::ForkGuard() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(registered);
  generation_ = generation.load(std::memory_order_relaxed);
}

bool ForkGuard::in_child() const { return generation.load(std::memory_order_relaxed) != generation_; }

Status ForkGuard::status() {
  return {
      Fault::closed, Move::give_up,
      "this process is a fork of a closeranks worker: collectives belong to the worker itself. Start processes that "
      "communicate with spawn, or before the process group is made"};
}

}  // namespace closeranks::communicator
