// A simulated worker process: the real worker machine, and a model of its engine that does ops on groups with the
// orders that matter to membership. Its words (made, connected, entered, completed) outlive it, as shared memory does.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "membership/boundary_gate.h"
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
  bool alone = false;      // a newcomer's
  std::uint64_t goal = 0;  // entries until the end of the step, or of all
  ViewNumber epoch;        // word
  std::uint64_t base = 0;
  std::uint64_t entered = 0;    // word
  std::uint64_t completed = 0;  // word
  ViewNumber view;
  std::vector<std::uint32_t> who;  // by rank: the index of the worker that is the member, or was the last one
  std::vector<bool> holds;         // by rank: that member's segment
  std::vector<membership::Departure> departures;
  std::vector<std::optional<std::uint64_t>> last_op;  // by rank: of the departed
};

class WorkerModel {
 public:
  enum class Run : std::uint8_t { waiting, running, stopped, dead };

  // `index`: its worker id is index + 1; that of a worker there from the start is its slot. `peers`: all workers by
  // index, this one included.
  WorkerModel(std::uint32_t index, std::uint32_t slot, const MembershipScenario& scenario, const ModelRules& rules,
              const membership::Rules& machine_rules, std::deque<WorkerModel>& peers);

  static WorkerId id_of(std::uint32_t index) { return WorkerId(index + 1); }
  [[nodiscard]] WorkerId id() const { return id_of(index_); }
  [[nodiscard]] std::uint32_t index() const { return index_; }
  [[nodiscard]] std::uint32_t slot() const { return slot_; }
  [[nodiscard]] bool started_late() const { return index_ >= scenario_->workers; }
  [[nodiscard]] bool dead() const { return run == Run::dead; }
  // It can still write its words.
  [[nodiscard]] bool can_run() const { return run != Run::dead && !engine_stopped; }
  [[nodiscard]] bool done() const;  // all entries of all groups, all steps
  [[nodiscard]] bool in_session() const { return scenario_->steps > 0; }
  // Truth for the oracle: it stands frozen at the boundary of `round`, or has asked to join and answered the admit.
  [[nodiscard]] bool frozen_for(ViewNumber round) const;

  // One step of the engine: at most one action per group. Returns whether anything moved; what the machine wants to
  // say about suspects is added to `says`.
  bool step(Time now, Random& random, MembershipOracle& oracle, std::vector<membership::FromWorker>& says);
  std::vector<membership::GroupStatus> freeze(const membership::FreezeRequest& request, MembershipOracle& oracle);
  // Of all groups, at a boundary or alone.
  std::vector<membership::GroupStatus> freeze_all();
  [[nodiscard]] std::vector<membership::GroupIntroduction> introductions() const;
  void round_over(const membership::RoundOver& over);
  void install(const membership::Install& install, MembershipOracle& oracle);
  void remember(const std::vector<membership::WorkerAddress>& addresses);
  [[nodiscard]] bool ahead() const;  // has entered an entry of some group that no other member has
  [[nodiscard]] std::uint64_t entered_in(std::size_t group) const;
  [[nodiscard]] std::string describe() const;  // where it stands, for a person

  membership::Worker machine;
  membership::BoundaryGate gate;
  std::uint64_t at_step = 0;           // the training thread's own count
  std::optional<ViewNumber> froze_at;  // it has just frozen at the boundary of this round: to be answered
  std::optional<ViewNumber> answered;  // newcomer: prepared for this round
  std::optional<ViewNumber> served;    // its part of the state of this round has been sent
  bool busy_at_boundary = false;       // with an op open
  bool wants_to_join = false;          // newcomer at its first boundary
  bool has_asked = false;
  bool asked_to_leave = false;
  bool leaves_now = false;  // it is at a boundary and has been asked to
  Run run = Run::waiting;
  bool engine_stopped = false;  // said goodbye
  bool kill_when_ahead = false;
  Time control_free_at{};  // its control thread does one thing at a time
  Time next_freeze_takes{};
  std::vector<std::function<void()>> deferred;  // while stopped
  std::uint64_t entries_completed = 0;
  std::uint64_t entries_failed = 0;

  static GroupKey key_of(std::size_t group) { return GroupKey(group + 100); }
  // A quarter of all entries lean on a member: they fail when it has left before it counted. By rank.
  static std::optional<std::size_t> root_of(std::size_t group, std::uint64_t sequence, std::size_t members);

 private:
  [[nodiscard]] GroupPart* part_of(std::uint32_t index, std::size_t group) const;
  bool make(std::size_t group, GroupPart& part, Time now);
  bool pass_boundary(MembershipOracle& oracle);
  // Whether `peer`'s words are those of this member's epoch.
  [[nodiscard]] bool same_epoch(const GroupPart& part, const GroupPart& other) const;
  void start_epoch(std::size_t group, GroupPart& part, const membership::GroupResolution& resolution,
                   const std::vector<membership::Filled>& members, MembershipOracle& oracle);
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
  std::uint32_t slot_;
  bool about_to_pass_ = false;  // without rule 19: it has seen no hold
  const MembershipScenario* scenario_;
  const ModelRules* rules_;
  std::deque<WorkerModel>* peers_;
  std::vector<std::optional<GroupPart>> parts_;  // by group; none: not a member
  std::set<std::uint32_t> known_;                // indexes of workers whose address it has
};

}  // namespace closeranks::simulator
