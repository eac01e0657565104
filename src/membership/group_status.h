// What a survivor tells of one group when it is frozen, and what the coordinator decides from all answers.
// Pure data, shared by the membership machines, the control codec and the group machine of src/algorithm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "closeranks/op.h"
#include "membership/rules.h"

namespace closeranks::membership {

// How many ops of an excluded worker count: its input is in op q exactly if last_op > q. Decided once, at the first
// resolve that excludes it, and handed on in every later status (protocol rule 16). What becomes of an entry follows
// from it: an entry that only a departed root could finish fails on every survivor (protocol rule 11).
struct Departure {
  WorkerId worker;
  Slot slot;
  ViewNumber view;            // the first view without it
  std::uint64_t last_op = 0;  // exclusive bound
  friend bool operator==(const Departure&, const Departure&) = default;
};

// An entry word of a newly excluded worker, read from its memory after the fence (protocol rule 8).
struct ObservedEntry {
  WorkerId worker;
  std::uint64_t entered = 0;
  friend bool operator==(const ObservedEntry&, const ObservedEntry&) = default;
};

// State of a chunk of an op in flight between hosts: what this survivor holds of it. Empty on one host, where new
// owners read the block words themselves.
struct ChunkState {
  std::uint64_t sequence = 0;
  std::uint32_t chunk = 0;
  std::uint8_t state = 0;          // 0 intact, 1 gone, 2 final
  std::uint64_t contributors = 0;  // bit r: rank r is in it (final only)
  friend bool operator==(const ChunkState&, const ChunkState&) = default;
};

struct GroupStatus {
  GroupKey group;
  std::string name;
  std::vector<Slot> members;  // rank order, as the group was made
  Policy policy = Policy::fail;
  ViewNumber view;                    // the group's own view number (protocol rule 9)
  std::uint64_t entered = 0;          // entries this worker has entered
  std::uint64_t completed = 0;        // entries it has completed
  std::vector<Departure> departures;  // all decided so far, in the order of their exclusion
  std::vector<ObservedEntry> observed;
  std::vector<ChunkState> chunks;
  ViewNumber epoch{};      // the last join that gave the group a new member; {0,0}: as it was made
  std::uint64_t base = 0;  // the first entry of this epoch: all before it were complete everywhere
  // Made by a newcomer that is not in yet: only group, name, members and policy say anything (protocol rule 18).
  bool alone = false;
  friend bool operator==(const GroupStatus&, const GroupStatus&) = default;
};

struct GroupResolution {
  GroupKey group;
  ViewNumber view;
  std::vector<Departure> departures;  // complete: earlier ones and the new ones, in order of exclusion
  // Of the epoch the group is in from here on. Higher than the receiver's own: a member has joined, the group starts
  // anew at `base` with the present members; `departures` name the slots that are still vacant, and nobody else.
  ViewNumber epoch{};
  std::uint64_t base = 0;
  friend bool operator==(const GroupResolution&, const GroupResolution&) = default;
};

struct ExcludedMember {
  WorkerId worker;
  Slot slot;
  ViewNumber view;     // first view without it
  std::string reason;  // "killed by signal 9", "stopped for 5.0 s", ...
  friend bool operator==(const ExcludedMember&, const ExcludedMember&) = default;
};

// A slot was filled anew, with this view.
struct Refill {
  Slot slot;
  ViewNumber view;
  friend bool operator==(const Refill&, const Refill&) = default;
};

// Pure: the decision for one group, from the statuses of all its survivors (at least one, in any order, possibly of
// different installed views) under view `view`. `excluded` are the members this view excludes, in order of exclusion;
// those outside of the group, and those some status has a departure of, are skipped: a decision stands (rule 16).
//   last_op(D) = min(largest observed entry word of D, largest `entered` of the survivors)
// `refills`: of all slots. They bring the group into the epoch of the newest one that is a member of it, whether a
// survivor has installed that join or not: statuses of that epoch tell its departures and base; if there is
// none, everybody is frozen at the join's boundary still and the base is where the survivors are. Departures of slots
// filled since are dropped. Statuses `alone` tell no numbers; a group of which there are no others begins at 0.
// Statuses that contradict each other (members, departures) are a broken invariant.
GroupResolution resolve_group(const std::vector<GroupStatus>& statuses, ViewNumber view,
                              const std::vector<ExcludedMember>& excluded, const Rules& rules = {},
                              const std::vector<Refill>& refills = {});

}  // namespace closeranks::membership
