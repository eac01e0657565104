// Steps of the members: acting, dying. Connecting and entering: algorithm_entering.cc; the view change's steps:
// algorithm_view_change.cc; what is checked at each: algorithm_oracle.cc.
#include "simulator/algorithm_world.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "simulator/algorithm_text.h"

namespace closeranks::simulator {

using algorithm::Action;
using algorithm::DecisionWord;

AlgorithmWorld::AlgorithmWorld(std::shared_ptr<const AlgorithmSetting> setting)
    : setting_(std::move(setting)), memory_(setting_) {
  const AlgorithmScenario& scenario = setting_->scenario;
  for (std::uint32_t member = 0; member < scenario.members; ++member) {
    Member& added = members_.emplace_back(make_member(member));
    added.holds = scenario.connecting ? std::uint32_t{1} << member : (std::uint32_t{1} << scenario.members) - 1;
    memory_.connected(Rank{member}) = scenario.connecting ? 0 : 1;
  }
  answers_.resize(scenario.members);
  decisions_.resize(scenario.members);
  results_.resize(scenario.members * scenario.calls.size());
  writers_.resize(scenario.calls.size() * setting_->blocks);
}

AlgorithmWorld::Member AlgorithmWorld::make_member(std::uint32_t member) const {
  const AlgorithmScenario& scenario = setting_->scenario;
  algorithm::MachineOptions options;
  options.members = scenario.members;
  options.self = Rank{member};
  for (std::uint32_t slot = 0; slot < scenario.members; ++slot) {
    options.slots.push_back(Slot{slot});
  }
  options.policy = scenario.policy;
  options.lowest_member_is_root = scenario.lowest_member_is_root;
  options.window = scenario.window;
  options.rules = scenario.rules;
  return Member(algorithm::GroupMachine(std::move(options)));
}

std::uint32_t AlgorithmWorld::unmapped_for(const Member& member) const {
  std::uint32_t unmapped = ~member.holds;
  for (std::uint32_t other = 0; !setting_->scenario.surrounding.memory_of_the_dead_stays && other < count(); ++other) {
    unmapped |= member.machine.present()[other] ? 0 : std::uint32_t{1} << other;
  }
  return unmapped;
}

void AlgorithmWorld::list_steps(std::vector<Step>& steps) {
  const AlgorithmScenario& scenario = setting_->scenario;
  const bool somebody_died = std::any_of(members_.begin(), members_.end(), [](const Member& m) { return !m.alive; });
  for (std::uint32_t index = 0; index < count(); ++index) {
    Member& member = members_[index];
    if (!member.alive) {
      continue;
    }
    const auto rank = static_cast<std::uint8_t>(index);
    const MemoryView view(memory_, unmapped_for(member));
    // A copy is asked: the machine itself decides when it acts, by what the words say then.
    if (member.pending.kind != Action::Kind::none ||
        algorithm::GroupMachine(member.machine).next(view).kind != Action::Kind::none) {
      steps.push_back({Step::Kind::act, rank});
    }
    if (may_connect(index)) {
      steps.push_back({Step::Kind::connect, rank});
    }
    if (may_go_on_entering(index)) {
      steps.push_back({Step::Kind::enter, rank});
    }
    const bool between_actions = member.pending.kind == Action::Kind::none;
    if (!scenario.coordinated && somebody_died && !member.told && between_actions) {
      steps.push_back({Step::Kind::lose, rank});
    }
    if (member.suspected) {
      steps.push_back({Step::Kind::fence, rank});
    } else if (crashes_ < scenario.crashes) {
      steps.push_back({Step::Kind::crash, rank});
      if (!scenario.surrounding.fence_before_propose && scenario.coordinated) {
        steps.push_back({Step::Kind::suspect, rank});
      }
    }
    if (may_give_up(member)) {
      steps.push_back({Step::Kind::give_up, rank});
    }
  }
  if (scenario.coordinated) {
    list_view_steps(steps);
    list_join_steps(steps);
  }
}

void AlgorithmWorld::apply(const Step& step, std::string* line) {
  Member& member = members_[step.member];
  switch (step.kind) {
    case Step::Kind::act:
      act(step.member, line);
      return;
    case Step::Kind::enter:
      go_on_entering(step.member, line);
      return;
    case Step::Kind::connect:
      connect(step.member);
      break;
    case Step::Kind::lose: {
      const auto dead = std::find_if(members_.begin(), members_.end(), [](const Member& m) { return !m.alive; });
      member.told = true;
      member.machine.peer_lost(Rank{static_cast<std::uint32_t>(dead - members_.begin())});
      break;
    }
    case Step::Kind::crash:
      ++crashes_;
      member.alive = false;
      break;
    case Step::Kind::suspect:
      ++crashes_;
      member.suspected = true;
      break;
    case Step::Kind::fence:
      member.alive = false;
      break;
    case Step::Kind::give_up:
      ++give_ups_;
      member.machine.fail_all(Fault::timeout, Rank{step.member});
      break;
    case Step::Kind::propose:
      propose();
      break;
    case Step::Kind::freeze:
      freeze(step.member);
      break;
    case Step::Kind::install:
      install(step.member);
      break;
    case Step::Kind::join:
      join(step.member);
      break;
    case Step::Kind::pass:
      boundary_passed_ = true;
      break;
    case Step::Kind::restart:
      restart_coordinator();
      break;
  }
  if (line != nullptr) {
    *line = describe(step, view_);
  }
}

bool AlgorithmWorld::is_cut(const AlgorithmScenario& scenario, const Action& action) {
  switch (action.kind) {
    case Action::Kind::copy_block:
      return true;
    case Action::Kind::claim_block:
      return scenario.cut_claiming;
    case Action::Kind::reduce_block:
      return scenario.cut_reducing;
    case Action::Kind::take_block:
    case Action::Kind::take_reduced:
      return scenario.cut_taking;
    default:
      return false;
  }
}

// An op of its own has timed out, while a word of another would have come.
bool AlgorithmWorld::may_give_up(const Member& member) const {
  const algorithm::GroupMachine& machine = member.machine;
  return give_ups_ < setting_->scenario.give_ups && machine.completed() < machine.entered() && !machine.failure() &&
         member.pending.kind == Action::Kind::none;
}

void AlgorithmWorld::act(std::uint32_t index, std::string* line) {
  Member& member = members_[index];
  const bool second = member.pending.kind != Action::Kind::none;
  const MemoryView view(memory_, unmapped_for(member));
  const Action action = second ? member.pending : member.machine.next(view);
  CR_ASSERT(action.kind != Action::Kind::none);
  const bool cut = is_cut(setting_->scenario, action);
  if (line != nullptr) {
    *line = "member " + std::to_string(index) + " " + (cut ? (second ? "(second half) " : "(first half) ") : "") +
            describe(action);
  }
  if (action.kind == Action::Kind::claim_block) {
    if (second || !cut) perform(index, action, true);  // the first half was the look
  } else if (cut) {
    perform(index, action, second);
  } else {
    perform(index, action, false);
    if (action.kind == Action::Kind::reduce_block || action.kind == Action::Kind::take_block ||
        action.kind == Action::Kind::take_reduced) {
      perform(index, action, true);
    }
  }
  member.pending = cut && !second ? action : Action{};
  if (member.pending.kind == Action::Kind::none) {
    member.machine.done(action);
  }
}

void AlgorithmWorld::perform(std::uint32_t index, const Action& action, bool second_half) {
  Member& member = members_[index];
  const Rank self{index};
  const std::uint64_t sequence = action.sequence;
  const std::uint32_t half = second_half ? 1 : 0;
  switch (action.kind) {
    case Action::Kind::none:
      break;
    case Action::Kind::reduce_block:
      check_writer(index, sequence, action.block);
      memory_.scratch(self, half) = reduce_inputs(index, sequence, 0, 2 * action.block + half);
      break;
    case Action::Kind::claim_block: {
      check_held(index, action.destination);
      std::uint64_t& word = memory_.block_word(action.destination, sequence, action.block);
      if (!setting_->scenario.rules.claim_by_swap || algorithm::BlockWord::unclaimed(word, sequence)) {
        word = action.word().pack();
      }
      break;
    }
    case Action::Kind::publish_block:
      check_held(index, action.destination);
      memory_.block_word(action.destination, sequence, action.block) = action.word().pack();
      if (action.state == algorithm::BlockState::distributed) {
        writers_[sequence * setting_->blocks + action.block] = 0;
      }
      break;
    case Action::Kind::copy_block: {
      check_writer(index, sequence, action.block);
      const bool held = (unmapped_for(member) >> action.source.value() & 1) == 0;
      const Value value = held ? memory_.scratch(action.source, half) : 0;
      const std::uint32_t cell = 2 * action.block + half;
      check_write(index, action.destination.value(), sequence, 0, cell, value);
      memory_.output(action.destination, sequence, 0, cell) = value;
      break;
    }
    case Action::Kind::take_block:
    case Action::Kind::take_reduced:
      take(index, action, half);
      break;
    case Action::Kind::combine_inline:
      check_inline(index, sequence);
      break;
    case Action::Kind::decide: {
      std::uint64_t& word = memory_.decision_word(sequence);
      if (DecisionWord::undecided(word, sequence)) {
        word = DecisionWord{sequence, action.decision, action.culprit.value()}.pack();
      }
      break;
    }
    case Action::Kind::complete: {
      check_completion(index, action);
      // The memory is the caller's again. What peers see of that of an op that failed with its group stays as it is:
      // some of them may be at it still.
      const bool everywhere = !member.machine.failure() || action.outcome == Fault::mismatch;
      if (everywhere || !setting_->scenario.surrounding.given_up_memory_stays) {
        memory_.reuse(self, sequence);
      }
      break;
    }
    case Action::Kind::publish_completed:
      memory_.completed(self) = sequence + 1;
      break;
  }
}

Value AlgorithmWorld::reduce_inputs(std::uint32_t index, std::uint64_t sequence, std::uint32_t unit,
                                    std::uint32_t cell) {
  Value sum = zero_value;
  for (std::uint32_t source = 0; source < count(); ++source) {
    if (members_[index].machine.contributes(Rank{source}, sequence)) {
      sum = reduce_one(sum, read_input(index, Rank{source}, sequence, unit, cell));
    }
  }
  return sum;
}

void AlgorithmWorld::take(std::uint32_t index, const Action& action, std::uint32_t half) {
  const std::uint64_t step = algorithm::take_step(setting_->plans[action.sequence]);
  CR_ASSERT(action.bytes == step && action.offset % step == 0 && action.block == index);
  const auto cell = static_cast<std::uint32_t>(2 * (action.offset / step) + half);
  check_writer(index, action.sequence, action.block);
  Value value = zero_value;
  if (action.kind == Action::Kind::take_reduced) {
    value = reduce_inputs(index, action.sequence, action.input_unit, cell);
  } else if (!action.zeros) {
    value = read_input(index, action.source, action.sequence, action.input_unit, cell);
  }
  check_write(index, index, action.sequence, action.output_unit, cell, value);
  memory_.output(Rank{index}, action.sequence, action.output_unit, cell) = value;
}

std::uint64_t AlgorithmWorld::blocks_taken_over() const {
  std::uint64_t blocks = 0;
  for (const Member& member : members_) {
    blocks += member.machine.blocks_taken_over();
  }
  return blocks;
}

std::uint64_t AlgorithmWorld::hash() const {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  const auto add = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  };
  for (const std::uint64_t word : memory_.words()) {
    add(word);
  }
  thread_local std::vector<std::uint64_t> state;  // one buffer for millions of states
  for (std::uint32_t index = 0; index < count(); ++index) {
    const Member& member = members_[index];
    add(member.alive | member.suspected << 1 | member.told << 2 | member.alone << 5 | member.early << 3 |
        excluded_[index] << 4 | std::uint64_t{member.holds} << 24 | std::uint64_t{generation_[index]} << 40 |
        static_cast<std::uint64_t>(member.entering) << 8 | static_cast<std::uint64_t>(member.pending.kind) << 16);
    // Of other actions the machine's state says which it is; a claim may be of any block that was open at the look.
    if (member.pending.kind == Action::Kind::claim_block) {
      add(member.pending.sequence << 40 | std::uint64_t{member.pending.block} << 8 |
          member.pending.destination.value());
    }
    add(answers_[index].digest);
    add(decisions_[index].digest);
    if (member.alive) {
      state.clear();
      member.machine.append_state(state);
      for (const std::uint64_t word : state) {
        add(word);
      }
    }
  }
  for (const std::uint64_t result : results_) {
    add(result);
  }
  for (const std::uint8_t writer : writers_) {
    add(writer);
  }
  for (const std::uint8_t member : exclusions_) {
    add(member);
  }
  add(crashes_ | std::uint64_t{restarts_} << 16 | std::uint64_t{collecting_} << 32 |
      std::uint64_t{boundary_passed_} << 33 | std::uint64_t{give_ups_} << 40);
  add(view_.n << 16 | view_.term);
  return hash;
}

}  // namespace closeranks::simulator
