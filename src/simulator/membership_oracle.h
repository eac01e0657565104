// Judges a simulated run: told of everything that happens, by those who cannot hide it, it keeps its own books and says
// which rule was broken. It shares no code with the machines.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "closeranks/ids.h"
#include "membership/coordinator.h"

namespace closeranks::simulator {

class MembershipOracle {
 public:
  // What a worker's process can do at this moment, and the words it has written: the truth, not anybody's opinion.
  struct Truth {
    std::function<bool(WorkerId)> can_run;  // false: dead, or its engine has stopped for good
    std::function<std::uint64_t(WorkerId, GroupKey)> entered;
    std::function<bool(WorkerId, ViewNumber)>
        frozen_for;  // it stands at the boundary of this round, or asks to join in it
  };

  MembershipOracle(Truth truth, std::vector<std::pair<WorkerId, Slot>> workers, std::uint32_t min_present);

  // -- grounds on which a worker may be fenced (rule 22) ------------------------------------------------------------
  void ended(WorkerId worker);       // its process is over
  void waited_for(WorkerId worker);  // some worker's op waits for it, which says so
  void stopped_too_long(WorkerId worker);
  // A worker's answer to `view` has reached the coordinator's socket: it is not late, whatever the coordinator does.
  void answer_arrived(WorkerId worker, ViewNumber view);

  // -- decisions ----------------------------------------------------------------------------------------------------
  // A worker is started for a vacant slot.
  void started(WorkerId worker, Slot slot) { workers_.emplace_back(worker, slot); }
  // What a coordinator is about to do; `last_proposal` and views are checked against all coordinators before.
  void coordinator_acts(const membership::Effects& effects);

  // -- what workers do ----------------------------------------------------------------------------------------------
  void froze(WorkerId worker, GroupKey group, const std::vector<Slot>& members,
             const std::vector<membership::ExcludedMember>& excluding);
  void installed(WorkerId worker, ViewNumber view);
  void departed(WorkerId worker, GroupKey group, const std::vector<membership::Departure>& departures);
  // Entries of a group are numbered within its epoch; `step` is the one the worker is in.
  void entered(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t sequence, std::uint64_t step);
  void completed(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t sequence,
                 const std::vector<Slot>& contributors);
  void failed(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t sequence, Slot culprit);
  // It begins `step`, in the view it has installed.
  void passed(WorkerId worker, std::uint64_t step, ViewNumber view);
  // A join gave the group a new member. `completed`: entries this member had completed; none: it is a newcomer.
  void epoch_started(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t base,
                     std::optional<std::uint64_t> completed);

  void violation(std::string sentence);
  [[nodiscard]] const std::vector<std::string>& violations() const { return violations_; }
  [[nodiscard]] bool excluded(WorkerId worker) const { return excluded_ids_.contains(worker); }
  [[nodiscard]] ViewNumber last_proposal() const { return last_proposal_; }

 private:
  struct Outcome {
    std::optional<Slot> culprit;     // failed
    std::vector<Slot> contributors;  // completed
    std::vector<WorkerId> holders;
    friend bool same(const Outcome& a, const Outcome& b) {
      return a.culprit == b.culprit && a.contributors == b.contributors;
    }
  };
  struct Bound {
    std::uint64_t last_op = 0;
    std::vector<WorkerId> holders;
  };

  void check_fence(const membership::Fence& fence);
  void check_proposal(const membership::Propose& propose);
  void check_decision(const membership::ViewDecided& decided);
  void check_resolutions(const membership::Install& install);
  void check_join(const membership::Install& install);
  void check_late(const membership::Event& event);
  void check_running(WorkerId worker, const std::string& deed);
  void record(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t sequence, Outcome outcome);

  Truth truth_;
  std::vector<std::pair<WorkerId, Slot>> workers_;
  std::uint32_t min_present_;
  std::set<WorkerId> grounds_;
  std::map<WorkerId, ViewNumber> arrived_;
  ViewNumber last_proposal_;
  ViewNumber awaited_;  // the number that answers are awaited for
  ViewNumber view_;
  std::vector<membership::ExcludedMember> excluded_;
  std::set<WorkerId> excluded_ids_;
  std::map<WorkerId, ViewNumber> installed_;
  std::map<std::pair<GroupKey, WorkerId>, std::vector<Bound>> bounds_;
  using Entry = std::tuple<GroupKey, ViewNumber, std::uint64_t>;
  std::map<Entry, std::vector<Outcome>> outcomes_;
  std::map<Entry, std::pair<std::uint64_t, WorkerId>> steps_;  // of each entry: the step it belongs to, and who says so
  std::map<std::pair<GroupKey, ViewNumber>, std::vector<std::pair<WorkerId, std::uint64_t>>> bases_;
  std::map<ViewNumber, std::uint64_t> admitted_;  // rounds: the step before whose boundary everybody stops
  std::map<ViewNumber, std::uint64_t> joins_;     // decided: the first step with the newcomers
  std::vector<std::string> violations_;
};

}  // namespace closeranks::simulator
