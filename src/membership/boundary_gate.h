// Between two steps a worker of a session passes a boundary. While somebody wants to join, it must not pass one that
// the others stop at: its step and the hold are one thing, changed in one place (protocol rule 19).
//
// Otherwise: A's training thread sees no hold and is about to begin step 1; its control thread answers "step 0" and
// holds; everybody is admitted at boundary 1; A waits in an op of step 1 for B, B at boundary 1 for A.
//
// Pure, and not thread-safe: whoever owns it calls everything under one lock (the engine: its drive lock). The training
// thread calls pass(), again whenever the gate has changed; the control thread the rest.
#pragma once

#include <cstdint>
#include <optional>

#include "closeranks/ids.h"

namespace closeranks::membership {

class BoundaryGate {
 public:
  enum class Answer : std::uint8_t {
    passed,  // the worker is now in the step
    wait,    // held: ask again when the gate has changed
    freeze,  // the boundary of round(): freeze every group, then ask no more until release()
  };

  // The training thread is about to begin `step` (1 for the first); steps only grow.
  Answer pass(std::uint64_t step) {
    if (frozen_) return Answer::wait;
    if (round_ && !admitted_) return Answer::wait;
    if (round_ && step >= *admitted_) {
      frozen_ = true;
      return Answer::freeze;
    }
    step_ = step;
    return Answer::passed;
  }

  // Holds for `round`, in place of any earlier one that is not frozen. Returns the step the worker is in, 0 for none:
  // what Holding says.
  std::uint64_t hold(ViewNumber round) {
    if (!frozen_) {
      round_ = round;
      admitted_.reset();
    }
    return step_;
  }

  // Boundaries below `step` are free; that before `step` freezes. false: not held for this round (it has been voided).
  bool admit(ViewNumber round, std::uint64_t step) {
    if (frozen_ || round_ != round) return false;
    admitted_ = step;
    return true;
  }

  // The round is over, whichever way (Worker's round_over). true: something waits at the boundary for this and may ask
  // again.
  bool release(ViewNumber round) {
    if (round_ != round) return false;
    round_.reset();
    admitted_.reset();
    frozen_ = false;
    return true;
  }

  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] bool held() const { return round_.has_value(); }
  [[nodiscard]] bool frozen() const { return frozen_; }
  [[nodiscard]] std::optional<ViewNumber> round() const { return round_; }

 private:
  std::uint64_t step_ = 0;
  std::optional<ViewNumber> round_;
  std::optional<std::uint64_t> admitted_;
  bool frozen_ = false;
};

}  // namespace closeranks::membership
