// What the group machine asks for, done on the mapped segments: with the orders of stores and fences of the recipe.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "communicator/group.h"
#include "communicator/inline_combine.h"
#include "communicator/kernels.h"

namespace closeranks::communicator {

using algorithm::Action;

void Group::perform(const Action& action) {
  bool sound = true;
  switch (action.kind) {
    case Action::Kind::none:
      return;
    case Action::Kind::reduce_block:
      sound = reduce_block(action);
      break;
    case Action::Kind::copy_block:
      sound = copy_block(action);
      break;
    case Action::Kind::combine_inline:
      sound = combine(action);
      break;
    case Action::Kind::publish_block:
      members_.own().block_word(action.sequence, action.block).store(action.word.pack(), std::memory_order_release);
      // Final before any byte of a tensor; distributed before the next block's bytes in the scratch.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      ring_pending_ = ring_pending_ || action.word.state == algorithm::BlockState::distributed;
      break;
    case Action::Kind::decide:
      decide(action);
      break;
    case Action::Kind::complete:
      leave(action);
      break;
    case Action::Kind::publish_completed:
      members_.own().completed().store(action.sequence + 1, std::memory_order_release);
      ring_pending_ = true;
      break;
  }
  if (!sound) {
    const InFlight& entry = in_flight(action.sequence);
    Status status(Fault::refused, Move::give_up,
                  describe_op(*entry.operation) + " of group '" + options_.name +
                      "' cannot go on: a descriptor names memory outside its member's segment. A member runs another "
                      "version of closeranks, or its memory was overwritten");
    status.op = describe_op(*entry.operation);
    status.sequence = action.sequence;
    fail(std::move(status));
    return;
  }
  machine_.done(action);
  // Every later op ends as the one that met the failure.
  if (action.kind == Action::Kind::complete && machine_.failure()) fail(*entry_failure_);
}

// A range of a member's region, or nullptr when its descriptor does not have it: it was written by another process.
std::byte* Group::region(Rank member, std::uint64_t sequence, bool output, const algorithm::Range& range) const {
  const transport::Segment* segment = members_.segment(member);
  if (segment == nullptr) return nullptr;
  const transport::DescriptorSlot& slot = segment->descriptor_slot(sequence);
  if (slot.sequence.load(std::memory_order_relaxed) != sequence) return nullptr;
  const std::uint64_t start = (output ? slot.output_offset : slot.input_offset).load(std::memory_order_relaxed);
  if (start > segment->shape().region_bytes) return nullptr;
  return segment->region_range(start + range.offset, range.bytes);
}

// What a member's input weighs in an average, or nullopt when its descriptor holds no weight: another process wrote it.
std::optional<double> Group::weight_of(Rank member, std::uint64_t sequence) const {
  const transport::Segment* segment = members_.segment(member);
  if (segment == nullptr) return std::nullopt;
  const double weight = segment->descriptor_slot(sequence).weight.load(std::memory_order_relaxed);
  if (!(weight >= 0) || std::isinf(weight)) return std::nullopt;
  return weight;
}

bool Group::reduce_block(const Action& action) {
  const InFlight& entry = in_flight(action.sequence);
  const algorithm::BlockPlan block = algorithm::block_plan(entry.plan, members_.size(), action.block);
  CR_ASSERT(block.input.bytes <= members_.own().shape().scratch_bytes);
  sources_.clear();
  weights_.clear();
  const bool weighted = entry.plan.reduce == ReduceOp::avg;
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (!machine_.contributes(Rank{r}, action.sequence)) continue;
    if (weighted) {
      const std::optional<double> weight = weight_of(Rank{r}, action.sequence);
      if (!weight) return false;
      if (*weight == 0) continue;
      weights_.push_back(*weight);
    }
    const std::byte* input = region(Rank{r}, action.sequence, false, block.input);
    if (input == nullptr) return false;
    sources_.push_back(input);
  }
  if (weighted) {
    reduce_weighted(entry.plan.dtype, sources_, weights_, members_.own().scratch(), block.input.bytes);
  } else {
    reduce(entry.plan.dtype, entry.plan.reduce, sources_, members_.own().scratch(), block.input.bytes);
  }
  return true;
}

bool Group::copy_block(const Action& action) {
  const InFlight& entry = in_flight(action.sequence);
  const algorithm::BlockPlan block = algorithm::block_plan(entry.plan, members_.size(), action.block);
  std::byte* to = region(action.destination, action.sequence, true, block.output);
  if (to == nullptr) return false;
  if (action.zeros) {
    std::memset(to, 0, block.output.bytes);
    return true;
  }
  const std::byte* from = nullptr;
  if (action.from_scratch) {
    const transport::Segment* holder = members_.segment(action.source);
    from = holder == nullptr ? nullptr : holder->scratch();
  } else {
    from = region(action.source, action.sequence, false, block.input);
  }
  if (from == nullptr) return false;
  std::memcpy(to, from, block.output.bytes);
  return true;
}

bool Group::combine(const Action& action) {
  const InFlight& entry = in_flight(action.sequence);
  const algorithm::RankSet contributors = machine_.contributors(action.sequence);
  sources_.assign(members_.size(), nullptr);
  weights_.assign(members_.size(), 0.0);
  const bool weighted = is_reduction(entry.plan.kind) && entry.plan.reduce == ReduceOp::avg;
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (!contributors[r]) continue;
    const transport::Segment* segment = members_.segment(Rank{r});
    if (segment == nullptr) return false;
    sources_[r] = segment->descriptor_slot(action.sequence).payload.data();
    if (!weighted) continue;
    const std::optional<double> weight = weight_of(Rank{r}, action.sequence);
    if (!weight) return false;
    weights_[r] = *weight;
  }
  const Rank root = machine_.effective_root(entry.plan, action.sequence);
  combine_inline(entry.plan, contributors, sources_, weights_, root, members_.self(), entry.operation->call().outputs);
  return true;
}

// First wins, in the segment of rank 0, which stays mapped whatever becomes of its worker.
void Group::decide(const Action& action) {
  const transport::Segment* judge = members_.segment(Rank{0});
  CR_ASSERT(judge != nullptr);
  std::atomic<std::uint64_t>& word = judge->decision(action.sequence);
  const algorithm::DecisionWord wanted{action.sequence, action.decision, action.culprit.value()};
  std::uint64_t current = word.load(std::memory_order_acquire);
  while (algorithm::DecisionWord::undecided(current, action.sequence) &&
         !word.compare_exchange_weak(current, wanted.pack(), std::memory_order_acq_rel, std::memory_order_acquire)) {
  }
  ring_pending_ = true;
}

}  // namespace closeranks::communicator
