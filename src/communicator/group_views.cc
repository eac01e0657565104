// Members coming and going: connections, freeze and install, and the group's policy.
#include <algorithm>

#include "communicator/group.h"
#include "membership/worker.h"

namespace closeranks::communicator {

std::vector<Slot> Group::present() const {
  if (alone()) return {members_.slot(members_.self())};
  std::vector<Slot> slots;
  const algorithm::RankSet& ranks = machine_.present();
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (ranks[r]) slots.push_back(members_.slot(Rank{r}));
  }
  return slots;
}

bool Group::has_present(Slot slot) const {
  const std::optional<Rank> rank = members_.rank_of(slot);
  if (alone()) return rank == members_.self();
  return rank.has_value() && machine_.present()[rank->value()];
}

void Group::look_at_connections() {
  if (alone()) return;
  if (members_.publish_connected(machine_.present())) ring_pending_ = true;
}

membership::GroupStatus Group::freeze(const std::vector<membership::ExcludedMember>& excluding) {
  view_pending_ = true;
  membership::GroupStatus status = freeze_for_round();
  for (const membership::ExcludedMember& excluded : excluding) {
    const std::optional<Rank> rank = members_.rank_of(excluded.slot);
    if (!rank) continue;
    if (const std::shared_ptr<Peer>& peer = members_.peer(*rank)) peer->excluded_because = excluded.reason;
    // Without its segment this member cannot have been entered by it either (protocol rule 6): nothing to observe.
    if (members_.segment(*rank) != nullptr) {
      status.observed.push_back({excluded.worker, members_.entered(*rank)});
    }
  }
  return status;
}

void Group::install(const membership::Install& install, const std::vector<std::shared_ptr<Peer>>& members) {
  // Freezing is no step of its own here: it tells what is known, and install() ends it.
  const membership::GroupStatus known = freeze_for_round();
  view_pending_ = false;
  membership::GroupResolution resolution = membership::resolution_for(install, known);
  if (resolution.epoch > machine_.epoch()) return start_anew(resolution, members);
  if (machine_.policy() == Policy::fail) {
    // Not frozen and not resolved: an entry of such a group succeeds with everybody or fails. What a lost member had
    // entered counts, so that an entry that others have decided to succeed is combined with its input here too. And
    // what the survivors have resolved that had changed the policy before this one: it may be about to follow them, and
    // the entry is one with the same contributors, and its words in the same place, for all.
    for (membership::Departure& departure : resolution.departures) {
      const std::optional<Rank> rank = members_.rank_of(departure.slot);
      if (rank && has_present(departure.slot)) {
        departure.last_op = std::max(departure.last_op, std::min(members_.entered(*rank), machine_.entered()));
      }
    }
  }
  const algorithm::RankSet before = machine_.present();
  machine_.install(resolution);
  usual_ = false;
  if (!entries_.empty() && machine_.present() != before) {
    repaired_below_ = machine_.entered();
    taken_over_before_ = machine_.blocks_taken_over();  // what is taken over from here on is this view's
  }
  part_from(resolution.departures);
  look_at_connections();
}

// Their messages end, once per member.
void Group::part_from(const std::vector<membership::Departure>& departures) {
  for (const membership::Departure& departure : departures) {
    const std::optional<Rank> rank = members_.rank_of(departure.slot);
    if (!rank || lost_[rank->value()]) continue;
    lost_[rank->value()] = true;
    const std::shared_ptr<Peer>& peer = members_.peer(*rank);
    point_to_point_.member_gone(*rank, departure_of(peer), peer ? peer->excluded_because : "");
  }
}

void Group::start_without(const std::vector<membership::ExcludedMember>& excluded,
                          const std::vector<membership::Filled>& filled) {
  membership::GroupResolution resolution;
  resolution.group = key_;
  resolution.departures = membership::departures_of_new_group(excluded, options_.members, filled);
  if (resolution.departures.empty()) return;
  resolution.view = resolution.departures.back().view;
  machine_.install(resolution);
  usual_ = false;
  for (const membership::Departure& departure : resolution.departures) {
    const Rank rank = *members_.rank_of(departure.slot);
    lost_[rank.value()] = true;
    point_to_point_.member_gone(rank, departure_of(members_.peer(rank)), "");
  }
}

Status Group::set_policy(Policy policy) {
  if (open()) {
    return {Fault::invalid_argument, Move::fix_call,
            "the policy of group '" + options_.name + "' cannot be changed while ops are in flight: wait for them"};
  }
  if (policy != Policy::fail && !host_.coordinated()) {
    return {Fault::unsupported, Move::fix_call,
            "policy " + std::string(name_of(policy)) + " of group '" + options_.name +
                "' needs a coordinator that fences lost workers: start the job with closeranks run"};
  }
  if (broken_) return *broken_;
  machine_.set_policy(policy);
  usual_ = false;
  options_.policy = policy;
  if (recorder_.on()) recorder_.policy(policy);
  return {};
}

}  // namespace closeranks::communicator
