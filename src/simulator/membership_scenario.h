// What happens in one simulated run, drawn from its seed: the job, its groups, its faults.
#pragma once

#include <cstdint>
#include <vector>

#include "membership/roster.h"
#include "simulator/membership_random.h"

namespace closeranks::simulator {

using membership::Time;

enum class FaultKind : std::uint8_t {
  kill,               // SIGKILL of `worker`
  kill_when_ahead,    // the same, as soon as it has entered an entry that nobody else has
  stop,               // SIGSTOP, continued after `duration`
  exit_zero,          // exits with status 0 in the midst of its ops
  goodbye,            // leaves in order, its process goes on
  false_suspicion,    // `worker` suspects the healthy `other`; an op waits for it
  idle_suspicion,     // the same, and no op waits for it
  break_link,         // control connection of `worker`; messages on it are lost, or come late and out of order
  agent_outage,       // agent of host `worker` is gone for `duration`
  coordinator_crash,  // a new one starts after `duration`
  coordinator_stall,  // it does nothing for `duration`
  slow_freeze,        // `worker` takes `duration` for its next freeze
  drain,              // the host of `worker` goes away in order
  resize,             // to `other` workers
};

struct PlannedFault {
  Time at{};
  FaultKind kind = FaultKind::kill;
  std::uint32_t worker = 0;
  std::uint32_t other = 0;
  Time duration{};
};

struct PlannedGroup {
  std::vector<std::uint32_t> members;  // slots, ascending
  std::uint64_t entries = 0;           // every member does this many; in a session, in each step
  std::vector<Time> made_at;           // per member
  bool loose = false;                  // of a session: its ops may be in flight at a boundary
};

// A fault that names a worker means its slot: whoever fills it then.
struct MembershipScenario {
  std::uint32_t workers = 0;          // at the start; as many slots
  std::uint64_t steps = 0;            // of a session, with a boundary before each; 0: no session, nobody can join
  std::uint32_t starts_per_slot = 0;  // newcomers that the agents start at most
  std::uint32_t transfer_fails_percent = 0;  // chance that a part of a transfer fails
  Time start_delay{};                        // largest, from a vacancy to a newcomer's first words
  std::uint32_t hosts = 1;
  std::uint32_t min_present = 1;
  std::vector<PlannedGroup> groups;
  std::vector<PlannedFault> faults;
  std::vector<Time> started_at;              // per worker
  std::uint32_t kill_in_change_percent = 0;  // chance that a delivered proposal or install is the receiver's last
  std::uint32_t break_in_change_percent =
      0;  // chance that a connection breaks just after a proposal or install is sent
  std::uint32_t crash_in_change_percent =
      0;  // chance that the coordinator crashes in the midst of a decision's effects
  std::uint32_t exit_when_done_percent = 0;
  Time link_delay{};  // largest
  Time step{};        // largest pause between two steps of a worker
  Time faults_end{};

  [[nodiscard]] std::uint32_t host_of(std::uint32_t slot) const { return slot % hosts; }
};

// `workers` 0: drawn.
MembershipScenario draw_membership_scenario(std::uint64_t seed, std::uint32_t workers);

}  // namespace closeranks::simulator
