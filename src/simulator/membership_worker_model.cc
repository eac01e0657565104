#include "simulator/membership_worker_model.h"

#include <algorithm>

#include "base/assert.h"

namespace closeranks::simulator {

using namespace membership;

namespace {

constexpr std::uint64_t window = 4;  // ring slots: entries in flight per member
constexpr Time patience_for_an_address = std::chrono::milliseconds(60);

template <class Effects>
void append(std::vector<FromWorker>& says, Effects effects) {
  for (FromWorker& message : effects.send) says.push_back(std::move(message));
}

}  // namespace

WorkerModel::WorkerModel(std::uint32_t index, const MembershipScenario& scenario, const ModelRules& rules,
                         const membership::Rules& machine_rules, std::vector<WorkerModel>& peers)
    : machine({id_of(index), Slot(index), 1000 + index, "host" + std::to_string(scenario.host_of(index)),
               "endpoint" + std::to_string(index)},
              machine_rules),
      index_(index),
      scenario_(&scenario),
      rules_(&rules),
      peers_(&peers),
      parts_(scenario.groups.size()),
      known_(scenario.workers) {
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    const std::vector<std::uint32_t>& members = scenario.groups[group].members;
    const auto place = std::lower_bound(members.begin(), members.end(), index);
    if (place == members.end() || *place != index) continue;
    GroupPart part;
    part.rank = static_cast<std::uint32_t>(place - members.begin());
    part.holds.resize(members.size());
    part.last_op.resize(members.size());
    parts_[group] = std::move(part);
  }
}

bool WorkerModel::repairable(std::size_t group, std::uint64_t sequence) {
  return Random(sequence * 31 + group).below(4) != 0;
}

GroupPart* WorkerModel::part_of(std::uint32_t index, std::size_t group) const {
  std::optional<GroupPart>& part = (*peers_)[index].parts_[group];
  return part ? &*part : nullptr;
}

std::uint64_t WorkerModel::entered_in(std::size_t group) const { return parts_[group] ? parts_[group]->entered : 0; }

bool WorkerModel::done() const {
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (parts_[group] && parts_[group]->completed < scenario_->groups[group].entries) return false;
  }
  return true;
}

bool WorkerModel::ahead() const {
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group] || parts_[group]->entered == 0) continue;
    const std::vector<std::uint32_t>& members = scenario_->groups[group].members;
    const bool alone = std::none_of(members.begin(), members.end(), [&](std::uint32_t member) {
      return member != index_ && part_of(member, group)->entered >= parts_[group]->entered;
    });
    if (alone) return true;
  }
  return false;
}

bool WorkerModel::step(Time now, Random& random, MembershipOracle& oracle, std::vector<FromWorker>& says) {
  if (engine_stopped || machine.state() == Worker::State::joining || machine.state() == Worker::State::evicted) {
    return false;
  }
  bool moved = false;
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group]) continue;
    GroupPart& part = *parts_[group];
    if (!part.made) {
      moved |= make(group, part, now);
      continue;
    }
    if (part.frozen || part.completed == scenario_->groups[group].entries) continue;
    if (!part.connected) {
      moved |= connect(group, part, now, says);
    } else if (random.chance(50)) {
      moved |= enter(group, part, oracle, says) || complete(group, part, oracle, says);
    } else {
      moved |= complete(group, part, oracle, says) || enter(group, part, oracle, says);
    }
    if (random.chance(5)) {  // a look at a life word while nothing waits
      const std::vector<std::uint32_t>& members = scenario_->groups[group].members;
      const std::uint64_t rank = random.below(members.size());
      if (part.holds[rank]) look_at(members[rank], false, says);
    }
  }
  return moved;
}

