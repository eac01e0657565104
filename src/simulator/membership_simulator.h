// Seeded simulation of a whole job's membership: the real machines of coordinator and workers, between them links that
// break, delay and lose, agents, workers that are killed, stopped, exit or are falsely suspected, and coordinators that
// crash between any two effects. Workers do a model of ops on groups, so that an oracle can judge what matters:
// that every survivor ends every op alike. One thread, no clock; a seed replays exactly.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "membership/rules.h"

namespace closeranks::simulator {

// Rules kept by what surrounds the machines (engine, runtime); off in tests that show what breaks without them.
struct ModelRules {
  bool hold_all_segments_before_entering = true;  // protocol rule 6
  bool keep_promise = true;                       // rule 7: nothing moves between prepared and install
  bool freeze_only_affected = true;               // rule 9
  bool journal_before_sending = true;             // rule 21
  bool step_and_hold_are_one = true;              // rule 19: a boundary is passed in one atomic step
};

struct MembershipRun {
  std::uint64_t seed = 0;
  std::uint32_t workers = 0;  // 0: drawn from the seed: mostly 2 to 16, now and then 200 or 1,000
  membership::Rules rules;
  ModelRules model;
  std::ostream* transcript = nullptr;  // one line per message, fault and decision
};

struct MembershipReport {
  std::vector<std::string> violations;  // empty: every rule held. The run stops at the first
  std::uint32_t workers = 0;
  std::uint64_t faults = 0;
  std::uint64_t views = 0;
  std::uint64_t exclusions = 0;
  std::uint64_t joins = 0;            // newcomers that got in
  std::uint64_t joins_cancelled = 0;  // rounds that came to nothing
  std::uint64_t coordinator_starts = 0;
  std::uint64_t entries_completed = 0;
  std::uint64_t entries_failed = 0;
  std::uint64_t events = 0;  // simulated steps
  std::uint64_t simulated_us = 0;
  bool gave_up = false;  // legally
  [[nodiscard]] bool ok() const { return violations.empty(); }
};

MembershipReport run_membership(const MembershipRun& run);

}  // namespace closeranks::simulator
