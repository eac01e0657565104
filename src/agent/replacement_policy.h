// Which vacant slots get a new worker, and when: (events, now) -> actions. Pure; no clock of its own.
//
// A slot is filled -> (its worker is out) -> waiting -> (due, and the job takes newcomers) -> filled ...
//                                        \-> given_up: its workers keep ending before they have done anything
//                                        \-> idle: its worker left for good, or a resize wants fewer
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/deadlines.h"
#include "closeranks/ids.h"

namespace closeranks::agent {

struct ReplacementLimits {
  // Workers of one slot that may end before their first finished step within `window`; at this many the slot is given
  // up. 0: nobody is replaced.
  std::uint32_t most = 3;
  std::chrono::milliseconds window = deadlines::replacement_window;
  // Before the next try after such an end: doubled with each in a row, up to the longest.
  std::chrono::milliseconds first_backoff = deadlines::replacement_backoff;
  std::chrono::milliseconds longest_backoff = deadlines::replacement_backoff_longest;
};

class ReplacementPolicy {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // How the worker of a slot went.
  enum class Out : std::uint8_t {
    lost,   // it had finished a step of training: the slot is filled again at once
    early,  // it had not: something is wrong with the script, the machine or the slot
    left,   // on purpose, for good: not replaced
  };
  struct GivenUp {
    Slot slot;
    std::uint32_t tries = 0;  // within the window
    std::string last_error;
  };
  struct Actions {
    std::vector<Slot> start;  // a worker is to be started for each; they count as filled from here on
    std::vector<GivenUp> given_up;
  };

  // All of `slots` are filled at the beginning.
  ReplacementPolicy(std::uint32_t slots, ReplacementLimits limits);

  // The script has boundaries at which somebody can be let in. Until then vacant slots wait.
  void takes_newcomers() { takes_newcomers_ = true; }
  // The job is over or is being ended: nobody is started any more.
  void stop() { stopped_ = true; }
  // The worker of the slot is gone and in no view. Precondition: the slot is filled.
  void worker_out(Slot slot, Out how, const std::string& reason, Time now);
  // What act() asked for could not be tried for reasons that are not the slot's; it is asked for again at `when`.
  void put_off(Slot slot, Time when);
  // The slot's worker trains: what failed there before does not delay the next replacement.
  void first_step(Slot slot);
  // `closeranks job resize`: this many slots are to be filled. Growing fills the lowest vacant ones, given-up ones too;
  // shrinking stops waiting for the highest. Workers that have to leave are the coordinator's to ask.
  void resize(std::uint32_t present, Time now);

  // What is due now. Call after each event, and at next().
  Actions act(Time now);
  [[nodiscard]] std::optional<Time> next() const;
  // Slots that are filled or about to be.
  [[nodiscard]] std::uint32_t wanted() const;
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  enum class State : std::uint8_t { filled, waiting, idle, given_up };
  struct Place {
    State state = State::filled;
    Time due;
    std::deque<Time> early;  // ends before a first step, within the window
    std::uint32_t in_a_row = 0;
    std::string last_error;
    bool told = false;  // given up, and said
  };
  [[nodiscard]] bool replaces() const { return limits_.most > 0 && takes_newcomers_ && !stopped_; }

  ReplacementLimits limits_;
  std::vector<Place> places_;
  std::uint32_t at_most_;  // as the last resize wants it
  bool takes_newcomers_ = false;
  bool stopped_ = false;
};

}  // namespace closeranks::agent
