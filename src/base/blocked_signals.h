// Threads of ours take no signals: the handlers of the program they live in must never run on them. A thread inherits
// the mask of the one that starts it, so it is blocked around the start and not in the new thread, which would leave a
// moment in which a signal finds it.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace closeranks {

// Blocks every signal of the calling thread as long as it lives; start threads meanwhile.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace closeranks
