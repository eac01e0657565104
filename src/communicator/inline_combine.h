// Small entries: their payloads lie in the members' descriptors, and every member combines them for himself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algorithm/plan.h"
#include "closeranks/communicator.h"
#include "closeranks/ids.h"

namespace closeranks::communicator {

// Where an entry's output lies in the outputs of its call: the last piece of a long call may be a small entry.
struct OutputUnits {
  std::uint64_t offset = 0;  // of the entry in a unit of the call
  std::uint64_t stride = 0;  // from unit to unit: the bytes of one of the call's
};

// Writes this member's output of the inlined entry `plan` into `outputs`. `payloads` has one pointer per rank, nullptr
// for one that does not contribute; they are reduced in rank order. `weights`, one per rank: of an average, where a
// payload of weight 0 is not read, or the factors of a premul_sum. `root` is the effective root of a rooted kind.
// Precondition: plan.inlined; each payload has what plan.h says a member brings; this member gets output. Allocates
// nothing in groups of up to 64.
void combine_inline(const algorithm::EntryPlan& plan, std::span<const std::byte* const> payloads,
                    std::span<const double> weights, Rank root, Rank self, const std::vector<Buffer>& outputs,
                    OutputUnits units);

}  // namespace closeranks::communicator
