// A simulated worker process: the real worker machine, and a model of its engine that does ops on groups with the
// orders that matter to membership. Its words (made, connected, entered, completed) outlive it, as shared memory does.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "membership/worker.h"
#include "simulator/membership_oracle.h"
#include "simulator/membership_random.h"
#include "simulator/membership_scenario.h"
#include "simulator/membership_simulator.h"

namespace closeranks::simulator {

// One worker's part of one group.
struct GroupPart {
  std::uint32_t rank = 0;
  bool made = false;
  bool connected = false;      // word: holds the segments of all present members
  bool all_connected = false;  // has seen that everybody is
  bool frozen = false;
  std::uint64_t entered = 0;    // word
  std::uint64_t completed = 0;  // word
  ViewNumber view;
  std::vector<bool> holds;  // by rank: the member's segment
  std::vector<membership::Departure> departures;
  std::vector<std::optional<std::uint64_t>> last_op;  // by rank: of the departed
  std::vector<membership::FailedRange> failed;
};

class WorkerModel {
 public:
  enum class Run : std::uint8_t { waiting, running, stopped, dead };

  // `index`: also its slot; its worker id is index + 1. `peers`: all workers by index, this one included.
  WorkerModel(std::uint32_t index, const MembershipScenario& scenario, const ModelRules& rules,
              const membership::Rules& machine_rules, std::vector<WorkerModel>& peers);

  static WorkerId id_of(std::uint32_t index) { return WorkerId(index + 1); }
  [[nodiscard]] WorkerId id() const { return id_of(index_); }
  [[nodiscard]] std::uint32_t index() const { return index_; }
  [[nodiscard]] bool dead() const { return run == Run::dead; }
  // It can still write its words.
  [[nodiscard]] bool can_run() const { return run != Run::dead && !engine_stopped; }
  [[nodiscard]] bool done() const;  // all entries of all groups

  // One step of the engine: at most one action per group. Returns whether anything moved; what the machine wants to
  // say about suspects is added to `says`.
  bool step(Time now, Random& random, MembershipOracle& oracle, std::vector<membership::FromWorker>& says);
  std::vector<membership::GroupStatus> freeze(const membership::FreezeRequest& request, MembershipOracle& oracle);
  void install(const membership::Install& install, MembershipOracle& oracle);
  void remember(const std::vector<membership::WorkerAddress>& addresses);
  [[nodiscard]] bool ahead() const;  // has entered an entry of some group that no other member has
  [[nodiscard]] std::uint64_t entered_in(std::size_t group) const;
  [[nodiscard]] std::string describe() const;  // where it stands, for a person

  membership::Worker machine;
  Run run = Run::waiting;
  bool engine_stopped = false;  // said goodbye
  bool kill_when_ahead = false;
  Time control_free_at{};  // its control thread does one thing at a time
  Time next_freeze_takes{};
  std::vector<std::function<void()>> deferred;  // while stopped
  std::uint64_t entries_completed = 0;
  std::uint64_t entries_failed = 0;

  static GroupKey key_of(std::size_t group) { return GroupKey(group + 100); }
  // A quarter of all entries are of a kind that is not repaired.
  static bool repairable(std::size_t group, std::uint64_t sequence);

 private:
  [[nodiscard]] GroupPart* part_of(std::uint32_t index, std::size_t group) const;
  bool make(std::size_t group, GroupPart& part, Time now);
  bool connect(std::size_t group, GroupPart& part, Time now, std::vector<membership::FromWorker>& says);
  bool enter(std::size_t group, GroupPart& part, MembershipOracle& oracle, std::vector<membership::FromWorker>& says);
  bool complete(std::size_t group, GroupPart& part, MembershipOracle& oracle,
                std::vector<membership::FromWorker>& says);
  // The life word of a peer whose segment is held.
  void look_at(std::uint32_t peer, bool in_op, std::vector<membership::FromWorker>& says);
  [[nodiscard]] bool affected(std::size_t group, const std::vector<membership::ExcludedMember>& excluding) const;
  static void set_departures(GroupPart& part, const PlannedGroup& group, std::vector<membership::Departure> departures);
  [[nodiscard]] membership::GroupStatus status_of(std::size_t group, const GroupPart& part) const;

  std::uint32_t index_;
  const MembershipScenario* scenario_;
  const ModelRules* rules_;
  std::vector<WorkerModel>* peers_;
  std::vector<std::optional<GroupPart>> parts_;  // by group; none: not a member
  std::vector<bool> known_;                      // by index: its address
};

}  // namespace closeranks::simulator
