// What the engine does with a call, and why, in one line of words: for `closeranks bench --explain`. Told by the same
// pure functions that the engine asks, not by a list of thresholds.
#pragma once

#include <cstdint>
#include <string>

#include "closeranks/communicator.h"
#include "closeranks/shared_memory.h"

namespace closeranks::bench {

// Precondition: `call` is well formed for rank `self` of `members`. send and recv are told, too.
std::string explain(const Call& call, std::uint32_t members, Rank self, const SharedMemory& memory);

}  // namespace closeranks::bench
