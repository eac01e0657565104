// A worker's part in a round of joining: hold, admit, prepared, transfer; and what ends it (protocol rules 19, 20).
#include <algorithm>
#include <utility>

#include "membership/worker.h"

namespace closeranks::membership {

WorkerEffects Worker::request_join(std::vector<GroupIntroduction> groups) {
  WorkerEffects effects;
  if (!newcomer_ || leaving_ || state_ == State::evicted) return effects;
  request_ = JoinRequest{self_.worker, std::move(groups)};
  effects.send.push_back(*request_);
  return effects;
}

// A round at or below one that is over is a message of a broken connection that still came.
WorkerEffects Worker::on_hold(const Hold& hold) {
  if (from_old_term(hold.round.term) || newcomer_ || state_ != State::active) return {};
  if (hold.round <= over_ || hold.round <= promised_ || hold.round <= installed_) return {};
  term_ = std::max(term_, hold.round.term);
  Round round;
  round.number = hold.round;
  for (const WorkerAddress& newcomer : hold.newcomers) round.newcomers.push_back(newcomer.worker);
  round_ = std::move(round);
  WorkerEffects effects;
  effects.hold = hold;
  return effects;
}

WorkerEffects Worker::holding(ViewNumber round, std::uint64_t step) {
  WorkerEffects effects;
  if (round_ && round_->number == round && !round_->admitted) {
    effects.send.push_back(Holding{round, self_.worker, step});
  }
  return effects;
}

WorkerEffects Worker::on_admit(const Admit& admit) {
  if (from_old_term(admit.round.term)) return {};
  WorkerEffects effects;
  if (newcomer_ && request_ && admit.round > over_ && admit.round > promised_) {
    // Nobody asks a newcomer to hold. Whoever admits it again knows that no earlier round was decided.
    if (round_) end_round(effects, "another round has begun");
    if (state_ == State::active) round_ = Round{admit.round, {self_.worker}, false, false};
  }
  if (state_ != State::active || !round_ || round_->number != admit.round || round_->admitted) return effects;
  term_ = std::max(term_, admit.round.term);
  round_->admitted = true;
  effects.admit = admit;
  return effects;
}

WorkerEffects Worker::on_transfer(const Transfer& transfer) {
  WorkerEffects effects;
  if (!round_ || round_->number != transfer.round || !round_->prepared || promised_ != transfer.round) return effects;
  effects.transfer = transfer;
  return effects;
}

WorkerEffects Worker::answer_round(ViewNumber round, FromWorker message) const {
  WorkerEffects effects;
  if (round_ && round_->number == round) effects.send.push_back(std::move(message));
  return effects;
}

WorkerEffects Worker::state_served(ViewNumber round) { return answer_round(round, StateServed{round, self_.worker}); }

WorkerEffects Worker::state_received(ViewNumber round) {
  return answer_round(round, StateReceived{round, self_.worker});
}

WorkerEffects Worker::join_failed(ViewNumber round, std::string reason) {
  return answer_round(round, JoinFailed{round, self_.worker, std::move(reason)});
}

// What has been promised ends only with its own cancel, and not at all once a view change has been accepted. A cancel
// is true for ever, whoever sends it: a round that has been decided is never cancelled.
WorkerEffects Worker::on_cancel(const Cancel& cancel) {
  over_ = std::max(over_, cancel.round);
  WorkerEffects effects;
  if (!round_) return effects;
  if (!round_->prepared) {
    if (round_->number <= cancel.round) void_hold(effects, cancel.reason);
  } else if (round_->number == cancel.round) {
    end_round(effects, cancel.reason);
  }
  return effects;
}

// Prepared or not: it is known that the round has come to nothing. One who has accepted a view change since waits for
// that.
void Worker::end_round(WorkerEffects& effects, const std::string& reason) {
  if (round_->prepared) {
    if (promised_ != round_->number) return;
    state_ = State::active;
  }
  over_ = std::max(over_, round_->number);
  effects.round_over = RoundOver{round_->number, false, reason};
  round_.reset();
}

void Worker::void_hold(WorkerEffects& effects, const std::string& reason) {
  if (!round_ || round_->prepared) return;
  over_ = std::max(over_, round_->number);
  effects.round_over = RoundOver{round_->number, false, reason};
  round_.reset();
}

WorkerEffects Worker::connection_lost() {
  WorkerEffects effects;
  if (rules_.hold_ends_with_connection) void_hold(effects, "the connection to the coordinator was lost");
  return effects;
}

WorkerEffects Worker::pause(std::string what, std::uint32_t up_to_ms) {
  WorkerEffects effects;
  if (leaving_ || state_ == State::evicted) return effects;
  const Pause pause{self_.worker, std::move(what), up_to_ms};
  pause_ = up_to_ms > 0 ? std::optional(pause) : std::nullopt;
  if (state_ != State::joining) effects.send.push_back(pause);
  return effects;
}

}  // namespace closeranks::membership
