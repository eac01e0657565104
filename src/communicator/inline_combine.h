// Small entries: their payloads lie in the members' descriptors, and every member combines them for himself.
#pragma once

#include <span>

#include "algorithm/plan.h"
#include "algorithm/roster.h"
#include "closeranks/communicator.h"
#include "closeranks/ids.h"

namespace closeranks::communicator {

// Writes this member's output of the inlined entry `plan` into `outputs`. `payloads` has one pointer per rank, valid
// where `contributors` is set; payloads are reduced in rank order. An average is weighted by `weights`, one per rank;
// a payload of weight 0 is not read. `root` is the effective root of a rooted kind.
// Precondition: plan.inlined; each payload has what plan.h says a member brings.
void combine_inline(const algorithm::EntryPlan& plan, const algorithm::RankSet& contributors,
                    std::span<const std::byte* const> payloads, std::span<const double> weights, Rank root, Rank self,
                    const std::vector<Buffer>& outputs);

}  // namespace closeranks::communicator
