// What the group machine asks for, done on the mapped segments and arenas: with the orders of stores and fences of the
// recipe.
#include <cmath>
#include <vector>

#include "base/assert.h"
#include "communicator/buffer_list.h"
#include "communicator/group.h"
#include "communicator/inline_combine.h"
#include "communicator/kernels.h"

namespace closeranks::communicator {

using algorithm::Action;
using transport::Place;

namespace {

// InFlight::placed.
constexpr std::uint32_t placed_blocks = 64;
// Units of this many bytes are not read again before the caches have seen many other bytes.
constexpr std::uint64_t long_take_bytes = std::uint64_t{1} << 19;

// The first to swap wins: `wanted` is stored unless `open` says that the word is somebody's already.
void swap_while(bool (*open)(std::uint64_t word, std::uint64_t sequence), std::atomic<std::uint64_t>& word,
                std::uint64_t sequence, std::uint64_t wanted) {
  std::uint64_t current = word.load(std::memory_order_acquire);
  while (open(current, sequence) &&
         !word.compare_exchange_weak(current, wanted, std::memory_order_acq_rel, std::memory_order_acquire)) {
  }
}

}  // namespace

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
    case Action::Kind::take_block:
      sound = take_block(action);
      break;
    case Action::Kind::take_reduced:
      sound = take_reduced(action);
      break;
    case Action::Kind::combine_inline:
      sound = combine(entries_.at(action.sequence));
      break;
    case Action::Kind::claim_block:
      claim(action);
      break;
    case Action::Kind::publish_block:
      members_.block_word(action).store(action.word().pack(), std::memory_order_release);
      // Final before any byte of a tensor; distributed before the next block's bytes in the scratch.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      ring_pending_ = ring_pending_ || action.state == algorithm::BlockState::distributed;
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
    const std::string op = describe_op(*entries_.at(action.sequence).operation);
    Status status(Fault::refused, Move::give_up,
                  op + " of group '" + options_.name +
                      "' cannot go on: a descriptor names memory outside its member's segment and arena. A member runs "
                      "another version of closeranks, or its memory was overwritten");
    status.op = op;
    status.sequence = action.sequence;
    fail(std::move(status));
    return;
  }
  const bool moves = action.kind == Action::Kind::reduce_block || action.kind == Action::Kind::copy_block ||
                     action.kind == Action::Kind::take_block || action.kind == Action::Kind::take_reduced;
  if (moves && recorder_.on()) OpRecorder::moved(entries_.at(action.sequence).operation->times);
  machine_.done(action);
  // Every later op ends as the one that met the failure. (The last entry may have succeeded after all although a member
  // was lost: then the next op says so, in step().)
  const bool failed = action.kind == Action::Kind::complete && action.outcome != Fault::none;
  if (failed && machine_.failure()) fail(*entry_failure_);
}

// `range` of a unit of what `member` brings, or nullptr when its descriptor does not have it.
const std::byte* Group::input_of(const InFlight& entry, Rank member, std::uint32_t unit,
                                 const algorithm::Range& range) const {
  const transport::Segment* segment = members_.segment(member);
  if (segment == nullptr) return nullptr;
  const transport::DescriptorSlot& slot = segment->descriptor_slot(entry.sequence);
  const auto place = static_cast<Place>(slot.input_place.load(std::memory_order_relaxed));
  const Operation& operation = *entry.operation;
  // Staged units lie one after the other; in place, a unit of this entry is a part of a unit of the call.
  std::uint64_t start = unit * entry.plan.unit_bytes;
  if (place == Place::arena) {
    start = operation.exchange ? operation.exchange->source_offset(member) : unit * operation.shape().unit_bytes;
  }
  const std::uint64_t offset = slot.input_offset.load(std::memory_order_relaxed);
  return members_.memory(member, place, offset + start + range.offset, range.bytes);
}

