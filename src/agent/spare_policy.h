// How many spares there should be, and when the next one is started: (events, now) -> how many to start. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/deadlines.h"

namespace closeranks::agent {

class SparePolicy {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit SparePolicy(std::uint32_t wanted) : wanted_(wanted) {}

  // From now on spares are kept (the job can use one).
  void enable(Time now);
  // For good: the job ends.
  void stop() { wanted_ = 0; }
  // A spare has become a worker. With a `successor`, which it leaves behind, there are as many as before. Else the next
  // one is started once that worker trains, or some time later: importing torch takes a core for seconds, which the
  // newcomer needs more.
  void taken(Time now, bool successor);
  void newcomer_trains(Time now);
  // A spare ended before it was taken (or could not be started): the next one is tried later and later.
  void died(Time now);
  // A spare has come as far as waiting for its turn.
  void ready() { deaths_ = 0; }

  // Starts that are due; they count from here on.
  std::uint32_t act(Time now);
  [[nodiscard]] std::optional<Time> next() const;
  [[nodiscard]] std::uint32_t running() const { return running_; }

 private:
  std::uint32_t wanted_;
  std::uint32_t running_ = 0;
  std::uint32_t deaths_ = 0;  // in a row
  std::optional<Time> due_;   // none: not enabled
};

}  // namespace closeranks::agent
