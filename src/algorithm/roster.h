// What a group knows of its members: who is present, how many ops of each excluded one count, and who owns the seats.
// Immutable between installs, so every question about an entry has one answer until then.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "algorithm/plan.h"
#include "algorithm/rules.h"
#include "algorithm/seats.h"
#include "closeranks/ids.h"
#include "membership/group_status.h"

namespace closeranks::algorithm {

class Roster {
 public:
  // All of `slots` (rank order) present.
  explicit Roster(std::vector<Slot> slots);
  // The group starts anew at entry `decision.base`: all present but the departures. These are of no entry of the epoch.
  Roster(std::vector<Slot> slots, const membership::GroupResolution& decision, const Rules& rules);

  // Applies a decision. Known departures are skipped, whatever it says of them (protocol rule 16). Slots outside the
  // group are ignored. Returns the ranks excluded by it, in the order of their exclusion.
  std::vector<Rank> apply(const membership::GroupResolution& resolution, const Rules& rules);

  [[nodiscard]] const RankSet& present() const { return present_; }
  [[nodiscard]] bool present(Rank member) const { return present_[member.value()]; }
  [[nodiscard]] bool all_present() const { return departures_.empty(); }
  [[nodiscard]] bool contributes(Rank member, std::uint64_t sequence) const {
    return last_op_[member.value()] > sequence;
  }
  // Whether policy `exact` expects the member in the entries of a step whose first one is `step_start`: it was there
  // when the step began. A function of what all survivors know alike, so that they agree also when the member was lost
  // between two of them passing the boundary: one that counts in all entries of the epoch before the step, and in some,
  // is expected in it.
  [[nodiscard]] bool expected(Rank member, std::uint64_t step_start) const;
  // Present members count in every entry; so there always is one while anybody is present.
  [[nodiscard]] Rank lowest_contributor(std::uint64_t sequence) const;

  // Who is to blame if `sequence` cannot be done: the root of a rooted kind, when it left before it counted. nullopt:
  // it can. A function of the decided departures, which are kept, so every survivor says the same of the entry whenever
  // it comes to it (protocol rule 11); and when it is lost nobody has moved a byte of it, for nobody was ready.
  [[nodiscard]] std::optional<Rank> lost(const EntryPlan& plan, std::uint64_t sequence,
                                         bool lowest_member_is_root) const {
    return all_present() ? std::nullopt : lost_root(plan, sequence, lowest_member_is_root);  // asked at every look
  }

  [[nodiscard]] std::uint64_t departed_at(Slot slot) const;  // last_op; of a present member the largest number
  [[nodiscard]] const Seats& seats() const { return seats_; }
  [[nodiscard]] const std::vector<membership::Departure>& departures() const { return departures_; }

 private:
  [[nodiscard]] std::optional<Rank> rank_of(Slot slot) const;
  [[nodiscard]] std::optional<Rank> lost_root(const EntryPlan& plan, std::uint64_t sequence,
                                              bool lowest_member_is_root) const;

  std::vector<Slot> slots_;
  RankSet present_;
  std::vector<std::uint64_t> last_op_;  // exclusive bound; of a present member: the largest number
  Seats seats_;
  std::vector<membership::Departure> departures_;
  std::uint64_t base_ = 0;  // first entry of the epoch
};

}  // namespace closeranks::algorithm
