// What a worker's own past says of its present: steps, and the order of its calls.
#pragma once

#include <cstdint>
#include <optional>

#include "trace/job_index.h"

namespace closeranks::trace {

// The newest step that it has begun.
std::optional<std::uint64_t> last_step(const recorder::WorkerTrace& worker);

struct SkippedCall {
  std::uint64_t step = 0;
  std::uint64_t made = 0;
  std::uint64_t expected = 0;
};

// The first step in which a member made fewer calls on the group than the others, who agree.
std::optional<SkippedCall> find_skipped_call(const GroupIndex& group, Slot slot);

// After calls like its last ones it has always gone to another group than the one that it is in now.
bool breaks_its_own_order(const recorder::WorkerTrace& worker);

}  // namespace closeranks::trace
