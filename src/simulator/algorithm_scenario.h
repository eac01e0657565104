// What one simulated run of the shared-memory algorithm consists of: the group, its calls, its faults, its rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "algorithm/plan.h"
#include "algorithm/rules.h"
#include "closeranks/ids.h"
#include "closeranks/op.h"
#include "membership/rules.h"

namespace closeranks::simulator {

// Orders that are kept by the engine and the coordinator around the machine; see algorithm::Rules for those within.
struct SurroundingRules {
  bool fence_before_propose = true;      // protocol rule 8. Off: a suspect is killed at any later time
  bool memory_of_the_dead_stays = true;  // protocol rule 5. Off: unmapped at install
  bool connect_before_entering = true;   // protocol rule 6. Off: nobody waits until all hold each other's memory
  bool entered_after_data = true;        // the recipe's first order. Off: entered is stored before the data
  // What peers see of the memory of an op that its member has given up stays as it is. Off: the caller writes into it.
  bool given_up_memory_stays = true;
};

// One entry of the group, the same on every member.
struct ScenarioCall {
  OpKind kind = OpKind::all_reduce;
  std::uint32_t parts = 1;  // blocks (style share) or ranges of each unit (style take); 0: inline
  Rank root;
};

// A member that makes another call than the rest at one entry.
struct OddCall {
  Rank member;
  std::uint64_t sequence = 0;
};

struct AlgorithmScenario {
  static constexpr std::uint32_t max_members = 16;

  std::uint32_t members = 3;
  Policy policy = Policy::repair;
  bool coordinated =
      true;  // lost members leave by a view; otherwise their peers notice by themselves (policy fail only)
  bool lowest_member_is_root = false;
  std::uint32_t window = 2;   // ring slots
  std::uint32_t regions = 2;  // tensors a member uses in turn: a region is written again once its entry is complete
  std::vector<ScenarioCall> calls;
  std::optional<OddCall> odd;
  std::uint32_t crashes = 1;   // members that may die, at any step, in the middle of a write too
  std::uint32_t give_ups = 0;  // members whose op may time out for them alone
  std::uint32_t restarts = 0;  // of the coordinator, in the middle of a view change
  bool connecting = false;     // members start without each other's memory and get hold of it one after the other
  // Nobody enters this entry before a newcomer has taken a lost member's place, or the boundary is passed without one.
  std::optional<std::uint64_t> rejoin_at;
  std::uint64_t entries_per_step = 2;  // between two boundaries (policy exact)
  bool cut_entering = false;           // copying in, describing and entering as steps of their own
  bool cut_claiming = true;            // others may come between the look at a block's word and its swap
  bool cut_reducing = true;            // reducing in two halves
  bool cut_taking = true;              // taking in two halves
  algorithm::Rules rules;
  membership::Rules resolving;  // of resolve_group()
  SurroundingRules surrounding;
};

// The plan of a call: a real one, but with tiny blocks where it has any (style share).
algorithm::EntryPlan plan_of(const ScenarioCall& call, std::uint32_t members);

// One line: "3 members, repair, [all_reduce x2, barrier inline], 1 crash, ...".
std::string describe(const AlgorithmScenario& scenario);

}  // namespace closeranks::simulator
