// What comes over a group from outside: lost peers, failures, another policy, and the two halves of a view change.
#include <algorithm>
#include <utility>

#include "algorithm/group_machine.h"
#include "base/assert.h"

namespace closeranks::algorithm {

void GroupMachine::peer_lost(Rank culprit) {
  CR_ASSERT(policy_ == Policy::fail && culprit.value() < options_->members);
  if (failure_ || lost_) {
    return;
  }
  work_ = Work{};
  if (completed_ == entered_) {
    failure_ = Failure{Fault::peer_lost, culprit, completed_};  // nothing in flight, nothing to decide
  } else {
    lost_ = culprit;
  }
}

void GroupMachine::fail_all(Fault outcome, Rank culprit) {
  if (failure_) {
    return;
  }
  failure_ = Failure{outcome, culprit, completed_};
  lost_.reset();
  work_ = Work{};
}

void GroupMachine::set_policy(Policy policy) {
  CR_ASSERT(completed_ == entered_);
  policy_ = policy;
  if (policy != Policy::fail && failure_ && failure_->outcome == Fault::peer_lost && !failure_met_ &&
      !roster_->present(failure_->culprit)) {
    failure_.reset();
  }
}

membership::GroupStatus GroupMachine::freeze() {
  frozen_ = true;
  membership::GroupStatus status;
  status.members = options_->slots;
  status.policy = policy_;
  status.view = view_;
  status.entered = entered_;
  status.completed = completed_;
  status.epoch = epoch_;
  status.base = base_;
  if (failure_) {
    status.completed = std::min(failure_->from, completed_);  // a group whose ops have failed is not idle
  }
  if (options_->rules.last_op_decided_once) {
    status.departures = roster_->departures();
  }
  return status;
}

void GroupMachine::install(const membership::GroupResolution& resolution) {
  if (resolution.epoch > epoch_) {
    start_anew(resolution);
    return;
  }
  auto roster = std::make_shared<Roster>(*roster_);
  const std::vector<Rank> excluded = roster->apply(resolution, options_->rules);
  roster_ = std::move(roster);
  view_ = resolution.view;
  frozen_ = false;
  own_from_ = 0;
  for (std::uint64_t sequence = completed_; sequence < entered_; ++sequence) {
    open(sequence).own_cursor = 0;  // blocks of the dead may be this member's now
  }
  if (!roster_->present(options_->self)) {
    fail_all(Fault::evicted, options_->self);
    return;
  }
  if (policy_ == Policy::fail && !excluded.empty()) {
    peer_lost(excluded.front());
  }
  if (!options_->rules.finish_scratch_first) {
    work_ = Work{};
  }
}

// Every member holds the same decision and is idle, so all begin alike: a survivor as the newcomer that counted alone.
void GroupMachine::start_anew(const membership::GroupResolution& resolution) {
  CR_ASSERT(completed_ == entered_);
  roster_ = std::make_shared<const Roster>(options_->slots, resolution, options_->rules);
  view_ = resolution.view;
  epoch_ = resolution.epoch;
  base_ = entered_ = completed_ = completed_by_all_ = resolution.base;
  std::fill(ring_.begin(), ring_.end(), OpenEntry{});
  work_ = Work{};
  own_from_ = 0;
  completed_unpublished_ = combined_ = frozen_ = false;
  lost_.reset();
  if (failure_met_) {
    return;  // its own ops have failed already (a timeout): no join mends that
  }
  failure_.reset();
  if (!roster_->present(options_->self)) {
    fail_all(Fault::evicted, options_->self);
  } else if (policy_ == Policy::fail && !roster_->all_present()) {
    const auto vacant = std::find(roster_->present().begin(), roster_->present().end(), false);
    peer_lost(Rank{static_cast<std::uint32_t>(vacant - roster_->present().begin())});
  }
}

}  // namespace closeranks::algorithm
