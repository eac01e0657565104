// Seeded jobs with one fault each, as the files of their workers would tell them: the oracle of the verdicts. Nothing
// here is decoded or merged; a job runs in virtual time, and what its recorders would have written is its trace.
#pragma once

#include <cstdint>
#include <ostream>
#include <set>
#include <string>

#include "recorder/trace.h"
#include "trace/verdict.h"

namespace closeranks::trace {

enum class SimulatedFault : std::uint8_t {
  none,
  killed,
  out_of_memory,
  exception,
  status,
  stopped,
  stuck,
  uninterruptible,
  missing_call,
  wrong_op,
  wrong_order,
  wrong_shape,
  wrong_dtype,
  wrong_root,
  left_early,
  nan,
  data_starved,
};
constexpr std::uint8_t simulated_faults = 17;

std::string_view name_of(SimulatedFault fault);

struct SimulatedTrace {
  recorder::JobTrace job;
  SimulatedFault fault = SimulatedFault::none;
  std::set<Slot> culprits;  // empty: nobody may be accused
  std::set<Kind> kinds;     // right answers, if all files are there
  bool all_files = true;    // none is missing, cut or overwritten, and the clocks agree
  std::string story;        // what happened, for a person
};

// The same seed gives the same trace.
SimulatedTrace simulate_trace(std::uint64_t seed);

// All that the files say, as text.
void print(std::ostream& to, const recorder::JobTrace& job);

}  // namespace closeranks::trace
