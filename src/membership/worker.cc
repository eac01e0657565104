// The views; joining is in worker_join.cc.
#include "membership/worker.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::membership {
namespace {

bool fills(const std::vector<Filled>& filled, Slot slot) {
  return std::any_of(filled.begin(), filled.end(), [&](const Filled& one) { return one.slot == slot; });
}

}  // namespace

Worker::Worker(WorkerAddress self, Rules rules) : self_(std::move(self)), rules_(rules) {}

bool Worker::is_excluded(WorkerId worker) const {
  return std::any_of(excluded_.begin(), excluded_.end(),
                     [&](const ExcludedMember& member) { return member.worker == worker; });
}

bool Worker::from_old_term(std::uint32_t term) const { return term < term_; }

WorkerEffects Worker::connected() {
  WorkerEffects effects;
  if (state_ == State::evicted) return effects;
  // `promised_` counts from the moment the proposal was accepted: whatever answer is still being made is for a number
  // the coordinator may have forgotten, and only a new proposal brings this worker out of it.
  const ViewNumber prepared = state_ == State::frozen ? promised_ : ViewNumber{};
  effects.send.push_back(Hello{self_, installed_, prepared});
  say_raised(effects);
  if (newcomer_ && request_) effects.send.push_back(*request_);
  if (pause_) effects.send.push_back(*pause_);
  if (leaving_) effects.send.push_back(Goodbye{self_.worker, for_good_});
  return effects;
}

void Worker::say_raised(WorkerEffects& effects) const {
  for (const auto& [suspect, raised] : raised_) {
    effects.send.push_back(Suspicion{self_.worker, suspect, raised.reason, raised.in_op, raised.seems_gone});
  }
}

WorkerEffects Worker::handle(const ToWorker& message) {
  if (state_ == State::evicted || leaving_) return {};
  return std::visit(
      [this](const auto& received) -> WorkerEffects {
        using Message = std::decay_t<decltype(received)>;
        if constexpr (std::is_same_v<Message, Welcome>) return on_welcome(received);
        if constexpr (std::is_same_v<Message, Propose>) return on_propose(received);
        if constexpr (std::is_same_v<Message, Install>) return on_install(received);
        if constexpr (std::is_same_v<Message, Evicted>) return on_evicted(received);
        if constexpr (std::is_same_v<Message, Hold>) return on_hold(received);
        if constexpr (std::is_same_v<Message, Admit>) return on_admit(received);
        if constexpr (std::is_same_v<Message, Transfer>) return on_transfer(received);
        if constexpr (std::is_same_v<Message, Cancel>) return on_cancel(received);
        WorkerEffects effects;
        if constexpr (std::is_same_v<Message, JobFinished>) effects.job_finished = newcomer_;
        if constexpr (std::is_same_v<Message, Leave>) effects.leave = received;
        return effects;
      },
      message);
}

WorkerEffects Worker::on_welcome(const Welcome& welcome) {
  if (from_old_term(welcome.term)) return {};
  WorkerEffects effects;
  if (welcome.term > term_ && rules_.hold_ends_with_connection)
    void_hold(effects, "another coordinator has taken over");
  // It is in no view, says the journal: the round of an earlier coordinator it may be prepared for was never decided.
  if (newcomer_ && welcome.newcomer && round_ && round_->number.term < welcome.term)
    end_round(effects, "its coordinator is gone");
  term_ = std::max(term_, welcome.term);
  effects.addresses = welcome.workers;
  if (state_ == State::joining) {
    state_ = State::active;
    installed_ = welcome.view;
    excluded_ = welcome.excluded;
    newcomer_ = welcome.newcomer;
    members_ = welcome.members;
    say_raised(effects);
  }
  return effects;
}

WorkerEffects Worker::on_propose(const Propose& propose) {
  if (from_old_term(propose.view.term) || state_ == State::joining) return {};
  if (rules_.refuse_lower_numbers && (propose.view < promised_ || propose.view <= installed_)) return {};
  term_ = std::max(term_, propose.view.term);
  WorkerEffects effects;
  // Once prepared for a round it stays frozen: others may have the round's install already, and the next one tells.
  void_hold(effects, "a view change comes first");
  promised_ = propose.view;
  state_ = State::frozen;
  effects.freeze = FreezeRequest{propose.view, propose.excluding};
  return effects;
}

WorkerEffects Worker::frozen(ViewNumber view, std::vector<GroupStatus> statuses) {
  WorkerEffects effects;
  if (round_ && round_->number == view && round_->admitted && !round_->prepared && state_ == State::active) {
    round_->prepared = true;
    promised_ = view;
    state_ = State::frozen;
  } else if (state_ != State::frozen || view != promised_) {
    if (view <= over_) effects.round_over = RoundOver{view, false, "the round was over before this boundary"};
    return effects;
  }
  effects.send.push_back(Prepared{view, self_.worker, std::move(statuses)});
  return effects;
}

