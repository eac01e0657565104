#include "algorithm/plan.h"

#include <algorithm>

#include "base/assert.h"

namespace closeranks::algorithm {

namespace {

// Blocks start on cache lines, and 64 bytes are whole elements of every dtype.
constexpr std::uint64_t block_granule = 64;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t granule) { return (bytes + granule - 1) / granule * granule; }

std::uint64_t divide_up(std::uint64_t bytes, std::uint64_t divisor) { return (bytes + divisor - 1) / divisor; }

bool has_unit_per_member(OpKind kind) {
  return kind == OpKind::all_gather || kind == OpKind::reduce_scatter || kind == OpKind::gather ||
         kind == OpKind::scatter;
}

// Bytes that one member brings: what an inlined entry would put into its descriptor.
std::uint64_t payload_bytes(OpKind kind, std::uint64_t unit_bytes, std::uint32_t members) {
  const bool one_per_member = kind == OpKind::reduce_scatter || kind == OpKind::scatter;
  return one_per_member ? unit_bytes * members : unit_bytes;
}

// The k-th of the seats that `owner` has at the start.
std::uint32_t seat_of(Rank owner, std::uint32_t k, std::uint32_t members) {
  return owner.value() + members * (k % seats_per_member);
}

}  // namespace

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
  plan.inlined = payload_bytes(kind, plan.unit_bytes, members) <= inline_bytes;
  if (!plan.inlined) {
    const std::uint64_t share = round_up(divide_up(plan.unit_bytes, members), block_granule);
    plan.block_bytes = std::clamp(share, min_block_bytes, max_block_bytes);
    const std::uint64_t per_unit = divide_up(plan.unit_bytes, plan.block_bytes);
    CR_ASSERT(per_unit * plan.units < (std::uint64_t{1} << 32));
    plan.blocks_per_unit = static_cast<std::uint32_t>(per_unit);
  }
  return plan;
}

std::uint32_t block_seat(const EntryPlan& plan, std::uint32_t members, std::uint32_t block) {
  switch (plan.kind) {
    case OpKind::all_reduce:
    case OpKind::broadcast:
      return block % (members * seats_per_member);
    // The source of a unit copies it; the taker of a unit reduces or copies it.
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::scatter:
      return seat_of(Rank{block / plan.blocks_per_unit}, block % plan.blocks_per_unit, members);
    case OpKind::gather:
      return seat_of(plan.root, block, members);
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  CR_ASSERT(!"a kind without blocks");
}

BlockPlan block_plan(const EntryPlan& plan, std::uint32_t members, std::uint32_t block) {
  CR_ASSERT(block < plan.blocks());
  const std::uint32_t unit = block / plan.blocks_per_unit;
  const std::uint64_t offset = std::uint64_t{block % plan.blocks_per_unit} * plan.block_bytes;
  const std::uint64_t bytes = std::min(plan.block_bytes, plan.unit_bytes - offset);
  const Range in_unit{offset, bytes};
  const Range in_list{unit * plan.unit_bytes + offset, bytes};
  BlockPlan result;
  result.seat = block_seat(plan, members, block);
  result.input = in_unit;
  result.output = in_unit;
  switch (plan.kind) {
    case OpKind::all_reduce:
      result.reduced = true;
      result.all_sources = true;
      result.all_destinations = true;
      break;
    case OpKind::broadcast:
      result.source = plan.root;
      result.all_destinations = true;
      break;
    case OpKind::all_gather:
      result.source = Rank{unit};
      result.all_destinations = true;
      result.output = in_list;
      break;
    case OpKind::reduce_scatter:
      result.reduced = true;
      result.all_sources = true;
      result.destination = Rank{unit};
      result.input = in_list;
      break;
    case OpKind::gather:
      result.source = Rank{unit};
      result.destination = plan.root;
      result.output = in_list;
      break;
    case OpKind::scatter:
      result.source = plan.root;
      result.destination = Rank{unit};
      result.input = in_list;
      break;
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      CR_ASSERT(!"a kind without blocks");
  }
  return result;
}

RegionBytes region_bytes(const EntryPlan& plan, std::uint32_t members, Rank self) {
  const std::uint64_t unit = plan.unit_bytes;
  const std::uint64_t list = unit * members;
  const bool root = self == plan.root;
  switch (plan.kind) {
    case OpKind::all_reduce:
    case OpKind::broadcast:
      return {unit, unit, true};
    case OpKind::all_gather:
      return {unit, list, false};
    case OpKind::reduce_scatter:
      return {list, unit, false};
    case OpKind::gather:
      return {unit, root ? list : 0, false};
    case OpKind::scatter:
      return {root ? list : 0, unit, false};
    case OpKind::barrier:
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  return {};
}

std::uint64_t piece_unit_bytes(OpKind kind, DType dtype, std::uint32_t members, std::uint64_t budget_bytes) {
  CR_ASSERT(block_granule % size_of(dtype) == 0);
  // Input and output regions are apart where there is a unit per member; the fullest member has one list and one unit.
  const std::uint64_t units = has_unit_per_member(kind) ? std::uint64_t{members} + 1 : 1;
  const std::uint64_t bytes = budget_bytes / units / block_granule * block_granule;
  CR_ASSERT(bytes > 0);
  return bytes;
}

std::uint32_t max_blocks(std::uint32_t members, std::uint64_t budget_bytes) {
  // Blocks but the last of a unit hold at least min_block_bytes, and there are at most `members` units.
  const std::uint64_t blocks = members + budget_bytes / min_block_bytes;
  CR_ASSERT(blocks < (std::uint64_t{1} << 32));
  return static_cast<std::uint32_t>(blocks);
}

}  // namespace closeranks::algorithm
