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
  const std::uint64_t inline_unit = call.kind == OpKind::barrier ? 0 : 8;
  algorithm::EntryPlan plan =
      algorithm::make_plan(call.kind, DType::float32, ReduceOp::sum, call.root, inline_unit, members);
  if (call.blocks_per_unit > 0) {
    plan.inlined = false;
    plan.block_bytes = 64;
    plan.blocks_per_unit = call.blocks_per_unit;
    plan.unit_bytes = plan.block_bytes * call.blocks_per_unit;
  }
  return plan;
}

std::string describe(const AlgorithmScenario& scenario) {
  std::ostringstream text;
  text << scenario.members << " members, policy " << name_of(scenario.policy)
       << (scenario.coordinated ? "" : ", no coordinator") << ", window " << scenario.window << ", regions "
       << scenario.regions << ", calls [";
  for (std::size_t index = 0; index < scenario.calls.size(); ++index) {
    const ScenarioCall& call = scenario.calls[index];
    text << (index == 0 ? "" : ", ") << name_of(call.kind);
    if (call.blocks_per_unit == 0) {
      text << " inline";
    } else {
      text << " of " << call.blocks_per_unit << " blocks";
    }
    if (call.kind == OpKind::broadcast || call.kind == OpKind::gather || call.kind == OpKind::scatter) {
      text << " root " << call.root.value();
    }
  }
  text << "], crashes " << scenario.crashes << ", coordinator restarts " << scenario.restarts;
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
    text << " to entry " << (value >> 48 & 0xfff) << ", block " << cell / 2 << (cell % 2 == 0 ? " first" : " second")
         << " half";
  };
  switch (content_of(value)) {
    case Content::unknown:
      return "unknown bytes";
    case Content::zeros:
      return "zeros";
    case Content::spoiled:
      return "spoiled bytes";
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
    const bool list_in = plan.kind == OpKind::reduce_scatter || plan.kind == OpKind::scatter;
    const bool list_out = plan.kind == OpKind::all_gather || plan.kind == OpKind::gather;
    const bool shared = plan.kind == OpKind::all_reduce || plan.kind == OpKind::broadcast;
    if (!plan.inlined) {
      input_cells = std::max(input_cells, 2 * plan.blocks_per_unit * (list_in ? members : 1));
      output_cells = std::max(output_cells, shared ? 0 : 2 * plan.blocks_per_unit * (list_out ? members : 1));
    }
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

Value& AlgorithmMemory::input(Rank member, std::uint64_t sequence, std::uint32_t cell) {
  CR_ASSERT(cell < setting_->input_cells);
  return at(member, region_offset(sequence) + cell);
}

Value& AlgorithmMemory::output(Rank member, std::uint64_t sequence, std::uint32_t cell) {
  const OpKind kind = setting_->plans[sequence].kind;
  if (kind == OpKind::all_reduce || kind == OpKind::broadcast) {
    return input(member, sequence, cell);
  }
  CR_ASSERT(cell < setting_->output_cells);
  return at(member, region_offset(sequence) + setting_->input_cells + cell);
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
