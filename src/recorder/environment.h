// The recorder's file as a process's environment asks for it.
#pragma once

#include <memory>

#include "recorder/ring_writer.h"

namespace closeranks::recorder {

// A file in $CLOSERANKS_TRACE_DIR, of at most $CLOSERANKS_TRACE_BYTES; `options` has the rest. nullptr when the folder
// is not named, and when there can be no file: then the log says so, and nothing else changes.
std::shared_ptr<RingWriter> open_from_environment(RingOptions options);

}  // namespace closeranks::recorder
