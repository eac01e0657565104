#include "simulator/algorithm_memory.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/assert.h"

namespace closeranks::simulator {

namespace {
constexpr std::uint32_t fixed_words = 5;  // entered, completed, connected, two halves of scratch
}

algorithm::EntryPlan plan_of(const ScenarioCall& call, std::uint32_t members) {
  const auto make = [&](std::uint64_t unit_bytes) {
    return algorithm::make_plan(call.kind, DType::float32, ReduceOp::sum, call.root, unit_bytes, members);
  };
  const std::uint64_t inline_unit = call.kind == OpKind::barrier ? 0 : 8;
  algorithm::EntryPlan plan = make(inline_unit);
  if (call.parts == 0) {
    CR_ASSERT(plan.inlined);
    return plan;
  }
  if (plan.style() == algorithm::BlockStyle::take) {
    return make(call.parts * algorithm::take_step(plan));
  }
  plan.inlined = false;
  plan.block_bytes = 64;
  plan.block_count = call.parts;
  plan.unit_bytes = plan.block_bytes * call.parts;
  return plan;
}

std::uint32_t inputs_of(OpKind kind, std::uint32_t members) {
  return kind == OpKind::reduce_scatter || kind == OpKind::scatter || kind == OpKind::all_to_all ? members : 1;
}

std::uint32_t outputs_of(OpKind kind, std::uint32_t members) {
  return kind == OpKind::all_gather || kind == OpKind::gather || kind == OpKind::all_to_all ? members : 1;
}

std::string describe(const AlgorithmScenario& scenario) {
  std::ostringstream text;
  text << scenario.members << " members, policy " << name_of(scenario.policy)
       << (scenario.coordinated ? "" : ", no coordinator") << ", window " << scenario.window << ", regions "
       << scenario.regions << ", calls [";
  for (std::size_t index = 0; index < scenario.calls.size(); ++index) {
    const ScenarioCall& call = scenario.calls[index];
    text << (index == 0 ? "" : ", ") << name_of(call.kind);
    if (call.parts == 0) {
      text << " inline";
    } else {
      text << " of " << call.parts << (call.parts == 1 ? " part" : " parts");
    }
    if (algorithm::is_rooted(call.kind)) {
      text << " root " << call.root.value();
    }
  }
  text << "], crashes " << scenario.crashes << ", coordinator restarts " << scenario.restarts;
  if (scenario.give_ups > 0) {
    text << ", give-ups " << scenario.give_ups;
  }
  if (scenario.rejoin_at) {
    text << ", a newcomer may come in before entry " << *scenario.rejoin_at;
  }
  if (scenario.lowest_member_is_root) {
    text << ", the lowest member is root";
  }
  if (scenario.odd) {
    text << ", member " << scenario.odd->member.value() << " makes another call at entry " << scenario.odd->sequence;
  }
  return text.str();
}

std::string describe(Value value) {
  std::ostringstream text;
  const auto place = [&] {
    const std::uint32_t cell = value >> 32 & 0xffff;
    text << " to entry " << (value >> 48 & 0xfff) << ", part " << cell / 2 << (cell % 2 == 0 ? " first" : " second")
         << " half";
  };
  switch (content_of(value)) {
    case Content::unknown:
      return "unknown bytes";
    case Content::zeros:
      return "zeros";
    case Content::spoiled:
      return "spoiled bytes";
    case Content::reused:
      return "bytes of the caller's next use";
    case Content::input:
    case Content::reduced:
      text << (content_of(value) == Content::input ? "the input of {" : "the reduced inputs of {");
      for (std::uint32_t member = 0, listed = 0; member < 32; ++member) {
        if (members_of(value) >> member & 1) {
          text << (listed++ == 0 ? "" : ", ") << member;
        }
      }
      text << "}";
      place();
  }
  return text.str();
}

AlgorithmSetting::AlgorithmSetting(AlgorithmScenario the_scenario) : scenario(std::move(the_scenario)) {
  const std::uint32_t members = scenario.members;
  CR_ASSERT(members > 0 && members <= AlgorithmScenario::max_members && !scenario.calls.empty());
  CR_ASSERT(scenario.regions > 0 && scenario.regions <= scenario.window);
  CR_ASSERT(scenario.coordinated || scenario.policy == Policy::fail);
  for (const ScenarioCall& call : scenario.calls) {
    const algorithm::EntryPlan& plan = plans.emplace_back(plan_of(call, members));
    blocks = std::max(blocks, plan.blocks());
    input_cells = std::max(input_cells, inputs_of(call.kind, members) * 2 * call.parts);
    output_cells = std::max(output_cells, outputs_of(call.kind, members) * 2 * call.parts);
  }
  member_words =
      fixed_words + scenario.window * (2 + members + blocks) + scenario.regions * (input_cells + output_cells);
}

std::uint64_t AlgorithmSetting::signature(Rank member, std::uint64_t sequence) const {
  const bool is_odd = scenario.odd && scenario.odd->member == member && scenario.odd->sequence == sequence;
  return 2 * static_cast<std::uint64_t>(plans[sequence].kind) + (is_odd ? 101 : 100);
}

AlgorithmMemory::AlgorithmMemory(std::shared_ptr<const AlgorithmSetting> setting) : setting_(std::move(setting)) {
  words_.resize(std::size_t{setting_->scenario.members} * setting_->member_words);
}

void AlgorithmMemory::clear(Rank member) { std::fill_n(&at(member, 0), setting_->member_words, 0); }

std::uint32_t AlgorithmMemory::ring_slot(std::uint64_t sequence) const {
  const AlgorithmScenario& scenario = setting_->scenario;
  const std::uint32_t slot_words = 2 + scenario.members + setting_->blocks;
  return fixed_words + static_cast<std::uint32_t>(sequence % scenario.window) * slot_words;
}

std::uint64_t& AlgorithmMemory::signature(Rank member, std::uint64_t sequence) {
  return at(member, ring_slot(sequence));
}

std::uint64_t& AlgorithmMemory::decision_word(std::uint64_t sequence) { return at(Rank{0}, ring_slot(sequence) + 1); }

std::uint64_t& AlgorithmMemory::payload(Rank member, std::uint64_t sequence, std::uint32_t unit) {
  CR_ASSERT(unit < setting_->scenario.members);
  return at(member, ring_slot(sequence) + 2 + unit);
}

std::uint64_t& AlgorithmMemory::block_word(Rank member, std::uint64_t sequence, std::uint32_t block) {
  CR_ASSERT(block < setting_->blocks);
  return at(member, ring_slot(sequence) + 2 + setting_->scenario.members + block);
}

std::uint32_t AlgorithmMemory::region_offset(std::uint64_t sequence) const {
  const AlgorithmScenario& scenario = setting_->scenario;
  const auto region = static_cast<std::uint32_t>(sequence % scenario.regions);
  return ring_slot(0) + scenario.window * (2 + scenario.members + setting_->blocks) +
         region * (setting_->input_cells + setting_->output_cells);
}

Value& AlgorithmMemory::input(Rank member, std::uint64_t sequence, std::uint32_t unit, std::uint32_t cell) {
  const std::uint32_t cells = setting_->cells(sequence);
  CR_ASSERT(cell < cells && unit * cells + cell < setting_->input_cells);
  return at(member, region_offset(sequence) + unit * cells + cell);
}

// In place wherever a caller may ask for it: there an output written too early, or too late, destroys an input.
Value& AlgorithmMemory::output(Rank member, std::uint64_t sequence, std::uint32_t unit, std::uint32_t cell) {
  const std::uint32_t cells = setting_->cells(sequence);
  switch (setting_->scenario.calls[sequence].kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::broadcast:
      return input(member, sequence, unit, cell);
    case OpKind::reduce_scatter:
      return input(member, sequence, member.value(), cell);
    case OpKind::all_gather:
      if (unit == member.value()) {
        return input(member, sequence, 0, cell);
      }
      break;
    default:
      break;
  }
  CR_ASSERT(cell < cells && unit * cells + cell < setting_->output_cells);
  return at(member, region_offset(sequence) + setting_->input_cells + unit * cells + cell);
}

void AlgorithmMemory::reuse(Rank member, std::uint64_t sequence) {
  std::fill_n(&at(member, region_offset(sequence)), setting_->input_cells + setting_->output_cells, reused_value);
}

std::uint64_t MemoryView::entered(Rank member) const { return held(member) ? memory_.entered(member) : 0; }
std::uint64_t MemoryView::completed(Rank member) const { return held(member) ? memory_.completed(member) : 0; }
std::uint64_t MemoryView::block_word(Rank owner, std::uint64_t sequence, std::uint32_t block) const {
  return held(owner) ? memory_.block_word(owner, sequence, block) : 0;
}
std::uint64_t MemoryView::signature(Rank member, std::uint64_t sequence) const {
  return held(member) ? memory_.signature(member, sequence) : 0;
}
std::uint64_t MemoryView::decision_word(std::uint64_t sequence) const { return memory_.decision_word(sequence); }

}  // namespace closeranks::simulator
