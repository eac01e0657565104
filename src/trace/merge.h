// All that a directory has of a job: recorders' files of workers and agents, dumps of torch's flight recorder, the log
// of events.
#pragma once

#include <string>

#include "closeranks/status.h"
#include "recorder/trace.h"
#include "trace/verdict.h"

namespace closeranks::trace {

// Looks through the directory and all below it. Of several jobs the newest is taken; the others, and files that could
// not be read, are in JobTrace::remarks. Fault::invalid_argument with a sentence: no directory, or nothing in it.
Result<recorder::JobTrace> read_directory(const std::string& directory);

// The verdict on what a directory has, for the text of an exception. Any thread; takes some milliseconds for each
// worker.
Result<Verdict> verdict_of(const std::string& directory, const VerdictOptions& options = {});

}  // namespace closeranks::trace
