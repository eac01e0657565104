#include "transport/waiter.h"

#include <sched.h>

#include <algorithm>
#include <array>

#include "transport/futex.h"

namespace closeranks::transport {
namespace {

// Longest single sleep: a wake that some kernel lost costs a second, not a hang.
constexpr std::chrono::milliseconds longest_sleep{1000};
// With more peers than futex_waitv takes, the others' life words are looked at this often.
constexpr std::chrono::milliseconds crowded_sleep{10};
// Without futex_waitv, all life words are looked at this often.
constexpr std::chrono::milliseconds blind_sleep{1};

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool any_gone(std::span<const PeerLife* const> peers) {
  return std::any_of(peers.begin(), peers.end(),
                     [](const PeerLife* peer) { return peer->state() != LifeState::alive; });
}

}  // namespace

Waiter::Waiter(Doorbell own, WaitTuning tuning) : own_(own), tuning_(tuning) {}

Wake Waiter::wait(const std::function<bool()>& poll, const std::function<std::span<const PeerLife* const>()>& watched,
                  Clock::time_point deadline) {
  for (std::uint32_t i = 0; i < tuning_.spins; ++i) {
    if (poll()) {
      return Wake::ready;
    }
    relax();
  }
  const Clock::time_point yield_until = std::min(Clock::now() + tuning_.yield_for, deadline);
  while (Clock::now() < yield_until) {
    if (poll()) {
      return Wake::ready;
    }
    ::sched_yield();
  }
  for (;;) {
    const std::uint32_t bell = own_.arm();
    if (poll()) {
      own_.disarm();
      return Wake::ready;
    }
    const std::span<const PeerLife* const> peers = watched();
    if (any_gone(peers)) {
      own_.disarm();
      // The kernel woke one sleeper for this death; the process's other sleepers learn it from us.
      own_.ring();
      // Whatever the dead stored is visible now and was perhaps not when we polled.
      return poll() ? Wake::ready : Wake::death;
    }
    const Clock::time_point now = Clock::now();
    if (now >= deadline) {
      own_.disarm();
      return Wake::deadline;
    }
    sleep(bell, peers, std::min(deadline, now + longest_sleep));
    own_.disarm();
  }
}

void Waiter::sleep(std::uint32_t bell, std::span<const PeerLife* const> watched, Clock::time_point until) {
  if (has_waitv_) {
    std::array<FutexWord, max_watched + 1> words;
    words[0] = {&own_.bell(), bell};
    const std::size_t count = std::min(watched.size(), max_watched);
    for (std::size_t i = 0; i < count; ++i) {
      words[i + 1] = watched[i]->futex();
    }
    if (count < watched.size()) {
      until = std::min(until, Clock::now() + crowded_sleep);
    }
    if (futex_wait_any({words.data(), count + 1}, until)) {
      return;
    }
    has_waitv_ = false;
  }
  if (!watched.empty()) {
    until = std::min(until, Clock::now() + blind_sleep);
  }
  futex_wait({&own_.bell(), bell}, until);
}

}  // namespace closeranks::transport
