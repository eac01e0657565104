// How an owner takes a block through: reduce into the scratch, publish final, copy to every destination, publish
// distributed - one block at a time, lowest entry first - and what a new owner makes of a block it takes over.
#include "algorithm/group_machine.h"
#include "base/assert.h"

namespace closeranks::algorithm {

Action GroupMachine::own_block(OpenEntry& entry, const Words& words) {
  const EntryPlan& plan = entry.entry.plan;
  while (entry.own_cursor < plan.blocks()) {
    const std::uint32_t block = entry.own_cursor++;
    const std::uint32_t seat = block_seat(plan, options_->members, block);
    if (roster_->seats().owner(seat) != options_->self) {
      continue;
    }
    const BlockWord found = furthest(words, entry.entry.sequence, block, seat);
    if (found.state != BlockState::distributed) {
      begin(entry, block, found);
      return work_action();
    }
  }
  return {};
}

// The furthest state any owner of the seat has published for the block. A final block is at most partly copied, and
// its inputs partly overwritten: it must be found, however many owners have died since (protocol rule 1).
BlockWord GroupMachine::furthest(const Words& words, std::uint64_t sequence, std::uint32_t block,
                                 std::uint32_t seat) const {
  BlockWord best{sequence, BlockState::open, 0};
  std::uint32_t looked_at = 0;
  roster_->seats().for_each_owner(seat, [&](Rank owner) {
    const BlockWord word = BlockWord::unpack(words.block_word(owner, sequence, block));
    if (word.sequence == sequence && word.state > best.state) {
      best = word;
    }
    ++looked_at;
    return best.state != BlockState::distributed && (options_->rules.look_through_chain || looked_at < 2);
  });
  return best;
}

void GroupMachine::begin(const OpenEntry& entry, std::uint32_t block, const BlockWord& found) {
  const BlockPlan planned = block_plan(entry.entry.plan, options_->members, block);
  work_ = Work{};
  work_.sequence = entry.entry.sequence;
  work_.block = block;
  work_.all_destinations = planned.all_destinations;
  work_.destination = planned.destination;
  if (planned.seat % options_->members != options_->self.value()) {
    ++blocks_taken_over_;
  }
  work_.source = found.state == BlockState::final ? Rank{found.holder} : options_->self;
  work_.stage = found.state == BlockState::final ? Stage::copy : Stage::reduce;
  if (!next_destination() || (work_.stage == Stage::copy && !options_->rules.distributed_after_copy)) {
    work_.stage = Stage::publish_distributed;  // its only destination is gone
  }
}

Action GroupMachine::work_action() {
  if (work_.stage == Stage::copy) {
    if (const std::optional<Rank> destination = next_destination()) {
      Action copying = action(Action::Kind::copy_block, work_.sequence);
      copying.block = work_.block;
      copying.destination = *destination;
      copying.source = work_.source;
      return copying;
    }
    work_.stage = stage_after(Stage::copy);
  }
  if (work_.stage == Stage::idle) {
    return {};
  }
  if (work_.stage == Stage::reduce) {
    Action reducing = action(Action::Kind::reduce_block, work_.sequence);
    reducing.block = work_.block;
    return reducing;
  }
  Action publishing = action(Action::Kind::publish_block, work_.sequence);
  publishing.block = work_.block;
  publishing.state = work_.stage == Stage::publish_final ? BlockState::final : BlockState::distributed;
  publishing.holder = options_->self.value();
  return publishing;
}

// Own rank first, then upwards, so that owners do not all write into the same member at once. Excluded members are
// skipped, also when they leave in the middle.
std::optional<Rank> GroupMachine::next_destination() {
  if (!work_.all_destinations) {
    const bool needed = work_.copied == 0 && roster_->present(work_.destination);
    return needed ? std::optional(work_.destination) : std::nullopt;
  }
  for (; work_.copied < options_->members; ++work_.copied) {
    const Rank destination{(options_->self.value() + work_.copied) % options_->members};
    if (roster_->present(destination)) {
      return destination;
    }
  }
  return std::nullopt;
}

// reduce, publish_final, copy, publish_distributed: this order is the recipe. The others show what happens without it.
GroupMachine::Stage GroupMachine::stage_after(Stage stage) const {
  const bool final_first = options_->rules.final_before_copy;
  const bool distributed_last = options_->rules.distributed_after_copy;
  switch (stage) {
    case Stage::idle:
      return Stage::idle;
    case Stage::reduce:
      return final_first ? Stage::publish_final : Stage::copy;
    case Stage::publish_final:
      return final_first && distributed_last ? Stage::copy : Stage::publish_distributed;
    case Stage::copy:
      return !final_first ? Stage::publish_final : distributed_last ? Stage::publish_distributed : Stage::idle;
    case Stage::publish_distributed:
      return distributed_last ? Stage::idle : Stage::copy;
  }
  CR_ASSERT(!"a stage outside its enum");
}

void GroupMachine::work_done(const Action& action) {
  CR_ASSERT(work_.stage != Stage::idle && action.sequence == work_.sequence && action.block == work_.block);
  if (work_.stage == Stage::copy) {
    ++work_.copied;  // there may be more destinations; work_action() looks
  } else {
    work_.stage = stage_after(work_.stage);
  }
}

}  // namespace closeranks::algorithm
