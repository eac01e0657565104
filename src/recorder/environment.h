// The recorder's file as a process's environment asks for it.
#pragma once

#include <memory>

#include "closeranks/engine.h"
#include "recorder/ring_writer.h"

namespace closeranks::recorder {

// A file for `worker` in $CLOSERANKS_TRACE_DIR, of at most $CLOSERANKS_TRACE_BYTES. nullptr when the folder is not
// named, in a build that does not record, and when there can be no file: then the log says so, and nothing else
// changes.
std::shared_ptr<RingWriter> open_from_environment(const EngineOptions& worker);

}  // namespace closeranks::recorder
