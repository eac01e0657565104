// Calls that differ under one number of one group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trace/job_index.h"
#include "trace/verdict.h"

namespace closeranks::trace {

struct CallMismatch {
  Kind kind = Kind::wrong_op;
  const GroupIndex* group = nullptr;
  std::uint64_t sequence = 0;
  std::int64_t at_ns = 0;      // the earliest sign of it
  std::vector<Slot> culprits;  // empty: the files cannot tell which side is wrong
  std::vector<Slot> others;
  recorder::OpCall wrong;  // of the culprits; where there are none, of one side
  recorder::OpCall right;  // of the others
  std::string why;         // how we know which side is wrong
};

// The first that some op did not get over; nullopt: none.
std::optional<CallMismatch> find_mismatch(const JobIndex& index);

// What the call before `sequence` was followed by in the past, as far as the group's files agree; null: not known.
const recorder::OpCall* expected_call(const GroupIndex& group, std::uint64_t sequence);

}  // namespace closeranks::trace
