// A newcomer before it joins: it runs its script from the top with nobody there. Each op is done at its issue, on this
// member's input alone, so that constructors that compare and broadcast (DDP's) meet themselves.
#pragma once

#include <cstddef>
#include <vector>

#include "closeranks/communicator.h"
#include "closeranks/status.h"
#include "communicator/call_shape.h"

namespace closeranks::communicator {

// Does `call`, of which shape_of() has given `shape`:
//   all_reduce, reduce_scatter   the reduction of one input; zeros where an average has weight 0
//   reduce                       the same when this member is root; else nothing
//   all_gather, gather           the own input in every place
//   broadcast                    from anybody: the caller's memory stays as it is, or gets `answer`
//   all_to_all                   the own part to itself, zeros from the others
//   scatter                      the own unit when this member is root; else the caller's memory stays as it is
//   send, recv                   Fault::unsupported: there is nobody
// `answer`: what the survivors' broadcast gave, or nullptr. Fault::mismatch when its size is another.
Status run_alone(const Call& call, const CallShape& shape, const GroupFacts& group, double weight,
                 const std::vector<std::byte>* answer);

}  // namespace closeranks::communicator
