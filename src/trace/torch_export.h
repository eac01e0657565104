// A job as dumps of torch's flight recorder, one for each slot, which torchfrtrace reads.
#pragma once

#include <string>

#include "closeranks/status.h"
#include "recorder/trace.h"

namespace closeranks::trace {

// Writes DIRECTORY/closeranks_SLOT for the last worker of each slot; makes the directory. Fault::system.
Status write_torch_dumps(const recorder::JobTrace& job, const std::string& directory);

// The bytes of one.
std::string to_torch_dump(const recorder::WorkerTrace& worker, std::int64_t unix_offset_ns);

}  // namespace closeranks::trace
