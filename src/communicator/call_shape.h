// A call, looked at before it is issued: is it well formed, how long is its unit, into how many entries is it cut, and
// by which signature do members compare what they called. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "algorithm/plan.h"
#include "closeranks/communicator.h"
#include "closeranks/ids.h"
#include "closeranks/status.h"

namespace closeranks::communicator {

struct CallShape {
  std::uint64_t unit_bytes = 0;        // communicator.h: u of Call; all_to_all: of this member's inputs, for texts
  std::uint64_t piece_unit_bytes = 0;  // of one entry; the last piece may be shorter
  std::uint32_t pieces = 1;

  // Where piece `piece` lies in each unit.
  [[nodiscard]] algorithm::Range piece(std::uint32_t piece) const;
};

// What shape_of() has to know of the group.
struct GroupFacts {
  std::uint32_t members = 1;
  Rank self;
  bool lowest_member_is_root = false;
  // Staging memory of one entry on one member: small enough that several pieces of a call are in flight at once.
  std::uint64_t entry_budget_bytes = 0;
};

// Fault::invalid_argument, with one sentence that names the numbers, when sizes, dtype, reduction or root do not fit
// together. send and recv are one "piece", whatever their size. all_to_all: how many pieces there are is known when all
// members' sizes are (exchange_table.h); until then it is one.
Result<CallShape> shape_of(const Call& call, const GroupFacts& group);

// A unit of `unit_bytes` cut into entries that fit into the budget.
CallShape cut(OpKind kind, DType dtype, std::uint64_t unit_bytes, const GroupFacts& group);

// True when `call` takes input from this member: everybody, but only the root of a broadcast and of a scatter (every
// member, where the lowest one is root).
bool gives_input(OpKind kind, Rank root, const GroupFacts& group);
bool is_reduction(OpKind kind);
// The inputs, the outputs are lists of a unit per member.
bool input_is_list(OpKind kind);
bool output_is_list(OpKind kind);

// Whether an input may have this weight in an average.
bool is_weight(double weight);

// What an entry is compared by (protocol rule 16): everything that must be the same on all members. `unit_bytes`: of
// the call (all_to_all: of the longest pair, 0 in the table's entry); `entry`: its number in the op.
std::uint64_t signature_of(const Call& call, std::uint64_t unit_bytes, std::uint32_t entry, Policy policy,
                           bool lowest_member_is_root);

// What members called, for people: "all_reduce of 64 float32, sum", "broadcast of 3 int64 from rank 0", "barrier".
// all_to_all has a size of its own on every member: `unit_bytes` is that of its inputs.
std::string describe(OpKind kind, DType dtype, ReduceOp reduce, Rank root, std::uint64_t unit_bytes,
                     bool lowest_member_is_root);

}  // namespace closeranks::communicator
