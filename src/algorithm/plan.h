// Pure: how one entry is cut into blocks, and for each block who owns it, what it reads and what it writes.
// A function of (call, group size, block size) alone, the same on every member (protocol rule 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "closeranks/ids.h"
#include "closeranks/op.h"

namespace closeranks::algorithm {

// Payloads up to this travel inside the descriptor and every member combines them for himself: one wait, no owner.
inline constexpr std::uint64_t inline_bytes = 2048;
// Largest block: fits L2 beside its sources; one scratch slot has this size.
inline constexpr std::uint64_t max_block_bytes = std::uint64_t{128} * 1024;
// Smallest: below this, splitting costs more in words than it gains in parallel work.
inline constexpr std::uint64_t min_block_bytes = std::uint64_t{4} * 1024;
// Seats per member: block b belongs to seat b mod (members * seats_per_member); seat s is first owned by rank s mod
// members. More seats than members, so that a lost member's work is spread over all survivors.
inline constexpr std::uint32_t seats_per_member = 12;

struct EntryPlan {
  OpKind kind = OpKind::barrier;
  DType dtype = DType::bytes;
  ReduceOp reduce = ReduceOp::sum;
  Rank root;
  std::uint64_t unit_bytes = 0;   // of one unit (communicator.h: Call); whole elements
  std::uint64_t block_bytes = 0;  // multiple of 64, the last block of a unit may be shorter
  std::uint32_t blocks_per_unit = 0;
  std::uint32_t units = 1;  // 1, or the group size for all_gather, reduce_scatter, gather, scatter
  bool inlined = false;
  [[nodiscard]] std::uint32_t blocks() const { return inlined ? 0 : units * blocks_per_unit; }
};

struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct BlockPlan {
  std::uint32_t seat = 0;
  bool reduced = false;           // several sources, through scratch; else one source copied
  bool all_sources = false;       // reduced: every contributor
  Rank source;                    // otherwise
  bool all_destinations = false;  // every present member (broadcast: but the effective root)
  Rank destination;
  Range input;   // in the source's input region
  Range output;  // in the destination's output region
};

EntryPlan make_plan(OpKind kind, DType dtype, ReduceOp reduce, Rank root, std::uint64_t unit_bytes,
                    std::uint32_t members);
BlockPlan block_plan(const EntryPlan& plan, std::uint32_t members, std::uint32_t block);

// Bytes of region an entry needs on a member: input and output (the same region for all_reduce and broadcast).
struct RegionBytes {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  bool shared = false;  // output is the input region
};
RegionBytes region_bytes(const EntryPlan& plan, std::uint32_t members, Rank self);

// Largest unit of one entry, so that its regions fit into `budget_bytes` on every member; longer calls are cut into
// pieces, each an entry of its own. A multiple of 64, so whole elements. Precondition: the budget holds one such unit.
std::uint64_t piece_unit_bytes(OpKind kind, DType dtype, std::uint32_t members, std::uint64_t budget_bytes);

// The seat of a block alone: block_plan().seat, cheaper.
std::uint32_t block_seat(const EntryPlan& plan, std::uint32_t members, std::uint32_t block);

// The most blocks an entry can have when its regions fit into `budget_bytes` (the length of a row of block words).
std::uint32_t max_blocks(std::uint32_t members, std::uint64_t budget_bytes);

}  // namespace closeranks::algorithm