// Style share: `range` of the place of a member's result, or nullptr.
std::byte* Group::output_of(const InFlight& entry, Rank member, const algorithm::Range& range) const {
  const transport::Segment* segment = members_.segment(member);
  if (segment == nullptr) return nullptr;
  const transport::DescriptorSlot& slot = segment->descriptor_slot(entry.sequence);
  const auto place = static_cast<Place>(slot.output_place.load(std::memory_order_relaxed));
  const std::uint64_t offset = slot.output_offset.load(std::memory_order_relaxed);
  return members_.memory(member, place, offset + range.offset, range.bytes);
}

// What a member's input weighs in an average, its factor in a premul_sum; nullopt when its descriptor holds no weight.
std::optional<double> Group::weight_of(Rank member, std::uint64_t sequence) const {
  const transport::Segment* segment = members_.segment(member);
  if (segment == nullptr) return std::nullopt;
  return segment->descriptor_slot(sequence).weight.load(std::memory_order_relaxed);
}

// Fills sources_ and weights_ with what is to be reduced, in rank order. False: a descriptor is not sound.
bool Group::gather_sources(const InFlight& entry, std::uint32_t unit, const algorithm::Range& range) {
  sources_.clear();
  weights_.clear();
  const bool averaged = entry.plan.reduce == ReduceOp::avg;
  const bool weighted = averaged || entry.plan.reduce == ReduceOp::premul_sum;
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (!machine_.contributes(Rank{r}, entry.sequence)) continue;
    if (weighted) {
      const std::optional<double> weight = weight_of(Rank{r}, entry.sequence);
      if (!weight || (averaged && !is_weight(*weight))) return false;
      if (averaged && *weight == 0) continue;
      weights_.push_back(*weight);
    }
    const std::byte* input = input_of(entry, Rank{r}, unit, range);
    if (input == nullptr || !aligned_to(entry.plan.dtype, input)) return false;
    sources_.push_back(input);
  }
  return true;
}

void Group::reduce_sources(const algorithm::EntryPlan& plan, std::byte* to, std::uint64_t bytes) {
  if (plan.reduce == ReduceOp::avg) {
    reduce_weighted(plan.dtype, sources_, weights_, to, bytes);
  } else if (plan.reduce == ReduceOp::premul_sum) {
    reduce_scaled(plan.dtype, sources_, weights_, to, bytes);
  } else {
    reduce(plan.dtype, plan.reduce, sources_, to, bytes);
  }
}

bool Group::reduce_block(const Action& action) {
  const InFlight& entry = entries_.at(action.sequence);
  const algorithm::BlockPlan block = algorithm::block_plan(entry.plan, action.block);
  CR_ASSERT(block.range.bytes <= members_.own().shape().scratch_bytes);
  if (!gather_sources(entry, 0, block.range)) return false;
  reduce_sources(entry.plan, members_.own().scratch(), block.range.bytes);
  return true;
}

bool Group::copy_block(const Action& action) {
  InFlight& entry = entries_.at(action.sequence);
  const algorithm::BlockPlan block = algorithm::block_plan(entry.plan, action.block);
  if (action.destination == members_.self() && entry.output.place == Place::region && action.block < placed_blocks) {
    // Nobody else reads this member's result: no need to take it through the region.
    const transport::Segment* holder = members_.segment(action.source);
    if (holder == nullptr) return false;
    copy_to(entry.operation->call().outputs, entry.piece.offset + block.range.offset, holder->scratch(),
            block.range.bytes, reuse_of_output(entry));
    entry.placed |= std::uint64_t{1} << action.block;
    return true;
  }
  std::byte* to = output_of(entry, action.destination, block.range);
  const transport::Segment* holder = members_.segment(action.source);
  if (to == nullptr || holder == nullptr) return false;
  copy_bytes(to, holder->scratch(), block.range.bytes);
  return true;
}

