#include "membership/worker.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::membership {

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
  const ViewNumber prepared = promised_ > installed_ ? promised_ : ViewNumber{};
  effects.send.push_back(Hello{self_, installed_, prepared});
  say_raised(effects);
  if (leaving_) effects.send.push_back(Goodbye{self_.worker});
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
        return {};
      },
      message);
}

WorkerEffects Worker::on_welcome(const Welcome& welcome) {
  if (from_old_term(welcome.term)) return {};
  term_ = std::max(term_, welcome.term);
  WorkerEffects effects;
  effects.addresses = welcome.workers;
  if (state_ == State::joining) {
    state_ = State::active;
    installed_ = welcome.view;
    excluded_ = welcome.excluded;
    say_raised(effects);
  }
  return effects;
}

WorkerEffects Worker::on_propose(const Propose& propose) {
  if (from_old_term(propose.view.term) || state_ == State::joining) return {};
  if (rules_.refuse_lower_numbers && (propose.view < promised_ || propose.view <= installed_)) return {};
  term_ = std::max(term_, propose.view.term);
  promised_ = propose.view;
  state_ = State::frozen;
  WorkerEffects effects;
  effects.freeze = FreezeRequest{propose.view, propose.excluding};
  return effects;
}

WorkerEffects Worker::frozen(ViewNumber view, std::vector<GroupStatus> statuses) {
  if (state_ != State::frozen || view != promised_) return {};
  WorkerEffects effects;
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
  state_ = State::active;
  WorkerEffects effects;
  effects.install = install;
  std::erase_if(raised_, [this](const auto& entry) { return is_excluded(entry.first); });
  say_raised(effects);
  return effects;
}

WorkerEffects Worker::on_evicted(const Evicted& evicted) {
  if (from_old_term(evicted.term)) return {};
  state_ = State::evicted;
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

WorkerEffects Worker::goodbye() {
  if (state_ == State::evicted || leaving_) return {};
  leaving_ = true;
  raised_.clear();
  WorkerEffects effects;
  effects.send.push_back(Goodbye{self_.worker});
  return effects;
}

std::vector<Departure> departures_of_new_group(const std::vector<ExcludedMember>& excluded,
                                               const std::vector<Slot>& members) {
  std::vector<Departure> departures;
  for (const ExcludedMember& member : excluded) {
    if (std::find(members.begin(), members.end(), member.slot) == members.end()) continue;
    departures.push_back({member.worker, member.slot, member.view, 0});
  }
  return departures;
}

GroupResolution resolution_for(const Install& install, const GroupStatus& group) {
  for (const GroupResolution& resolution : install.groups) {
    if (resolution.group == group.group) return resolution;
  }
  GroupResolution resolution{group.group, group.view, group.departures, group.failed};
  for (const Departure& departure : departures_of_new_group(install.excluded, group.members)) {
    const bool known = std::any_of(group.departures.begin(), group.departures.end(),
                                   [&](const Departure& other) { return other.worker == departure.worker; });
    if (known) continue;
    resolution.departures.push_back(departure);
    resolution.view = install.view;
  }
  return resolution;
}

}  // namespace closeranks::membership
