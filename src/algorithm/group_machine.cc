// Entering, and the order of what comes next. How an entry ends: completion.cc; how an owner takes a block through:
// block_owner.cc; how a member takes its part: taker.cc; failures and view changes: view_change.cc.
#include "algorithm/group_machine.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::algorithm {

GroupMachine::GroupMachine(MachineOptions options) {
  CR_ASSERT(options.members > 0 && options.self.value() < options.members && options.window > 0);
  CR_ASSERT(options.slots.size() == options.members);
  policy_ = options.policy;
  ring_.resize(options.window);
  roster_ = std::make_shared<const Roster>(options.slots);
  options_ = std::make_shared<const MachineOptions>(std::move(options));
}

bool GroupMachine::may_enter(const Words& words) const {
  if ((frozen_ && options_->rules.freeze_stops) || failure_ || lost_) {
    return false;
  }
  if (entered_ < options_->window) {
    return true;
  }
  const std::uint64_t needed = entered_ - options_->window + 1;
  if (completed_ < needed) {
    return false;
  }
  if (completed_by_all_ >= needed || !options_->rules.wait_for_window) {
    return true;
  }
  std::uint64_t lowest = completed_;
  for (std::uint32_t member = 0; member < options_->members; ++member) {
    if (Rank{member} == options_->self || !roster_->present(Rank{member})) {
      continue;
    }
    const std::uint64_t theirs = words.completed(Rank{member});
    if (theirs < needed) {
      return false;
    }
    lowest = std::min(lowest, theirs);
  }
  completed_by_all_ = lowest;
  return true;
}

void GroupMachine::enter(std::uint64_t sequence, const EntryPlan& plan, std::uint64_t signature,
                         std::uint64_t step_start) {
  CR_ASSERT(sequence == entered_ && entered_ - completed_ < options_->window);
  CR_ASSERT(!(frozen_ && options_->rules.freeze_stops) && !failure_ && !lost_);
  open(sequence).begin(sequence, plan, signature, step_start);
  ++entered_;
}

Action GroupMachine::action(Action::Kind kind, std::uint64_t sequence) const {
  Action result;
  result.kind = kind;
  result.sequence = sequence;
  return result;
}

Action GroupMachine::next(const Words& words) {
  if (frozen_ && options_->rules.freeze_stops) {
    return {};
  }
  if (completed_unpublished_) {
    return action(Action::Kind::publish_completed, completed_ - 1);
  }
  if (failure_) {
    return completed_ < entered_ ? complete(failure_->outcome, failure_->culprit) : Action{};
  }
  if (completed_ < entered_) {
    // Somebody waits for the lowest entry: it goes before further blocks.
    const Action finishing = finish_lowest(words);
    if (finishing.kind != Action::Kind::none) {
      return finishing;
    }
  }
  if (lost_) {
    return {};  // what others have decided to succeed is distributed already
  }
  const Action owning = next_block(words);
  if (owning.kind != Action::Kind::none || policy_ != Policy::fail || completed_ == entered_) {
    return owning;
  }
  // Nothing to do: perhaps because another member has decided that the entry failed.
  const DecisionWord word = DecisionWord::unpack(words.decision_word(completed_));
  if (word.sequence == completed_ && word.decision == Decision::failed) {
    return fail_from_lowest(Fault::peer_lost, Rank{word.culprit});
  }
  return {};
}

// What this member has to own or take in open entries, lowest entry first.
Action GroupMachine::next_block(const Words& words) {
  if (work_.stage != Stage::idle) {
    const Action working = work_action();
    if (working.kind != Action::Kind::none) {
      return working;
    }
  }
  for (own_from_ = std::max(own_from_, completed_); own_from_ < entered_; ++own_from_) {
    OpenEntry& entry = open(own_from_);
    const EntryPlan& plan = entry.entry.plan;
    if (roster_->lost(plan, own_from_, options_->lowest_member_is_root)) {
      continue;
    }
    if (readiness(entry, words) != Readiness::ready) {
      break;  // then no later entry is ready either, or - after a mismatch, of a small entry too - none may begin
    }
    if (plan.blocks() == 0) {
      continue;
    }
    const Action found = plan.style() == BlockStyle::take ? take(entry) : own_block(entry, words);
    if (found.kind != Action::Kind::none) {
      return found;
    }
  }
  return {};
}

