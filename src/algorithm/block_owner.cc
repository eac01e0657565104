// How a member comes to own a block: it claims it, or is the heir of one that had; and how it takes it through: reduce
// into the scratch, publish final, copy to every destination, publish distributed - one block at a time, lowest entry
// first.
#include <algorithm>

#include "algorithm/group_machine.h"
#include "base/assert.h"

namespace closeranks::algorithm {

Action GroupMachine::own_block(OpenEntry& entry, const Words& words) {
  const EntryPlan& plan = entry.entry.plan;
  const std::uint64_t sequence = entry.entry.sequence;
  const Rank home = home_of_words(sequence);
  for (const std::uint32_t places = claim_places(plan, options_->members); entry.own_cursor < places;) {
    const std::optional<std::uint32_t> block = claim_order(plan, options_->members, options_->self, entry.own_cursor);
    if (!block) {
      ++entry.own_cursor;
      continue;
    }
    const std::uint64_t word = words.block_word(home, sequence, *block);
    if (BlockWord::unclaimed(word, sequence)) {
      Action claiming = action(Action::Kind::claim_block, sequence);
      claiming.block = *block;
      claiming.state = BlockState::claimed;
      claiming.holder = options_->self.value();
      claiming.destination = home;
      return claiming;  // the word says who had it first
    }
    ++entry.own_cursor;
    const BlockWord found = BlockWord::unpack(word);
    // A final block is at most partly copied, and its inputs partly overwritten (protocol rule 1): its heir copies the
    // rest out of the holder's scratch, however many heirs have died over it.
    if (found.state != BlockState::distributed && roster_->seats().heir(Rank{found.holder}, *block) == options_->self) {
      begin(entry, *block, found);
      return work_action();
    }
  }
  return {};
}

// Every member has entered that is to contribute, so every one of them holds the segment of each; and who contributes
// does not change any more (protocol rules 6, 16).
Rank GroupMachine::home_of_words(std::uint64_t sequence) const {
  if (!options_->rules.words_stay) {
    const RankSet& present = roster_->present();
    return Rank{static_cast<std::uint32_t>(std::find(present.begin(), present.end(), true) - present.begin())};
  }
  return roster_->lowest_contributor(sequence);
}

void GroupMachine::begin(const OpenEntry& entry, std::uint32_t block, const BlockWord& found) {
  const BlockPlan planned = block_plan(entry.entry.plan, block);
  work_ = Work{};
  work_.sequence = entry.entry.sequence;
  work_.block = block;
  work_.all_destinations = planned.all_destinations;
  work_.destination = planned.destination;
  if (found.holder != options_->self.value()) {
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
  publishing.destination = home_of_words(work_.sequence);
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
