// Which sides of a call may be worked on where they lie, should that be in shared memory. A side that may not is
// staged. Each member chooses for itself: it changes neither the result nor the order of anything. Pure.
#pragma once

#include <optional>

#include "closeranks/communicator.h"
#include "communicator/call_shape.h"

namespace closeranks::communicator {

struct InPlace {
  // One buffer, aligned to its element; nullopt: to be staged. An input that overlaps an output is one only
  // in the forms that communicator.h names; others may still be read when the output is written.
  std::optional<Buffer> input;
  // Of the kinds whose results come from other members (all_reduce, reduce).
  std::optional<Buffer> output;
};

// Precondition: shape_of() has found the call to be sound.
InPlace in_place(const Call& call, const CallShape& shape, const GroupFacts& group);

// Where elements of the type may begin.
bool aligned_to(DType dtype, const void* memory);

}  // namespace closeranks::communicator
