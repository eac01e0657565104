// The job's log of events (docs/events.md), as the events of an agent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "recorder/trace.h"

namespace closeranks::trace {

// A file that begins with `head` is one.
bool is_event_log(std::string_view head);

// Of several jobs in one file the last. Lines that make no sense are counted in `damaged`.
recorder::WorkerTrace read_event_log(const std::string& path, std::int64_t unix_offset_ns);

}  // namespace closeranks::trace
