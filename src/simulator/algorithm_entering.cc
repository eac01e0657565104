// What a member does before its machine runs an entry: getting hold of the others' memory, copying its data in,
// describing the call, entering.
#include <algorithm>
#include <string>

#include "simulator/algorithm_text.h"
#include "simulator/algorithm_world.h"

namespace closeranks::simulator {

// What a member's `connected` must be for its epoch of the group.
std::uint64_t AlgorithmWorld::connected_word(const Member& member) const {
  return setting_->scenario.rules.connect_per_epoch ? algorithm::connected_word(member.machine.epoch()) : 1;
}

// Memory is got from its living owner. Connected: this member holds the memory of all present ones.
bool AlgorithmWorld::may_connect(std::uint32_t index) {
  const Member& member = members_[index];
  const bool frozen = member.machine.frozen() && setting_->scenario.rejoin_at;  // a newcomer has not joined yet
  if (frozen) {
    return false;
  }
  if (memory_.connected(Rank{index}) >= connected_word(member)) {
    // Without the rule, memory is got all the same, at some time.
    for (std::uint32_t other = 0; !setting_->scenario.rules.connect_per_epoch && other < count(); ++other) {
      const bool held = (member.holds >> other & 1) != 0;
      if (member.machine.present()[other] && !held && members_[other].alive) {
        return true;
      }
    }
    return false;
  }
  for (std::uint32_t other = 0; other < count(); ++other) {
    const bool held = (member.holds >> other & 1) != 0;
    if (member.machine.present()[other] && !held && !members_[other].alive) {
      return !setting_->scenario.surrounding.connect_before_entering;  // wait for the view without it
    }
  }
  return true;
}

void AlgorithmWorld::connect(std::uint32_t index) {
  for (std::uint32_t other = 0; other < count(); ++other) {
    members_[index].holds |= members_[other].alive ? std::uint32_t{1} << other : 0;
  }
  memory_.connected(Rank{index}) = std::max(memory_.connected(Rank{index}), connected_word(members_[index]));
}

bool AlgorithmWorld::all_connected(const Member& member) {
  for (std::uint32_t other = 0; other < count(); ++other) {
    const bool held = (member.holds >> other & 1) != 0;
    if (member.machine.present()[other] && (!held || memory_.connected(Rank{other}) < connected_word(member))) {
      return false;
    }
  }
  return true;
}

// The region is free once the entry that used it is complete here; ring slots are the machine's business.
bool AlgorithmWorld::may_go_on_entering(std::uint32_t index) {
  Member& member = members_[index];
  const AlgorithmScenario& scenario = setting_->scenario;
  if (member.early) {
    return true;  // entered already, data still to come
  }
  const std::uint64_t sequence = member.machine.next_sequence();
  if (sequence >= scenario.calls.size() || (scenario.rejoin_at == sequence && !boundary_passed_)) {
    return false;
  }
  const bool region_free = sequence < scenario.regions || member.machine.completed() > sequence - scenario.regions;
  const bool copying = scenario.cut_entering && member.entering < Entering::copied;
  const MemoryView view(memory_, unmapped_for(member));
  if (sequence == member.machine.base() && scenario.surrounding.connect_before_entering && !all_connected(member)) {
    return false;
  }
  return region_free && !member.machine.failure() && (copying || member.machine.may_enter(view));
}

void AlgorithmWorld::go_on_entering(std::uint32_t index, std::string* line) {
  Member& member = members_[index];
  const AlgorithmScenario& scenario = setting_->scenario;
  const std::uint64_t sequence = member.early ? member.machine.next_sequence() - 1 : member.machine.next_sequence();
  const algorithm::EntryPlan& plan = setting_->plans[sequence];
  const Rank rank{index};
  const bool gives = plan.kind != OpKind::scatter || plan.root == rank;
  const std::uint32_t units = gives ? inputs_of(plan.kind, count()) : 0;
  const std::uint32_t cells = setting_->cells(sequence);
  const auto copy_in = [&](std::uint32_t half) {
    for (std::uint32_t cell = half; cell < units * cells; cell += 2) {
      memory_.input(rank, sequence, cell / cells, cell % cells) = input_of(rank, sequence, cell);
    }
  };
  const auto describe_entry = [&] {
    memory_.signature(rank, sequence) = setting_->signature(rank, sequence);
    for (std::uint32_t unit = 0; plan.inlined && unit < count(); ++unit) {
      memory_.payload(rank, sequence, unit) = input_of(rank, sequence, unit);
    }
  };
  const auto enter = [&] {
    const std::uint64_t step_start = sequence - sequence % scenario.entries_per_step;
    member.machine.enter({sequence, plan, setting_->signature(rank, sequence), step_start});
    memory_.entered(rank) = sequence + 1;
  };
  const char* did = "enters";
  if (!scenario.surrounding.entered_after_data) {
    if (!member.early) {
      enter();
      did = "enters, before its data,";
    } else {
      copy_in(0);
      copy_in(1);
      describe_entry();
      did = "copies its data into";
    }
    member.early = !member.early;
  } else if (!scenario.cut_entering) {
    copy_in(0);
    copy_in(1);
    describe_entry();
    enter();
  } else {
    switch (member.entering) {
      case Entering::idle:
        copy_in(0);
        did = "copies the first half of its data into";
        break;
      case Entering::first_half:
        copy_in(1);
        did = "copies the second half of its data into";
        break;
      case Entering::copied:
        describe_entry();
        did = "describes";
        break;
      case Entering::described:
        enter();
        break;
    }
    member.entering = static_cast<Entering>((static_cast<unsigned>(member.entering) + 1) % 4);
  }
  if (line != nullptr) {
    *line = "member " + std::to_string(index) + " " + did + " entry " + std::to_string(sequence);
  }
}

}  // namespace closeranks::simulator
