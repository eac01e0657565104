// Pure: what is moved in one entry of a collective, by whom, from where and to where. A function of (call, group size)
// alone, the same on every member (protocol rule 4). Every kind is done in one of two styles:
//   share  all_reduce, reduce: the entry is cut into blocks. The member that claims a block owns it: it reduces the
//          block and writes it to every destination. A dead owner's blocks pass on.
//   take   broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all: each member reads the inputs of others
//          and writes its own output, and nobody else does. Block b is what member b takes: it never changes its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "closeranks/ids.h"
#include "closeranks/op.h"

namespace closeranks::algorithm {

// Payloads up to this travel inside the descriptor and every member combines them for himself: one wait, no owner.
inline constexpr std::uint64_t inline_bytes = 2048;
// Largest block: fits a second-level cache of 512 KiB beside its sources and destinations (measured: 16 MiB in place,
// 2 processes: 0.91 ms, with 128 KiB 1.1 ms, with 256 KiB 1.3 ms). One scratch slot has this size.
inline constexpr std::uint64_t max_block_bytes = std::uint64_t{64} * 1024;
// Smallest: below this, splitting costs more in words than it gains in parallel work.
inline constexpr std::uint64_t min_block_bytes = std::uint64_t{4} * 1024;
// What one action of a taker writes at most: a bound on the time under the drive lock. Long enough that looking at the
// words in between costs nothing.
inline constexpr std::uint64_t take_bytes = std::uint64_t{256} * 1024;
// The blocks a member claims lie on its seats in turn (seats.h): several for each, so that the work of a lost member is
// spread over all survivors.
inline constexpr std::uint32_t seats_per_member = 12;

enum class BlockStyle : std::uint8_t { share, take };

// One entry. Its payload is counted in units: what one member brings, or what one member gets (communicator.h: Call).
struct EntryPlan {
  OpKind kind = OpKind::barrier;
  DType dtype = DType::bytes;
  ReduceOp reduce = ReduceOp::sum;
  Rank root;
  std::uint64_t unit_bytes = 0;   // of one unit; whole elements. all_to_all: of the longest pair, in this entry
  std::uint64_t block_bytes = 0;  // style share: multiple of 64, the last block may be shorter
  std::uint32_t block_count = 0;  // style take: the group size
  std::uint32_t units = 1;        // 1, or the group size where inputs or outputs are lists of a unit per member
  bool inlined = false;           // the payload is in the descriptor: no blocks
  [[nodiscard]] std::uint32_t blocks() const { return inlined ? 0 : block_count; }
  [[nodiscard]] BlockStyle style() const;
};

struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// A block of style share: every contributor's input, reduced.
struct BlockPlan {
  bool all_destinations = false;  // every present member; else `destination` alone, while it is present
  Rank destination;
  Range range;  // in every input and in every output
};

// What a member takes in an entry of style take. Every output unit is as long as an input unit and copied whole.
struct TakePlan {
  bool nothing = false;      // it has no output, or (root of a broadcast) its input is its output: nobody waits for it
  bool reduced = false;      // input unit `input_unit` of every contributor, in rank order -> output unit 0
  bool all_sources = false;  // input unit `input_unit` of each source r -> output unit r; zeros of one without input
  Rank source;               // neither: this one -> output unit 0. It contributes, or the entry is lost
  std::uint32_t input_unit = 0;
};

// Precondition: root < members, whole elements; not send or recv. all_to_all is never inlined.
EntryPlan make_plan(OpKind kind, DType dtype, ReduceOp reduce, Rank root, std::uint64_t unit_bytes,
                    std::uint32_t members);

// Precondition: style share, block < plan.blocks().
BlockPlan block_plan(const EntryPlan& plan, std::uint32_t block);

// The order in which a member looks for blocks to claim: first its own share, every `members`-th block from its rank
// on, so that members who come together do not meet and find the same bytes again in their caches; then the shares of
// the next ranks, from their ends, which their members come to last. Precondition: place < claim_places().
std::uint32_t claim_places(const EntryPlan& plan, std::uint32_t members);
// nullopt: there is no such block, the last row is not full.
std::optional<std::uint32_t> claim_order(const EntryPlan& plan, std::uint32_t members, Rank self, std::uint32_t place);

// Precondition: style take. `effective_root`: GroupMachine::effective_root().
TakePlan take_plan(const EntryPlan& plan, Rank effective_root, Rank taker);

// What one action of a taker moves at most. A reduction reads as much of every contributor, which should stay in the
// cache.
std::uint64_t take_step(const EntryPlan& plan);

// Whether the kind cannot be done without its root. A broadcast can where the lowest member is root: see
// MachineOptions::lowest_member_is_root.
bool is_rooted(OpKind kind);

// Bytes of shared memory that an entry needs on a member. Style take: input only, for each member writes its output
// straight into the caller's memory; a broadcast's on every member, for any may be root where the lowest one is: a
// member that gives no input needs none of it. Style share: the output is the input's place.
struct RegionBytes {
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  bool shared = false;  // output is the input region
};
RegionBytes region_bytes(const EntryPlan& plan, std::uint32_t members, Rank self);

// Largest unit of one entry, so that its regions fit into `budget_bytes` on every member; longer calls are cut into
// pieces, each an entry of its own. A multiple of 64, so whole elements. Precondition: the budget holds one such unit.
std::uint64_t piece_unit_bytes(OpKind kind, DType dtype, std::uint32_t members, std::uint64_t budget_bytes);

// The most blocks an entry can have when its regions fit into `budget_bytes` (the length of a row of block words).
std::uint32_t max_blocks(std::uint32_t members, std::uint64_t budget_bytes);

}  // namespace closeranks::algorithm