WorkerEffects Worker::on_install(const Install& install) {
  if (from_old_term(install.view.term) || state_ == State::joining || install.view == installed_) return {};
  // Only the view last promised: for an older one the statuses have been given anew since.
  if (rules_.refuse_lower_numbers && install.view != promised_) return {};
  term_ = std::max(term_, install.view.term);
  installed_ = install.view;
  excluded_ = install.excluded;
  members_ = install.members;
  state_ = State::active;
  WorkerEffects effects;
  effects.install = install;
  if (std::any_of(members_.begin(), members_.end(), [this](const Filled& one) { return one.worker == self_.worker; })) {
    newcomer_ = false;
    request_.reset();
  }
  if (round_) {
    const auto is_in = [this](WorkerId worker) {
      return is_excluded(worker) || std::any_of(members_.begin(), members_.end(),
                                                [&](const Filled& member) { return member.worker == worker; });
    };
    const bool joined = std::any_of(round_->newcomers.begin(), round_->newcomers.end(), is_in);
    effects.round_over = RoundOver{round_->number, joined, joined ? "" : "a view change came first"};
    over_ = std::max(over_, round_->number);
    round_.reset();
  }
  std::erase_if(raised_, [this](const auto& entry) { return is_excluded(entry.first); });
  say_raised(effects);
  return effects;
}

WorkerEffects Worker::on_evicted(const Evicted& evicted) {
  if (from_old_term(evicted.term)) return {};
  state_ = State::evicted;
  round_.reset();
  WorkerEffects effects;
  effects.evicted = evicted;
  return effects;
}

WorkerEffects Worker::suspect(WorkerId suspect, std::string reason, bool in_op) {
  return raise(suspect, Raised{std::move(reason), in_op, true});
}

WorkerEffects Worker::waits_for(WorkerId absent, std::string reason) {
  return raise(absent, Raised{std::move(reason), true, false});
}

WorkerEffects Worker::raise(WorkerId suspect, Raised raised) {
  if (state_ == State::evicted || leaving_ || is_excluded(suspect)) return {};
  const auto found = raised_.find(suspect);
  if (found != raised_.end()) {
    const Raised& before = found->second;
    const bool says_more = (raised.in_op && !before.in_op) || (raised.seems_gone && !before.seems_gone);
    if (!says_more) return {};
    raised.in_op = raised.in_op || before.in_op;
    raised.seems_gone = raised.seems_gone || before.seems_gone;
  }
  raised_[suspect] = raised;
  WorkerEffects effects;
  if (state_ == State::joining) return effects;  // said at the welcome
  effects.send.push_back(Suspicion{self_.worker, suspect, raised.reason, raised.in_op, raised.seems_gone});
  return effects;
}

WorkerEffects Worker::goodbye(bool for_good) {
  if (state_ == State::evicted || leaving_) return {};
  leaving_ = true;
  for_good_ = for_good;
  request_.reset();
  pause_.reset();
  raised_.clear();
  WorkerEffects effects;
  effects.send.push_back(Goodbye{self_.worker, for_good_});
  return effects;
}

std::vector<Departure> departures_of_new_group(const std::vector<ExcludedMember>& excluded,
                                               const std::vector<Slot>& members, const std::vector<Filled>& filled) {
  std::vector<Departure> departures;
  for (const ExcludedMember& member : excluded) {
    if (std::find(members.begin(), members.end(), member.slot) == members.end()) continue;
    if (fills(filled, member.slot)) continue;
    std::erase_if(departures, [&](const Departure& earlier) { return earlier.slot == member.slot; });
    departures.push_back({member.worker, member.slot, member.view, 0});
  }
  return departures;
}

GroupResolution resolution_for(const Install& install, const GroupStatus& group) {
  for (const GroupResolution& resolution : install.groups) {
    if (resolution.group != group.group) continue;
    // What is listed for a group that fails with its members is for those that missed its epoch: its departures are
    // each member's own.
    const bool own =
        group.policy == Policy::fail && !group.alone && group.epoch != ViewNumber{} && group.epoch >= resolution.epoch;
    if (!own) return resolution;
  }
  GroupResolution resolution{group.group, group.view, group.departures, group.epoch, group.base};
  const std::size_t vacant = resolution.departures.size();
  std::erase_if(resolution.departures,
                [&](const Departure& departure) { return fills(install.members, departure.slot); });
  if (group.alone || resolution.departures.size() < vacant) {
    resolution.view = resolution.epoch = install.view;
    resolution.base = group.alone ? 0 : group.entered;
  }
  for (const Departure& departure : departures_of_new_group(install.excluded, group.members, install.members)) {
    const bool known = std::any_of(resolution.departures.begin(), resolution.departures.end(),
                                   [&](const Departure& other) { return other.worker == departure.worker; });
    if (known) continue;
    resolution.departures.push_back(departure);
    resolution.view = install.view;
  }
  return resolution;
}

}  // namespace closeranks::membership
