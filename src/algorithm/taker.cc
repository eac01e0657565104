// How a member takes its part of an entry: its own output from the inputs of others, a bounded range at a time, and
// distributed after the last byte. It alone writes there. Sources keep their inputs until everybody present has taken
// (completion.cc), so whichever source dies, all survivors read the same; a dead taker's part is nobody's concern.
#include <algorithm>

#include "algorithm/group_machine.h"
#include "base/assert.h"

namespace closeranks::algorithm {

TakePlan GroupMachine::taking_of(const Entry& entry, Rank taker) const {
  return take_plan(entry.plan, effective_root(entry.plan, entry.sequence), taker);
}

std::optional<Rank> GroupMachine::awaited_taker(const Entry& entry, Rank taker, const Words& words) const {
  const Rules& rules = options_->rules;
  const bool gone = !roster_->present(taker) && rules.drop_parts_of_the_lost;
  const bool ignored = taker != options_->self && !rules.wait_for_takers;
  if (gone || ignored || taking_of(entry, taker).nothing) {
    return std::nullopt;
  }
  if (taker == options_->self) {
    const OpenEntry& own = open(entry.sequence);
    return own.taking.announced && all_taken(own) ? std::nullopt : std::optional(taker);
  }
  const BlockWord word = BlockWord::unpack(words.block_word(taker, entry.sequence, taker.value()));
  const bool distributed = word.sequence == entry.sequence && word.state == BlockState::distributed;
  return distributed ? std::nullopt : std::optional(taker);
}

bool GroupMachine::all_taken(const OpenEntry& entry) const {
  const EntryPlan& plan = entry.entry.plan;
  const bool all_sources = taking_of(entry.entry, options_->self).all_sources;
  return plan.unit_bytes == 0 || entry.taking.sources == (all_sources ? options_->members : 1);
}

// The own rank's input first, then upwards, so that members do not all read the same source at once. Which sources
// contribute is final: the entry is ready, so each of them has entered, or has left with a decided number.
Action GroupMachine::take(const OpenEntry& entry) const {
  const std::uint64_t sequence = entry.entry.sequence;
  const EntryPlan& plan = entry.entry.plan;
  const TakePlan planned = taking_of(entry.entry, options_->self);
  if (planned.nothing) {
    return {};
  }
  const Taking& taking = entry.taking;
  const bool over = all_taken(entry);
  if (!taking.announced && (over || !options_->rules.distributed_after_taking)) {
    Action publishing = action(Action::Kind::publish_block, sequence);
    publishing.block = options_->self.value();
    publishing.state = BlockState::distributed;
    publishing.holder = options_->self.value();
    publishing.destination = options_->self;
    return publishing;
  }
  if (over) {
    return {};
  }
  Action result = action(planned.reduced ? Action::Kind::take_reduced : Action::Kind::take_block, sequence);
  result.block = options_->self.value();
  result.offset = taking.bytes;
  result.bytes = std::min(take_step(plan), plan.unit_bytes - taking.bytes);
  result.input_unit = planned.input_unit;
  if (!planned.reduced) {
    result.source =
        planned.all_sources ? Rank{(options_->self.value() + taking.sources) % options_->members} : planned.source;
    result.output_unit = planned.all_sources ? result.source.value() : 0;
    result.zeros = !roster_->contributes(result.source, sequence);
  }
  return result;
}

void GroupMachine::taken(const Action& action) {
  OpenEntry& entry = open(action.sequence);
  CR_ASSERT(entry.entry.sequence == action.sequence && action.block == options_->self.value());
  Taking& taking = entry.taking;
  if (action.kind == Action::Kind::publish_block) {
    taking.announced = true;
    return;
  }
  CR_ASSERT(action.offset == taking.bytes);
  taking.bytes += action.bytes;
  if (taking.bytes == entry.entry.plan.unit_bytes) {
    taking.bytes = 0;
    ++taking.sources;
  }
}

}  // namespace closeranks::algorithm