bool WorkerModel::make(std::size_t group, GroupPart& part, Time now) {
  const PlannedGroup& planned = scenario_->groups[group];
  if (now < planned.made_at[part.rank]) return false;
  std::vector<Slot> members;
  for (const std::uint32_t member : planned.members) members.emplace_back(member);
  set_departures(part, planned, departures_of_new_group(machine.excluded(), members, machine.members()));
  part.made = true;
  part.holds[part.rank] = true;
  return true;
}

// A segment is handed over by its living maker only. A worker that fails to reach a known address says so; one that
// misses an address for long says that it waits.
bool WorkerModel::connect(std::size_t group, GroupPart& part, Time now, std::vector<FromWorker>& says) {
  const PlannedGroup& planned = scenario_->groups[group];
  bool all = true;
  for (std::size_t rank = 0; rank < planned.members.size(); ++rank) {
    if (part.holds[rank] || part.last_op[rank]) continue;
    const std::uint32_t peer = planned.members[rank];
    const WorkerModel& other = (*peers_)[peer];
    if (known_[peer] && other.run == Run::running && !other.engine_stopped && part_of(peer, group)->made) {
      part.holds[rank] = true;
      continue;
    }
    if (known_[peer] && !other.can_run()) {
      append(says, machine.suspect(id_of(peer), "its endpoint refuses connections", true));
    } else if (all && !known_[peer] && now > planned.made_at[part.rank] + patience_for_an_address) {
      append(says, machine.waits_for(id_of(peer), "no address of it is known"));
    }
    all = false;
  }
  if (!all && rules_->hold_all_segments_before_entering) return false;
  part.connected = true;
  return true;
}

bool WorkerModel::enter(std::size_t group, GroupPart& part, MembershipOracle& oracle, std::vector<FromWorker>& says) {
  const PlannedGroup& planned = scenario_->groups[group];
  if (part.entered == planned.entries || part.entered >= part.completed + window) return false;
  const bool first_lap = part.entered < window;
  if (!part.all_connected || !first_lap) {
    for (std::size_t rank = 0; rank < planned.members.size(); ++rank) {
      if (part.last_op[rank]) continue;
      const std::uint32_t peer = planned.members[rank];
      const GroupPart& other = *part_of(peer, group);
      const bool ready =
          (other.connected || !rules_->hold_all_segments_before_entering) && other.completed + window > part.entered;
      if (ready) continue;
      look_at(peer, true, says);
      return false;
    }
    part.all_connected = true;
  }
  oracle.entered(id(), key_of(group), part.entered);
  ++part.entered;
  return true;
}

bool WorkerModel::complete(std::size_t group, GroupPart& part, MembershipOracle& oracle,
                           std::vector<FromWorker>& says) {
  const PlannedGroup& planned = scenario_->groups[group];
  const std::uint64_t sequence = part.completed;
  if (sequence == part.entered) return false;
  if (!repairable(group, sequence)) {
    for (const FailedRange& range : part.failed) {
      if (sequence < range.from || sequence >= range.until) continue;
      oracle.failed(id(), key_of(group), sequence, range.culprit_slot);
      ++part.completed;
      ++entries_failed;
      return true;
    }
  }
  std::vector<Slot> contributors;
  for (std::size_t rank = 0; rank < planned.members.size(); ++rank) {
    const std::uint32_t peer = planned.members[rank];
    if (part.last_op[rank]) {
      if (*part.last_op[rank] > sequence) contributors.emplace_back(peer);
      continue;
    }
    const bool entered = part.holds[rank] && part_of(peer, group)->entered > sequence;
    if (!entered) {
      look_at(peer, true, says);
      return false;
    }
    contributors.emplace_back(peer);
  }
  oracle.completed(id(), key_of(group), sequence, contributors);
  ++part.completed;
  ++entries_completed;
  return true;
}

void WorkerModel::look_at(std::uint32_t peer, bool in_op, std::vector<FromWorker>& says) {
  if ((*peers_)[peer].can_run()) return;
  append(says, machine.suspect(id_of(peer), "its life word says that its owner died", in_op));
}

