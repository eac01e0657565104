#include "algorithm/plan.h"

#include <algorithm>

#include "base/assert.h"

namespace closeranks::algorithm {

namespace {

// Blocks start on cache lines, and 64 bytes are whole elements of every dtype.
constexpr std::uint64_t block_granule = 64;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t granule) { return (bytes + granule - 1) / granule * granule; }

std::uint64_t divide_up(std::uint64_t bytes, std::uint64_t divisor) { return (bytes + divisor - 1) / divisor; }

// A member, or the root, brings a unit for everyone.
bool input_is_list(OpKind kind) {
  return kind == OpKind::reduce_scatter || kind == OpKind::scatter || kind == OpKind::all_to_all;
}

bool has_unit_per_member(OpKind kind) {
  return input_is_list(kind) || kind == OpKind::all_gather || kind == OpKind::gather;
}

}  // namespace

BlockStyle EntryPlan::style() const {
  return kind == OpKind::all_reduce || kind == OpKind::reduce ? BlockStyle::share : BlockStyle::take;
}

EntryPlan make_plan(OpKind kind, DType dtype, ReduceOp reduce, Rank root, std::uint64_t unit_bytes,
                    std::uint32_t members) {
  CR_ASSERT(members > 0 && root.value() < members);
  CR_ASSERT(kind != OpKind::send && kind != OpKind::recv);
  CR_ASSERT(unit_bytes % size_of(dtype) == 0);
  EntryPlan plan;
  plan.kind = kind;
  plan.dtype = dtype;
  plan.reduce = reduce;
  plan.root = root;
  plan.unit_bytes = kind == OpKind::barrier ? 0 : unit_bytes;
  plan.units = has_unit_per_member(kind) ? members : 1;
  // What an inlined entry would put into its descriptor. Pairs of an all_to_all differ in length: its table is small.
  const std::uint64_t payload_bytes = plan.unit_bytes * (input_is_list(kind) ? members : 1);
  plan.inlined = payload_bytes <= inline_bytes && kind != OpKind::all_to_all;
  if (plan.inlined) {
    return plan;
  }
  if (plan.style() == BlockStyle::take) {
    plan.block_count = members;
    return plan;
  }
  const std::uint64_t share = round_up(divide_up(plan.unit_bytes, members), block_granule);
  plan.block_bytes = std::clamp(share, min_block_bytes, max_block_bytes);
  const std::uint64_t blocks = divide_up(plan.unit_bytes, plan.block_bytes);
  CR_ASSERT(blocks < (std::uint64_t{1} << 32));
  plan.block_count = static_cast<std::uint32_t>(blocks);
  return plan;
}

std::uint32_t claim_places(const EntryPlan& plan, std::uint32_t members) {
  return (plan.blocks() + members - 1) / members * members;
}

std::optional<std::uint32_t> claim_order(const EntryPlan& plan, std::uint32_t members, Rank self, std::uint32_t place) {
  const std::uint32_t places = claim_places(plan, members);
  CR_ASSERT(plan.style() == BlockStyle::share && place < places);
  const std::uint32_t rows = places / members;
  const std::uint32_t turn = place / rows;
  const std::uint32_t row = turn == 0 ? place : rows - 1 - place % rows;
  const std::uint32_t block = row * members + (self.value() + turn) % members;
  return block < plan.blocks() ? std::optional(block) : std::nullopt;
}

BlockPlan block_plan(const EntryPlan& plan, std::uint32_t block) {
  CR_ASSERT(plan.style() == BlockStyle::share && block < plan.blocks());
  const std::uint64_t offset = std::uint64_t{block} * plan.block_bytes;
  BlockPlan result;
  result.all_destinations = plan.kind == OpKind::all_reduce;
  result.destination = plan.root;
  result.range = {offset, std::min(plan.block_bytes, plan.unit_bytes - offset)};
  return result;
}

TakePlan take_plan(const EntryPlan& plan, Rank effective_root, Rank taker) {
  TakePlan result;
  result.source = effective_root;
  const bool is_root = taker == effective_root;
  switch (plan.kind) {
    case OpKind::broadcast:
      result.nothing = is_root;
      return result;
    case OpKind::all_gather:
      result.all_sources = true;
      return result;
    case OpKind::gather:
      result.nothing = !is_root;
      result.all_sources = true;
      return result;
    case OpKind::scatter:
      result.input_unit = taker.value();
      return result;
    case OpKind::reduce_scatter:
      result.reduced = true;
      result.input_unit = taker.value();
      return result;
    case OpKind::all_to_all:
      result.all_sources = true;
      result.input_unit = taker.value();
      return result;
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  CR_ASSERT(!"a kind in which nobody takes");
}

std::uint64_t take_step(const EntryPlan& plan) {
  return plan.kind == OpKind::reduce_scatter ? max_block_bytes : take_bytes;
}

bool is_rooted(OpKind kind) {
  return kind == OpKind::broadcast || kind == OpKind::gather || kind == OpKind::scatter || kind == OpKind::reduce;
}

RegionBytes region_bytes(const EntryPlan& plan, std::uint32_t members, Rank self) {
  const std::uint64_t unit = plan.unit_bytes;
  const bool root = self == plan.root;
  switch (plan.kind) {
    case OpKind::all_reduce:
      return {unit, unit, true};
    case OpKind::reduce:
      return {unit, root ? unit : 0, true};
    case OpKind::broadcast:
    case OpKind::all_gather:
    case OpKind::gather:
      return {unit, 0, false};
    case OpKind::scatter:
      return {root ? unit * members : 0, 0, false};
    case OpKind::reduce_scatter:
    case OpKind::all_to_all:
      return {unit * members, 0, false};
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  return {};
}

std::uint64_t piece_unit_bytes(OpKind kind, DType dtype, std::uint32_t members, std::uint64_t budget_bytes) {
  CR_ASSERT(block_granule % size_of(dtype) == 0);
  const std::uint64_t units = input_is_list(kind) ? members : 1;
  const std::uint64_t bytes = budget_bytes / units / block_granule * block_granule;
  CR_ASSERT(bytes > 0);
  return bytes;
}

std::uint32_t max_blocks(std::uint32_t members, std::uint64_t budget_bytes) {
  // Style take: one for each member. Style share: all but the last hold at least min_block_bytes.
  const std::uint64_t blocks = std::max<std::uint64_t>(members, 1 + budget_bytes / min_block_bytes);
  CR_ASSERT(blocks < (std::uint64_t{1} << 32));
  return static_cast<std::uint32_t>(blocks);
}

}  // namespace closeranks::algorithm
