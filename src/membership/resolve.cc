// The decision of a view change for one group: who counts in which entry.
#include <algorithm>

#include "base/assert.h"
#include "membership/group_status.h"

namespace closeranks::membership {
namespace {

bool same_decision(const Departure& a, const Departure& b) {
  return a.worker == b.worker && a.slot == b.slot && a.last_op == b.last_op;
}

// Each status lists the group's departures up to its own installed view, in the order of exclusion: one list is the
// beginning of every longer one. The longest is what has been decided. (A group that fails with its members decides
// nothing together; its numbers are each member's own.)
std::vector<Departure> decided_departures(const std::vector<GroupStatus>& statuses) {
  if (statuses.empty()) return {};
  const auto longest = std::max_element(statuses.begin(), statuses.end(), [](const auto& a, const auto& b) {
    return a.departures.size() < b.departures.size();
  });
  for (const GroupStatus& status : statuses) {
    CR_ASSERT(status.policy == Policy::fail || std::equal(status.departures.begin(), status.departures.end(),
                                                          longest->departures.begin(), same_decision));
  }
  return longest->departures;
}

std::uint64_t largest_observed(const std::vector<GroupStatus>& statuses, WorkerId worker) {
  std::uint64_t largest = 0;
  for (const GroupStatus& status : statuses) {
    for (const ObservedEntry& entry : status.observed) {
      if (entry.worker == worker) largest = std::max(largest, entry.entered);
    }
  }
  return largest;
}

}  // namespace

GroupResolution resolve_group(const std::vector<GroupStatus>& statuses, ViewNumber view,
                              const std::vector<ExcludedMember>& excluded, const Rules& rules,
                              const std::vector<Refill>& refills) {
  CR_ASSERT(!statuses.empty());
  const GroupStatus& first = statuses.front();
  const auto has = [&first](Slot slot) {
    return std::find(first.members.begin(), first.members.end(), slot) != first.members.end();
  };
  const auto filled_since = [&refills](Slot slot, ViewNumber departed) {
    return std::any_of(refills.begin(), refills.end(),
                       [&](const Refill& refill) { return refill.slot == slot && refill.view > departed; });
  };
  std::uint64_t entered = 0;
  ViewNumber known;  // the newest epoch that somebody has installed
  for (const GroupStatus& status : statuses) {
    CR_ASSERT(status.group == first.group && status.members == first.members);
    if (status.alone && rules.newcomer_brings_no_numbers) continue;
    entered = std::max(entered, status.entered);
    known = std::max(known, status.epoch);
  }
  GroupResolution resolution;
  resolution.group = first.group;
  resolution.view = view;
  resolution.epoch = known;
  for (const Refill& refill : refills) {
    if (has(refill.slot)) resolution.epoch = std::max(resolution.epoch, refill.view);
  }
  const bool starts_anew = resolution.epoch != known;
  std::vector<GroupStatus> newest;
  for (const GroupStatus& status : statuses) {
    if (!status.alone && status.epoch == known) newest.push_back(status);
  }
  resolution.base = starts_anew || newest.empty() ? entered : newest.front().base;
  if (rules.decide_once) resolution.departures = decided_departures(newest);
  std::erase_if(resolution.departures,
                [&](const Departure& departure) { return filled_since(departure.slot, departure.view); });

  for (const ExcludedMember& member : excluded) {
    if (!has(member.slot) || filled_since(member.slot, member.view)) continue;
    const bool decided = std::any_of(resolution.departures.begin(), resolution.departures.end(),
                                     [&](const Departure& departure) { return departure.worker == member.worker; });
    if (decided) continue;
    std::uint64_t last_op = largest_observed(statuses, member.worker);
    if (rules.bound_by_survivors) last_op = std::min(last_op, entered);
    resolution.departures.push_back({member.worker, member.slot, member.view, last_op});
  }
  return resolution;
}

}  // namespace closeranks::membership
