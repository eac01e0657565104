// torch's own flight recorder: its pickled dumps, of any backend, as a WorkerTrace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "closeranks/status.h"
#include "recorder/trace.h"

namespace closeranks::trace {

// `file` ends with the rank, as torch names its dumps ("..._3", "rank_3"). Times are unix nanoseconds; `written_ns`,
// too, is the file's own. Fault::refused: no pickle, or none of a flight recorder.
Result<recorder::WorkerTrace> read_torch_dump(std::span<const std::byte> bytes, const std::string& file,
                                              std::int64_t written_ns);

// Groups whose members the dumps do not name have the ranks that used them; the default group has all.
void complete_members(recorder::JobTrace& job);

}  // namespace closeranks::trace
