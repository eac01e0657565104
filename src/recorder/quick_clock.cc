#include "recorder/quick_clock.h"

#include <time.h>

#include <fstream>
#include <string>

namespace closeranks::recorder {
namespace {

// The clock is looked at this often. Ticks of it times ns_per_tick fit into 64 bits.
[[maybe_unused]] constexpr std::int64_t window_ns = 20'000'000;
// A look at clock and counter that took longer was interrupted.
[[maybe_unused]] constexpr std::int64_t look_ns = 2'000;

}  // namespace

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

QuickClock::QuickClock() {
  std::string source;
  std::getline(std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource"), source);
  usable_ = source == "tsc";
}

// The first looks give the counter's pace; later ones a new base, and a pace from one base to the next.
std::int64_t QuickClock::look_at_clock() {
#ifdef __x86_64__
  const std::int64_t ns = now_ns();
  if (!usable_) return ns;
  const std::uint64_t ticks = __rdtsc();
  if (now_ns() - ns > look_ns) return ns;  // the next call tries again
  const std::int64_t passed = ns - base_ns_;
  if (base_ticks_ != 0 && passed < window_ns) return ns;
  if (base_ticks_ != 0 && ticks > base_ticks_) {
    constexpr double two_to_32 = 4294967296.0;
    ns_per_tick_ =
        static_cast<std::uint64_t>(static_cast<double>(passed) * two_to_32 / static_cast<double>(ticks - base_ticks_));
    window_ticks_ = ns_per_tick_ == 0 ? 0 : (static_cast<std::uint64_t>(window_ns) << 32) / ns_per_tick_;
  }
  base_ticks_ = ticks;
  base_ns_ = ns;
  return ns;
#else
  return now_ns();
#endif
}

}  // namespace closeranks::recorder
