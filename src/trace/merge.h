// All that a directory has of a job: recorders' files of workers and agents, dumps of torch's flight recorder, the log
// of events.
#pragma once

#include <string>

#include "closeranks/status.h"
#include "recorder/ring_reader.h"
#include "recorder/trace.h"
#include "trace/verdict.h"

namespace closeranks::trace {

// Looks through the directory and all below it. Of several jobs the newest is taken; the others, and files that could
// not be read, are in JobTrace::remarks. Fault::invalid_argument with a sentence: no directory, or nothing in it.
// `newest`: records read of each ring (ring_reader.h).
Result<recorder::JobTrace> read_directory(const std::string& directory, std::uint64_t newest = recorder::all_records);

}  // namespace closeranks::trace