bool WorkerModel::affected(std::size_t group, const std::vector<ExcludedMember>& excluding) const {
  const std::vector<std::uint32_t>& members = scenario_->groups[group].members;
  return std::any_of(excluding.begin(), excluding.end(), [&](const ExcludedMember& member) {
    return std::binary_search(members.begin(), members.end(), member.slot.value());
  });
}

GroupStatus WorkerModel::status_of(std::size_t group, const GroupPart& part) const {
  GroupStatus status;
  status.group = key_of(group);
  status.name = "group" + std::to_string(group);
  for (const std::uint32_t member : scenario_->groups[group].members) status.members.emplace_back(member);
  status.policy = Policy::repair;
  status.view = part.view;
  status.entered = part.entered;
  status.completed = part.completed;
  status.departures = part.departures;
  status.failed = part.failed;
  return status;
}

std::vector<GroupStatus> WorkerModel::freeze(const FreezeRequest& request, MembershipOracle& oracle) {
  std::vector<GroupStatus> statuses;
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group] || !parts_[group]->made) continue;
    if (rules_->freeze_only_affected && !affected(group, request.excluding)) continue;
    GroupPart& part = *parts_[group];
    GroupStatus status = status_of(group, part);
    oracle.froze(id(), key_of(group), status.members, request.excluding);
    for (const ExcludedMember& member : request.excluding) {
      const std::vector<std::uint32_t>& members = scenario_->groups[group].members;
      const auto place = std::lower_bound(members.begin(), members.end(), member.slot.value());
      if (place == members.end() || *place != member.slot.value()) continue;
      const bool held = part.holds[static_cast<std::size_t>(place - members.begin())];
      if (held) status.observed.push_back({member.worker, part_of(*place, group)->entered});
    }
    part.frozen = rules_->keep_promise;
    statuses.push_back(std::move(status));
  }
  return statuses;
}

void WorkerModel::install(const Install& install, MembershipOracle& oracle) {
  oracle.installed(id(), install.view);
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group] || !parts_[group]->made) continue;
    GroupPart& part = *parts_[group];
    const GroupResolution resolution = resolution_for(install, status_of(group, part));
    set_departures(part, scenario_->groups[group], resolution.departures);
    part.failed = resolution.failed;
    part.view = resolution.view;
    part.frozen = false;
    oracle.departed(id(), key_of(group), part.departures);
  }
}

void WorkerModel::set_departures(GroupPart& part, const PlannedGroup& group, std::vector<Departure> departures) {
  for (const Departure& departure : departures) {
    const auto place = std::lower_bound(group.members.begin(), group.members.end(), departure.slot.value());
    CR_ASSERT(place != group.members.end() && *place == departure.slot.value());
    part.last_op[static_cast<std::size_t>(place - group.members.begin())] = departure.last_op;
  }
  part.departures = std::move(departures);
}

void WorkerModel::remember(const std::vector<WorkerAddress>& addresses) {
  for (const WorkerAddress& address : addresses) known_[address.slot.value()] = true;
}

std::string WorkerModel::describe() const {
  static constexpr const char* states[] = {"joining", "active", "frozen", "evicted"};
  std::string text = "worker " + std::to_string(id().value()) + " is " + states[static_cast<int>(machine.state())] +
                     " in view (" + std::to_string(machine.view().term) + ", " + std::to_string(machine.view().n) + ")";
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group]) continue;
    const GroupPart& part = *parts_[group];
    text += "; group " + std::to_string(key_of(group).value()) + ": " + (part.made ? "" : "not made, ") +
            (part.connected ? "" : "not connected, ") + (part.frozen ? "frozen, " : "") + "entered " +
            std::to_string(part.entered) + ", completed " + std::to_string(part.completed) + " of " +
            std::to_string(scenario_->groups[group].entries);
  }
  return text;
}

}  // namespace closeranks::simulator
