// A job as trace events of Chrome's JSON format, which Perfetto opens: a track for each slot, ops as slices, an arrow
// from the last arrival to each member that waited for it.
#pragma once

#include <string>

#include "recorder/trace.h"
#include "trace/verdict.h"

namespace closeranks::trace {

std::string to_perfetto(const recorder::JobTrace& job, const Verdict& verdict);

}  // namespace closeranks::trace
