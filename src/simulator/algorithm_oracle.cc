// What must hold at each step: one writer per block, inputs overwritten by final values only, nothing written into a
// member that has returned, results that are complete and equal on all survivors, failures that are justified, and in
// the end nobody who waits for ever.
#include <algorithm>
#include <bit>

#include "simulator/algorithm_text.h"
#include "simulator/algorithm_world.h"

namespace closeranks::simulator {

using algorithm::Action;

void AlgorithmWorld::fail(const std::string& what) {
  if (!violation_) {
    violation_ = what;
  }
}

std::uint32_t AlgorithmWorld::contributor_bits(const Member& member, std::uint64_t sequence) const {
  std::uint32_t bits = 0;
  for (std::uint32_t other = 0; other < count(); ++other) {
    bits |= member.machine.contributes(Rank{other}, sequence) ? std::uint32_t{1} << other : 0;
  }
  return bits;
}

Value AlgorithmWorld::read_input(std::uint32_t reader, Rank source, std::uint64_t sequence, std::uint32_t unit,
                                 std::uint32_t cell) {
  const Member& owner = members_[source.value()];
  if (owner.alive && !owner.suspected && !owner.machine.failure() && owner.machine.completed() > sequence) {
    fail("member " + std::to_string(reader) + " reads the input of member " + std::to_string(source.value()) +
         " to entry " + std::to_string(sequence) + ", which it has completed");
  }
  if (memory_.entered(source) > sequence + setting_->scenario.window) {
    fail("member " + std::to_string(reader) + " reads the input of member " + std::to_string(source.value()) +
         " to entry " + std::to_string(sequence) + ", whose descriptor describes a later one");
  }
  const bool held = (unmapped_for(members_[reader]) >> source.value() & 1) == 0;
  return held ? memory_.input(source, sequence, unit, cell) : 0;
}

std::optional<Value> AlgorithmWorld::expected(const Member& knower, std::uint32_t self, std::uint64_t sequence,
                                              std::uint32_t unit, std::uint32_t cell) const {
  const ScenarioCall& call = setting_->scenario.calls[sequence];
  const std::uint32_t cells = setting_->cells(sequence);
  const std::uint32_t own_unit = self * cells + cell;  // where an input is a list
  const auto reduced = [&](std::uint32_t place) {
    return make_value(Content::reduced, sequence, place, contributor_bits(knower, sequence));
  };
  const auto given = [&](std::uint32_t source, std::uint32_t place) {
    const bool contributes = knower.machine.contributes(Rank{source}, sequence);
    return contributes ? input_of(Rank{source}, sequence, place) : zero_value;
  };
  const std::uint32_t root = call.root.value();
  switch (call.kind) {
    case OpKind::all_reduce:
      return reduced(cell);
    case OpKind::reduce:
      return self == root ? std::optional(reduced(cell)) : std::nullopt;
    case OpKind::broadcast: {
      const std::uint32_t from = setting_->scenario.lowest_member_is_root
                                     ? static_cast<std::uint32_t>(std::countr_zero(contributor_bits(knower, sequence)))
                                     : root;
      return self == from ? std::nullopt : std::optional(given(from, cell));
    }
    case OpKind::all_gather:
      return given(unit, cell);
    case OpKind::gather:
      return self == root ? std::optional(given(unit, cell)) : std::nullopt;
    case OpKind::reduce_scatter:
      return reduced(own_unit);
    case OpKind::scatter:
      return given(root, own_unit);
    case OpKind::all_to_all:
      return given(unit, own_unit);
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  return std::nullopt;
}

void AlgorithmWorld::check_writer(std::uint32_t member, std::uint64_t sequence, std::uint32_t block) {
  std::uint8_t& writer = writers_[sequence * setting_->blocks + block];
  if (writer != 0 && writer != member + 1 && members_[writer - 1].alive) {
    fail("block " + std::to_string(block) + " of entry " + std::to_string(sequence) +
         " has two living writers: " + std::to_string(writer - 1) + " and " + std::to_string(member));
  }
  writer = static_cast<std::uint8_t>(member + 1);
}

void AlgorithmWorld::check_write(std::uint32_t index, std::uint32_t target_index, std::uint64_t sequence,
                                 std::uint32_t unit, std::uint32_t cell, Value value) {
  const Member& target = members_[target_index];
  const std::string where = "part " + std::to_string(cell / 2) + " of unit " + std::to_string(unit) + " of entry " +
                            std::to_string(sequence) + " at member " + std::to_string(target_index);
  if (target.alive && !target.suspected && !target.machine.failure()) {
    if (target.machine.completed() > sequence) {
      fail("member " + std::to_string(index) + " writes " + where + ", which has completed that entry");
    } else if (memory_.entered(Rank{target_index}) <= sequence) {
      fail("member " + std::to_string(index) + " writes " + where + ", which has not entered that entry");
    }
  }
  const std::optional<Value> wanted = expected(members_[index], target_index, sequence, unit, cell);
  if (value != wanted) {
    fail("member " + std::to_string(index) + " writes " + describe(value) + " to " + where + " instead of " +
         (wanted ? describe(*wanted) : "nothing"));
  }
}

void AlgorithmWorld::check_inline(std::uint32_t index, std::uint64_t sequence) {
  const Member& member = members_[index];
  const algorithm::EntryPlan& plan = setting_->plans[sequence];
  const Rank root = member.machine.effective_root(plan, sequence);
  if ((plan.kind == OpKind::reduce || plan.kind == OpKind::gather) && Rank{index} != root) {
    fail("member " + std::to_string(index) + " combines entry " + std::to_string(sequence) + ", which is the root's");
  }
  for (std::uint32_t source = 0; source < count(); ++source) {
    const bool from_root = plan.kind == OpKind::broadcast || plan.kind == OpKind::scatter;
    if (!member.machine.contributes(Rank{source}, sequence) || (from_root && Rank{source} != root)) {
      continue;
    }
    const bool held = (unmapped_for(member) >> source & 1) == 0;
    const Value value = held ? memory_.payload(Rank{source}, sequence, index) : 0;
    if (value != input_of(Rank{source}, sequence, index)) {
      fail("member " + std::to_string(index) + " combines " + describe(value) + " of member " + std::to_string(source) +
           " into entry " + std::to_string(sequence));
    }
  }
}

void AlgorithmWorld::check_outputs(std::uint32_t index, std::uint64_t sequence) {
  const ScenarioCall& call = setting_->scenario.calls[sequence];
  const std::uint32_t units = outputs_of(call.kind, count());
  const std::uint32_t cells = setting_->cells(sequence);
  for (std::uint32_t place = 0; place < units * cells; ++place) {
    const std::uint32_t unit = place / cells;
    const std::uint32_t cell = place % cells;
    std::optional<Value> wanted = expected(members_[index], index, sequence, unit, cell);
    if (!wanted && (call.kind == OpKind::broadcast || call.kind == OpKind::reduce)) {
      wanted = input_of(Rank{index}, sequence, cell);  // the caller's own, as it was
    }
    const Value value = wanted ? memory_.output(Rank{index}, sequence, unit, cell) : zero_value;
    if (wanted && value != wanted) {
      fail("member " + std::to_string(index) + " completes entry " + std::to_string(sequence) + " with " +
           describe(value) + " in part " + std::to_string(cell / 2) + " of unit " + std::to_string(unit) +
           " instead of " + describe(*wanted));
    }
  }
}

void AlgorithmWorld::check_completion(std::uint32_t index, const Action& action) {
  const std::uint64_t sequence = action.sequence;
  const std::string who = "member " + std::to_string(index) + " completes entry " + std::to_string(sequence);
  const AlgorithmScenario& scenario = setting_->scenario;
  const OpKind kind = scenario.calls[sequence].kind;
  Member& member = members_[index];
  const auto entries = scenario.calls.size();
  Result result = Result::success;
  std::uint64_t detail = 0;
  if (action.outcome == Fault::none) {
    check_outputs(index, sequence);
    detail = contributor_bits(member, sequence);
    // A lost entry compares nothing; after it the group goes on.
    const bool odd_counts = scenario.odd && scenario.odd->sequence >= member.machine.base() &&
                            (detail >> scenario.odd->member.value() & 1) != 0 &&
                            std::popcount(static_cast<std::uint32_t>(detail)) > 1;
    const bool noticed_nothing =
        odd_counts && (scenario.odd->sequence == sequence ||
                       (scenario.odd->sequence < sequence &&
                        static_cast<Result>(results_[index * entries + scenario.odd->sequence] >> 32) != Result::lost));
    if (noticed_nothing) {
      fail(who + " although member " + std::to_string(scenario.odd->member.value()) + " made another call");
    }
    const std::uint64_t step_start = sequence - sequence % scenario.entries_per_step;
    const std::uint32_t began = contributor_bits(member, std::max(step_start, member.machine.base()));
    if (scenario.policy == Policy::exact && (began & ~detail) != 0) {
      fail(who + " without a member that has given input to the same step");
    }
  } else if (action.outcome == Fault::incomplete) {
    result = Result::incomplete;
    detail = action.culprit.value();
    if (scenario.policy != Policy::exact || member.machine.contributes(action.culprit, sequence)) {
      fail(who + " as incomplete, although it is not");
    }
  } else if (action.outcome == Fault::peer_lost) {
    result = Result::lost;
    detail = action.culprit.value();
    const bool leans_on_root = kind == OpKind::gather || kind == OpKind::scatter || kind == OpKind::reduce ||
                               (kind == OpKind::broadcast && !scenario.lowest_member_is_root);
    const Rank root = scenario.calls[sequence].root;
    if (scenario.policy != Policy::fail &&
        (!leans_on_root || member.machine.contributes(root, sequence) || root != action.culprit)) {
      fail(who + " with a lost peer, although it can be repaired");
    }
    const Member& culprit = members_[action.culprit.value()];
    if (culprit.alive && !culprit.suspected) {
      fail(who + " blaming member " + std::to_string(action.culprit.value()) + ", which is alive");
    }
  } else if (action.outcome == Fault::timeout) {
    result = Result::given_up;
  } else {
    result = Result::mismatch;
    detail = action.culprit.value();
    if (!scenario.odd || scenario.odd->sequence > sequence) {
      fail(who + " with a mismatch where there is none");
    } else if (count() > 2 && scenario.odd->member != action.culprit && crashes_ == 0) {
      fail(who + " blaming member " + std::to_string(action.culprit.value()) + " for another's call");
    }
  }
  const std::uint64_t packed = static_cast<std::uint64_t>(result) << 32 | detail;
  results_[index * entries + sequence] = packed;
  for (std::uint32_t other = 0; other < count(); ++other) {
    const std::uint64_t theirs = results_[other * entries + sequence];
    const Member& peer = members_[other];
    const bool survives = peer.alive && !peer.suspected && member.alive && !member.suspected;
    // Who gave up by itself says nothing of the op.
    const bool given_up = result == Result::given_up || static_cast<Result>(theirs >> 32) == Result::given_up;
    if (!survives || given_up || theirs == 0 || theirs == packed) {
      continue;
    }
    // Under `fail` a member may learn of the mismatch, or of the loss, first; both are failures.
    const bool both_fail = static_cast<Result>(theirs >> 32) != Result::success && result != Result::success;
    if (!both_fail || scenario.policy != Policy::fail) {
      fail(who + " otherwise than member " + std::to_string(other) + " did");
    }
  }
}

// The engine has no mapping to write to.
void AlgorithmWorld::check_held(std::uint32_t index, Rank home) {
  const bool stays = setting_->scenario.surrounding.memory_of_the_dead_stays;
  if (stays && (unmapped_for(members_[index]) >> home.value() & 1) != 0) {
    fail("member " + std::to_string(index) + " writes a word of member " + std::to_string(home.value()) +
         ", whose memory it does not hold");
  }
}

void AlgorithmWorld::check_decision(const membership::GroupResolution& resolution) {
  for (const membership::Departure& departure : resolution.departures) {
    const std::uint32_t index = departure.slot.value();
    if (departure.last_op > memory_.entered(Rank{index})) {
      fail("member " + std::to_string(index) + " counts in entries it has not entered");
    }
    bool some_survivor_knows = false;
    std::uint64_t alive_entered = 0;
    std::uint64_t answered_entered = 0;  // by those who died after their answer too
    for (std::uint32_t other = 0; other < count(); ++other) {
      if (in_job(other)) {
        const bool lives = members_[other].alive;
        some_survivor_knows = some_survivor_knows || !members_[other].machine.present()[index];
        answered_entered = std::max(answered_entered, memory_.entered(Rank{other}));
        alive_entered = std::max(alive_entered, lives ? memory_.entered(Rank{other}) : 0);
      }
    }
    // A dead member's input counts as soon as some survivor had entered too, and else never (protocol rule 16).
    const std::uint64_t entered = memory_.entered(Rank{index});
    if (!some_survivor_knows && (departure.last_op < std::min(entered, alive_entered) ||
                                 departure.last_op > std::min(entered, answered_entered))) {
      fail("member " + std::to_string(index) + " had entered " + std::to_string(entered) + " entries, survivors " +
           std::to_string(alive_entered) + "; " + std::to_string(departure.last_op) + " of its inputs count");
    }
  }
}

void AlgorithmWorld::check_finished() {
  const AlgorithmScenario& scenario = setting_->scenario;
  for (std::uint32_t index = 0; index < count(); ++index) {
    const Member& member = members_[index];
    if (!member.alive || member.machine.failure()) {
      continue;
    }
    const std::uint64_t completed = member.machine.completed();
    if (completed < scenario.calls.size() && give_ups_ == 0) {  // they wait for the one that gave up, and time out too
      fail("member " + std::to_string(index) + " waits for ever in entry " + std::to_string(completed));
    }
  }
}

}  // namespace closeranks::simulator
