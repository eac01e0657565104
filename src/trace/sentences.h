// Slots, workers, ops and times in the sentences of a verdict.
#pragma once

#include <cstdint>
#include <string>

#include "base/slot_names.h"
#include "closeranks/ids.h"
#include "recorder/trace.h"
#include "trace/job_index.h"

namespace closeranks::trace {

// "slot 2 (worker 5 on alpha, pid 4711)": what the files know of it.
std::string name_worker(const JobIndex& index, Slot slot);
std::string name_worker(Slot slot, const recorder::WorkerTrace* worker);
// "all_reduce #12 of group 'world'"
std::string name_op(const std::string& kind, std::uint64_t sequence, const std::string& group);
// "all_reduce(float32 [64, 3], sum)", "broadcast(float32 [4], root 1)"
std::string describe(const recorder::OpCall& call);
// "840 us", "3.2 s", "2 min"
std::string duration(std::int64_t ns);
// "SIGKILL"; "signal 70" for one without a name
std::string name_signal(int signal);
// "1 call", "3 calls"
std::string count_of(std::uint64_t number, const std::string& noun);
// The last line that is not empty, without its line end.
std::string last_line(const std::string& text);
// The first `File "x.py", line 3 in f` of a stack in faulthandler's order; empty: there is none.
std::string innermost(const std::string& stack);
// " at File "x.py", line 3 in f", if the op's record says where it was called.
std::string at_its_line(const recorder::OpTrace& op);

}  // namespace closeranks::trace
