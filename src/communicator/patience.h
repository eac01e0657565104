// How long whoever waits for shared memory to change goes on looking before it sleeps: some looks close behind each
// other, then with the core given away in between, then no more. Spinning wins where every process has a core of its
// own, yielding at once where they share cores: there a look costs the one time that is waited for.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>

namespace closeranks::communicator {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;

  // `spins` looks before the first yield; zero yields: none.
  Patience(std::uint32_t spins, std::chrono::microseconds yield_for) : spins_(spins), yield_for_(yield_for) {}

  // Between two looks that found nothing. False: it has been long enough. Reads no clock before the first yield.
  [[nodiscard]] bool pause() {
    if (spun_ < spins_) {
      ++spun_;
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
      return true;
    }
    return yield();
  }
  // Something has happened: it begins anew.
  void renew() {
    spun_ = 0;
    yielding_ = false;
  }

 private:
  bool yield() {
    if (yield_for_.count() == 0) return false;
    const Clock::time_point now = Clock::now();
    if (!yielding_) {
      yielding_ = true;
      until_ = now + yield_for_;
    } else if (now >= until_) {
      return false;
    }
    ::sched_yield();
    return true;
  }

  std::uint32_t spins_;
  std::chrono::microseconds yield_for_;
  std::uint32_t spun_ = 0;
  bool yielding_ = false;
  Clock::time_point until_;
};

}  // namespace closeranks::communicator