bool Group::take_block(const Action& action) {
  const InFlight& entry = entries_.at(action.sequence);
  const Operation& operation = *entry.operation;
  algorithm::Range range{action.offset, action.bytes};
  std::uint64_t to = action.output_unit * (entry.table ? entry.plan.unit_bytes : operation.shape().unit_bytes) +
                     entry.piece.offset + action.offset;
  if (operation.exchange && !entry.table) {
    // The plan knows the longest pair only.
    const algorithm::Range pair =
        operation.exchange->to_self(action.source, entry.piece.offset + action.offset, action.bytes);
    if (pair.bytes == 0) return true;
    range.bytes = pair.bytes;
    to = operation.exchange->output_offset(action.source) + pair.offset;
  }
  const std::vector<Buffer>& outputs = entry.table ? operation.exchange->rows() : operation.call().outputs;
  if (action.zeros) {
    fill_zeros(outputs, to, range.bytes);
    return true;
  }
  const std::byte* from = input_of(entry, action.source, action.input_unit, range);
  if (from == nullptr) return false;
  copy_to(outputs, to, from, range.bytes, entry.plan.unit_bytes >= long_take_bytes ? Reuse::late : Reuse::soon);
  return true;
}

bool Group::take_reduced(const Action& action) {
  const InFlight& entry = entries_.at(action.sequence);
  const Call& call = entry.operation->call();
  if (!gather_sources(entry, action.input_unit, {action.offset, action.bytes})) return false;
  const std::uint64_t to = entry.piece.offset + action.offset;
  std::byte* memory = range_in(call.outputs, to, action.bytes);
  // In place, the output is one of the sources (through another mapping, perhaps).
  const bool is_source =
      memory != nullptr && entry.input.place == Place::arena && overlaps({memory, action.bytes}, call.inputs);
  if (memory != nullptr && !is_source && aligned_to(call.dtype, memory)) {
    reduce_sources(entry.plan, memory, action.bytes);
    return true;
  }
  // No block of this member's is final in its scratch: those are taken through before anything else is begun.
  CR_ASSERT(action.bytes <= members_.own().shape().scratch_bytes);
  reduce_sources(entry.plan, members_.own().scratch(), action.bytes);
  copy_to(call.outputs, to, members_.own().scratch(), action.bytes);
  return true;
}

bool Group::combine(const InFlight& entry) {
  const algorithm::EntryPlan& plan = entry.plan;
  const std::uint64_t sequence = entry.sequence;
  const Operation& operation = *entry.operation;
  const std::uint32_t members = members_.size();
  sources_.assign(members, nullptr);
  weights_.assign(members, 0.0);
  const bool averaged = is_reduction(plan.kind) && plan.reduce == ReduceOp::avg;
  const bool weighted = averaged || (is_reduction(plan.kind) && plan.reduce == ReduceOp::premul_sum);
  for (std::uint32_t r = 0; r < members; ++r) {
    if (!machine_.contributes(Rank{r}, sequence)) continue;
    const transport::Segment* segment = members_.segment(Rank{r});
    if (segment == nullptr) return false;
    sources_[r] = segment->descriptor_slot(sequence).payload.data();
    if (!weighted) continue;
    const std::optional<double> weight = weight_of(Rank{r}, sequence);
    if (!weight || (averaged && !is_weight(*weight))) return false;
    weights_[r] = *weight;
  }
  combine_inline(plan, sources_, weights_, machine_.effective_root(plan, sequence), members_.self(),
                 entry.table ? operation.exchange->rows() : operation.call().outputs,
                 {entry.piece.offset, entry.table ? plan.unit_bytes : operation.shape().unit_bytes});
  return true;
}

// First wins. Whoever loses sees at its next look who has it.
void Group::claim(const Action& action) {
  std::atomic<std::uint64_t>& word = members_.block_word(action);
  swap_while(algorithm::BlockWord::unclaimed, word, action.sequence, action.word().pack());
}

// First wins, in the segment of rank 0, which stays mapped whatever becomes of its worker.
void Group::decide(const Action& action) {
  const transport::Segment* judge = members_.segment(Rank{0});
  CR_ASSERT(judge != nullptr);
  std::atomic<std::uint64_t>& word = judge->decision(action.sequence);
  const algorithm::DecisionWord wanted{action.sequence, action.decision, action.culprit.value()};
  swap_while(algorithm::DecisionWord::undecided, word, action.sequence, wanted.pack());
  ring_pending_ = true;
}

}  // namespace closeranks::communicator
