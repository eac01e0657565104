// CLOCK_MONOTONIC for a third of its price, where the kernel itself keeps time by the processor's counter: the counter
// is read, and the clock every few milliseconds. Right to a microsecond or two.
#pragma once

#include <cstdint>

#ifdef __x86_64__
#include <x86intrin.h>
#endif

namespace closeranks::recorder {

std::int64_t now_ns();  // CLOCK_MONOTONIC itself

// Not thread-safe.
class QuickClock {
 public:
  QuickClock();
  std::int64_t now() {
#ifdef __x86_64__
    const std::uint64_t ticks = __rdtsc() - base_ticks_;
    if (ticks < window_ticks_) return base_ns_ + static_cast<std::int64_t>((ticks * ns_per_tick_) >> 32);
    return look_at_clock();
#else
    return now_ns();
#endif
  }

 private:
  std::int64_t look_at_clock();

  std::uint64_t base_ticks_ = 0;
  std::int64_t base_ns_ = 0;
  std::uint64_t ns_per_tick_ = 0;   // times 2^32
  std::uint64_t window_ticks_ = 0;  // from the base on the counter is enough; 0: it is not (yet)
  bool usable_ = false;
};

}  // namespace closeranks::recorder
