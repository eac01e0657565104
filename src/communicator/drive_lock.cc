#include "communicator/drive_lock.h"

#include <chrono>

#include "transport/futex.h"

namespace closeranks::communicator {
namespace {

// The driver is about to look: a thread switch would take longer.
constexpr int looks = 100;
// A wake that got lost costs this much, not a hang.
constexpr std::chrono::milliseconds longest_sleep{100};

}  // namespace

void DriveLock::lock_slowly() {
  wanted_.fetch_add(1, std::memory_order_relaxed);
  for (int look = 0; !take(); ++look) {
    if (look < looks) {
#if defined(__x86_64__) || defined(__i386__)
      __builtin_ia32_pause();
#endif
      continue;
    }
    std::uint32_t current = state_.load(std::memory_order_relaxed);
    if ((current & held) == 0) continue;
    if ((current & waited_for) == 0 &&
        !state_.compare_exchange_weak(current, current | waited_for, std::memory_order_relaxed)) {
      continue;
    }
    transport::futex_wait({&state_, current | waited_for}, std::chrono::steady_clock::now() + longest_sleep);
  }
  wanted_.fetch_sub(1, std::memory_order_relaxed);
}

// Either it is ours after all, or whoever holds it (or is about to) finds the bit when he lets go: in one word, so that
// none of the two can miss the other.
bool DriveLock::try_lock_slowly() {
  for (;;) {
    std::uint32_t current = state_.load(std::memory_order_relaxed);
    if ((current & held) == 0 && wanted_.load(std::memory_order_relaxed) == 0) {
      if (take()) return true;
      continue;
    }
    if ((current & turned_away) != 0 ||
        state_.compare_exchange_weak(current, current | turned_away, std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
      return false;
    }
  }
}

void DriveLock::wake(std::uint32_t before) {
  if ((before & waited_for) != 0) transport::futex_wake_all(state_);
  if ((before & turned_away) != 0 && ring_) ring_();
}

}  // namespace closeranks::communicator