void GroupMachine::done(const Action& action) {
  switch (action.kind) {
    case Action::Kind::none:
    case Action::Kind::claim_block:
    case Action::Kind::decide:
      break;  // the word says who won
    case Action::Kind::take_block:
    case Action::Kind::take_reduced:
      taken(action);
      break;
    case Action::Kind::publish_block:
      if (open(action.sequence).entry.plan.style() == BlockStyle::take) {
        taken(action);
      } else {
        work_done(action);
      }
      break;
    case Action::Kind::reduce_block:
    case Action::Kind::copy_block:
      work_done(action);
      break;
    case Action::Kind::combine_inline:
      combined_ = true;
      break;
    case Action::Kind::complete:
      CR_ASSERT(action.sequence == completed_ && completed_ < entered_);
      ++completed_;
      combined_ = false;
      // A failed group keeps its words as they are: nobody may take its last entries for done.
      completed_unpublished_ = !failure_;
      failure_met_ = failure_met_ || failure_.has_value();
      if (lost_ && completed_ == entered_) {
        // Every open entry succeeded after all. The next one lacks this member everywhere: it fails without a swap.
        failure_ = Failure{Fault::peer_lost, *lost_, completed_};
        lost_.reset();
      }
      break;
    case Action::Kind::publish_completed:
      completed_unpublished_ = false;
      break;
  }
}

std::vector<Rank> GroupMachine::waiting_for(const Words& words) const {
  std::vector<bool> waits_for(options_->members, false);
  if (completed_ == entered_) {
    if (entered_ >= options_->window) {
      for (std::uint32_t member = 0; member < options_->members; ++member) {
        waits_for[member] = words.completed(Rank{member}) + options_->window <= entered_;
      }
    }
  } else {
    const OpenEntry& lowest = open(completed_);
    bool all_entered = true;
    for (std::uint32_t member = 0; member < options_->members; ++member) {
      waits_for[member] = roster_->present(Rank{member}) && words.entered(Rank{member}) <= completed_;
      all_entered = all_entered && (!waits_for[member] || Rank{member} == options_->self);
    }
    for (std::uint32_t block = 0; all_entered && block < lowest.entry.plan.blocks(); ++block) {
      if (const std::optional<Rank> member = awaited(lowest.entry, block, words)) {
        waits_for[member->value()] = true;
      }
    }
  }
  std::vector<Rank> result;
  for (std::uint32_t member = 0; member < options_->members; ++member) {
    if (waits_for[member] && Rank{member} != options_->self && roster_->present(Rank{member})) {
      result.push_back(Rank{member});
    }
  }
  return result;
}

RankSet GroupMachine::contributors(std::uint64_t sequence) const {
  RankSet result(options_->members);
  for (std::uint32_t member = 0; member < options_->members; ++member) {
    result[member] = roster_->contributes(Rank{member}, sequence);
  }
  return result;
}

Rank GroupMachine::effective_root(const EntryPlan& plan, std::uint64_t sequence) const {
  const bool lowest = options_->lowest_member_is_root && plan.kind == OpKind::broadcast;
  return lowest ? roster_->lowest_contributor(sequence) : plan.root;
}

void GroupMachine::append_state(std::vector<std::uint64_t>& state) const {
  // Cursors and readiness are left out: they only remember what the words say.
  const auto add = [&state](auto value) { state.push_back(static_cast<std::uint64_t>(value)); };
  add(entered_);
  add(completed_);
  add(completed_unpublished_ | combined_ << 1 | frozen_ << 2 | failure_met_ << 3 | lost_.has_value() << 4 |
      failure_.has_value() << 5 | (policy_ != Policy::fail) << 6);
  add(lost_.value_or(Rank{}).value());
  if (failure_) {
    add(failure_->outcome);
    add(failure_->culprit.value());
    add(failure_->from);
  }
  add(work_.stage);
  if (work_.stage != Stage::idle) {
    add(work_.sequence << 32 | work_.block);
    add(std::uint64_t{work_.copied} << 32 | work_.source.value());
  }
  add(view_.term);
  add(view_.n);
  add(epoch_.n);
  add(base_);
  for (const membership::Departure& departure : roster_->departures()) {
    add(departure.slot.value());
    add(roster_->departed_at(departure.slot));
  }
  for (std::uint64_t sequence = completed_; sequence < entered_; ++sequence) {
    const Taking& taking = open(sequence).taking;
    add(std::uint64_t{taking.sources} << 1 | static_cast<std::uint64_t>(taking.announced));
    add(taking.bytes);
  }
}

}  // namespace closeranks::algorithm
