// Waiting for shared memory to change: spin briefly, yield for a while, then sleep on one's own doorbell and the life
// words of the peers waited for. Spinning wins when the peer runs on another core, yielding when processes share
// cores (10 us against 46 us of a futex for 4 processes on 2 cores); neither goes on without bound.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "transport/doorbell.h"
#include "transport/life.h"

namespace closeranks::transport {

struct WaitTuning {
  std::uint32_t spins = 50;
  std::chrono::microseconds yield_for{1000};
};
// For the engine's thread: it has time, callers do not.
inline constexpr WaitTuning sleep_at_once{0, std::chrono::microseconds{0}};

enum class Wake : std::uint8_t {
  ready,     // poll() said so
  death,     // a watched peer died or departed (poll() was asked once more before and said no)
  deadline,  // poll() was asked once more and said no
};

// One per sleeping thread (it keeps the array of futexes), all on the process's own doorbell. The kernel wakes one
// sleeper per life word, so a thread that wakes by a death rings its own doorbell for the others.
class Waiter {
 public:
  using Clock = std::chrono::steady_clock;
  // futex_waitv takes 128 words; further peers are looked at every `slice` only.
  static constexpr std::size_t max_watched = 127;

  explicit Waiter(Doorbell own, WaitTuning tuning = {});

  // Returns when `poll` returns true, a peer that `watched` names is gone, or `deadline` has passed. `poll` is called
  // often, with nothing of ours held; it does the caller's work (drives the engine). `watched` is asked right before
  // each sleep: the peers now waited for; it must not name peers already known to be gone, else the wait ends at once.
  // The pointers must stay valid until wait() returns.
  Wake wait(const std::function<bool()>& poll, const std::function<std::span<const PeerLife* const>()>& watched,
            Clock::time_point deadline);

  // For tests: behave as on a kernel without futex_waitv (before 5.16, or where a sandbox forbids it): sleeps of at
  // most 1 ms on the doorbell, the life words looked at in between.
  void forbid_waitv() { has_waitv_ = false; }

 private:
  void sleep(std::uint32_t bell, std::span<const PeerLife* const> watched, Clock::time_point until);
  Doorbell own_;
  WaitTuning tuning_;
  bool has_waitv_ = true;
};

}  // namespace closeranks::transport
