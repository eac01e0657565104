// What this host's kernel says of the processes that a trace is about: whether they run, are stopped, or hang in the
// kernel.
#pragma once

#include "recorder/trace.h"

namespace closeranks::trace {

// Sets WorkerTrace::running where it can be known from here (same host, same boot), JobTrace::read_ns when one of them
// runs, and adds what was seen as the events of an observer.
void look_at_processes(recorder::JobTrace& job);

}  // namespace closeranks::trace
