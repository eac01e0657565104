// One frame of `closeranks top`: where each slot of a job is, as the recorder's files say, made to fit a terminal.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "recorder/trace.h"
#include "trace/job_index.h"
#include "trace/verdict.h"

namespace closeranks::trace {

// What one slot is doing. Times in nanoseconds.
struct SlotPace {
  Slot slot;
  const recorder::WorkerTrace* worker = nullptr;  // its last one; null: it left no file
  std::optional<std::uint64_t> step;
  std::optional<std::int64_t> step_time;  // median of the newest steps
  std::optional<double> waiting;          // part of the time in which it waited for others, 0 to 1
  std::string doing;                      // "in all_reduce #12 of group 'world' for 3.2 s", "gone"
};

struct FrameOptions {
  std::size_t columns = 120;                // 24 at least are used
  std::size_t lines = 0;                    // at most; 0: as many as it takes
  std::int64_t now_ns = 0;                  // the job's clock; 0: the newest moment in the files
  std::string clock;                        // the time of day, for the head
  std::int64_t window_ns = 10'000'000'000;  // over which waiting is counted
};

// `now_ns` as above, but never 0.
SlotPace pace_of(const JobIndex& index, Slot slot, std::int64_t now_ns, std::int64_t window_ns);

// No line is longer than `columns` characters, and none is empty. Where the slots do not fit, the slowest are shown.
std::vector<std::string> live_frame(const recorder::JobTrace& job, const Verdict& verdict, const FrameOptions& options);

}  // namespace closeranks::trace
