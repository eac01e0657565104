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

WorkerModel::WorkerModel(std::uint32_t index, std::uint32_t slot, const MembershipScenario& scenario,
                         const ModelRules& rules, const membership::Rules& machine_rules,
                         std::deque<WorkerModel>& peers)
    : machine({id_of(index), Slot(slot), 1000 + index, "host" + std::to_string(scenario.host_of(slot)),
               "endpoint" + std::to_string(index)},
              machine_rules),
      index_(index),
      slot_(slot),
      scenario_(&scenario),
      rules_(&rules),
      peers_(&peers),
      parts_(scenario.groups.size()) {
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    const std::vector<std::uint32_t>& members = scenario.groups[group].members;
    const auto place = std::lower_bound(members.begin(), members.end(), slot);
    if (place == members.end() || *place != slot) continue;
    GroupPart part;
    part.who = members;
    part.who[static_cast<std::size_t>(place - members.begin())] = index;
    part.goal = scenario.steps > 0 ? 0 : scenario.groups[group].entries;
    part.rank = static_cast<std::uint32_t>(place - members.begin());
    part.holds.resize(members.size());
    part.last_op.resize(members.size());
    parts_[group] = std::move(part);
  }
}

std::optional<std::size_t> WorkerModel::root_of(std::size_t group, std::uint64_t sequence, std::size_t members) {
  Random random(sequence * 31 + group);
  if (random.below(4) != 0) return std::nullopt;
  return static_cast<std::size_t>(random.below(members));
}

GroupPart* WorkerModel::part_of(std::uint32_t index, std::size_t group) const {
  std::optional<GroupPart>& part = (*peers_)[index].parts_[group];
  return part ? &*part : nullptr;
}

std::uint64_t WorkerModel::entered_in(std::size_t group) const {
  return parts_[group] && !parts_[group]->alone ? parts_[group]->entered : 0;
}

bool WorkerModel::same_epoch(const GroupPart& part, const GroupPart& other) const { return part.epoch == other.epoch; }

bool WorkerModel::frozen_for(ViewNumber round) const {
  return gate.frozen() ? gate.round() == round : answered == round;
}

bool WorkerModel::done() const {
  for (const std::optional<GroupPart>& part : parts_) {
    if (part && (part->completed < part->goal || part->alone)) return false;
  }
  return at_step == scenario_->steps && !(started_late() && machine.is_newcomer());
}

bool WorkerModel::ahead() const {
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group] || parts_[group]->entered == 0) continue;
    const std::vector<std::uint32_t>& members = parts_[group]->who;
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
  bool step_done = in_session();
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group]) continue;
    GroupPart& part = *parts_[group];
    if (!part.made) {
      moved |= make(group, part, now);
      continue;
    }
    step_done = step_done && (part.completed == part.goal || scenario_->groups[group].loose);
    if (part.alone) continue;  // its ops are done at issue
    if (part.frozen || part.completed == part.goal) continue;
    if (!part.connected) {
      moved |= connect(group, part, now, says);
    } else if (random.chance(50)) {
      moved |= enter(group, part, oracle, says) || complete(group, part, oracle, says);
    } else {
      moved |= complete(group, part, oracle, says) || enter(group, part, oracle, says);
    }
    if (random.chance(5)) {  // a look at a life word while nothing waits
      const std::uint64_t rank = random.below(part.who.size());
      if (part.holds[rank]) look_at(part.who[rank], false, says);
    }
    step_done = step_done && (part.completed == part.goal || scenario_->groups[group].loose);
  }
  const bool all_made = std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return !part || part->made; });
  if (!step_done || !all_made) return moved;
  if (machine.is_newcomer()) {
    wants_to_join = true;
    return moved;
  }
  return pass_boundary(oracle) || moved;
}

// Between two steps.
bool WorkerModel::pass_boundary(MembershipOracle& oracle) {
  if (leaves_now || froze_at) return false;
  if (asked_to_leave && !gate.frozen()) {
    leaves_now = true;
    return true;
  }
  if (at_step == scenario_->steps) return false;
  bool passed = false;
  if (!rules_->step_and_hold_are_one && about_to_pass_) {
    about_to_pass_ = false;
    passed = true;
  } else if (!rules_->step_and_hold_are_one && !gate.held()) {
    about_to_pass_ = true;  // it goes on at its next turn, whatever comes in between
    return true;
  } else {
    switch (gate.pass(at_step + 1)) {
      case BoundaryGate::Answer::passed:
        passed = true;
        break;
      case BoundaryGate::Answer::wait:
        return false;
      case BoundaryGate::Answer::freeze:
        froze_at = gate.round();
        busy_at_boundary = std::any_of(parts_.begin(), parts_.end(),
                                       [](const auto& part) { return part && part->completed != part->goal; });
        for (std::optional<GroupPart>& part : parts_) {
          if (part) part->frozen = true;
        }
        return true;
    }
  }
  if (passed) {
    ++at_step;
    if (!rules_->step_and_hold_are_one && !gate.held()) (void)gate.pass(at_step);
    oracle.passed(id(), at_step, machine.view());
    for (std::size_t group = 0; group < parts_.size(); ++group) {
      if (parts_[group]) parts_[group]->goal += scenario_->groups[group].entries;
    }
  }
  return true;
}

bool WorkerModel::make(std::size_t group, GroupPart& part, Time now) {
  const PlannedGroup& planned = scenario_->groups[group];
  if (now < planned.made_at[part.rank]) return false;
  std::vector<Slot> members;
  for (const std::uint32_t member : planned.members) members.emplace_back(member);
  set_departures(part, planned, departures_of_new_group(machine.excluded(), members, machine.members()));
  part.made = true;
  part.alone = machine.is_newcomer();
  if (part.alone) part.entered = part.completed = 7;  // ops of its own, which count for nobody (rule 18)
  if (part.alone) part.goal = part.completed;
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
    const std::uint32_t peer = part.who[rank];
    const WorkerModel& other = (*peers_)[peer];
    const bool known = known_.contains(peer);
    if (known && other.run == Run::running && !other.engine_stopped && part_of(peer, group)->made) {
      part.holds[rank] = true;
      continue;
    }
    if (known && !other.can_run()) {
      append(says, machine.suspect(id_of(peer), "its endpoint refuses connections", true));
    } else if (all && !known && now > planned.made_at[part.rank] + patience_for_an_address) {
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
  if (part.entered == part.goal || part.entered >= part.completed + window) return false;
  const bool first_lap = part.entered < part.base + window;
  if (!part.all_connected || !first_lap) {
    for (std::size_t rank = 0; rank < planned.members.size(); ++rank) {
      if (part.last_op[rank]) continue;
      const std::uint32_t peer = part.who[rank];
      const GroupPart& other = *part_of(peer, group);
      const bool ready = (other.connected || !rules_->hold_all_segments_before_entering) && same_epoch(part, other) &&
                         other.completed + window > part.entered;
      if (ready) continue;
      look_at(peer, true, says);
      return false;
    }
    part.all_connected = true;
  }
  // An op of a loose group may be entered in a later step than that of its issue.
  oracle.entered(id(), key_of(group), part.epoch, part.entered, planned.loose ? 0 : at_step);
  ++part.entered;
  return true;
}

bool WorkerModel::complete(std::size_t group, GroupPart& part, MembershipOracle& oracle,
                           std::vector<FromWorker>& says) {
  const PlannedGroup& planned = scenario_->groups[group];
  const std::uint64_t sequence = part.completed;
  if (sequence == part.entered) return false;
  const std::optional<std::size_t> root = root_of(group, sequence, planned.members.size());
  if (root && part.last_op[*root] && *part.last_op[*root] <= sequence) {
    oracle.failed(id(), key_of(group), part.epoch, sequence, Slot(planned.members[*root]));
    ++part.completed;
    ++entries_failed;
    return true;
  }
  std::vector<Slot> contributors;
  for (std::size_t rank = 0; rank < planned.members.size(); ++rank) {
    const std::uint32_t peer = part.who[rank];
    if (part.last_op[rank]) {
      if (*part.last_op[rank] <= sequence) continue;
      if (!part.holds[rank]) {
        oracle.violation("rule 6: the input of worker " + std::to_string(id_of(peer).value()) + " counts in entry " +
                         std::to_string(sequence) + " of group " + std::to_string(key_of(group).value()) +
                         ", but worker " + std::to_string(id().value()) + " does not hold its segment");
      }
      contributors.emplace_back(planned.members[rank]);
      continue;
    }
    const GroupPart& other = *part_of(peer, group);
    const bool entered = part.holds[rank] && same_epoch(part, other) && other.entered > sequence;
    if (!entered) {
      look_at(peer, true, says);
      return false;
    }
    contributors.emplace_back(planned.members[rank]);
  }
  oracle.completed(id(), key_of(group), part.epoch, sequence, contributors);
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
  status.epoch = part.epoch;
  status.base = part.base;
  status.alone = part.alone;
  return status;
}

std::vector<GroupStatus> WorkerModel::freeze_all() {
  std::vector<GroupStatus> statuses;
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group] || !parts_[group]->made) continue;
    parts_[group]->frozen = true;
    statuses.push_back(status_of(group, *parts_[group]));
  }
  return statuses;
}

std::vector<GroupIntroduction> WorkerModel::introductions() const {
  std::vector<GroupIntroduction> groups;
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group]) continue;
    const GroupStatus status = status_of(group, *parts_[group]);
    groups.push_back({status.group, status.name, status.members, status.policy});
  }
  return groups;
}

void WorkerModel::round_over(const RoundOver& over) {
  if (answered == over.round) answered.reset();
  if (froze_at == over.round) froze_at.reset();
  if (!gate.release(over.round)) return;
  for (std::optional<GroupPart>& part : parts_) {
    if (part) part->frozen = false;
  }
}

std::vector<GroupStatus> WorkerModel::freeze(const FreezeRequest& request, MembershipOracle& oracle) {
  std::vector<GroupStatus> statuses;
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group] || !parts_[group]->made) continue;
    if (rules_->freeze_only_affected && !parts_[group]->alone && !affected(group, request.excluding)) continue;
    GroupPart& part = *parts_[group];
    if (part.alone) {
      part.frozen = true;
      statuses.push_back(status_of(group, part));
      continue;
    }
    GroupStatus status = status_of(group, part);
    oracle.froze(id(), key_of(group), status.members, request.excluding);
    for (const ExcludedMember& member : request.excluding) {
      const std::vector<std::uint32_t>& members = scenario_->groups[group].members;
      const auto place = std::lower_bound(members.begin(), members.end(), member.slot.value());
      if (place == members.end() || *place != member.slot.value()) continue;
      const auto rank = static_cast<std::size_t>(place - members.begin());
      const bool is_member = id_of(part.who[rank]) == member.worker;  // else the slot has been filled anew
      if (!is_member || !part.holds[rank]) continue;
      const GroupPart& gone = *part_of(part.who[rank], group);
      if (same_epoch(part, gone)) status.observed.push_back({member.worker, gone.entered});
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
    if (resolution.epoch != part.epoch || part.alone) {
      start_epoch(group, part, resolution, install.members, oracle);
    }
    set_departures(part, scenario_->groups[group], resolution.departures);
    part.view = resolution.view;
    part.frozen = false;
    oracle.departed(id(), key_of(group), part.departures);
  }
}

// The group starts anew at the resolution's base: another roster, and words that are written again.
void WorkerModel::start_epoch(std::size_t group, GroupPart& part, const GroupResolution& resolution,
                              const std::vector<Filled>& members, MembershipOracle& oracle) {
  oracle.epoch_started(id(), key_of(group), resolution.epoch, resolution.base,
                       part.alone ? std::nullopt : std::optional(part.completed));
  const PlannedGroup& planned = scenario_->groups[group];
  for (const Filled& filled : members) {
    const auto place = std::lower_bound(planned.members.begin(), planned.members.end(), filled.slot.value());
    if (place == planned.members.end() || *place != filled.slot.value()) continue;
    const auto rank = static_cast<std::size_t>(place - planned.members.begin());
    const auto now_member = static_cast<std::uint32_t>(filled.worker.value() - 1);
    part.last_op[rank].reset();
    if (part.who[rank] == now_member) continue;
    part.who[rank] = now_member;
    part.holds[rank] = now_member == index_;
  }
  part.epoch = resolution.epoch;
  part.base = part.entered = part.completed = part.goal = resolution.base;
  part.connected = part.all_connected = part.alone = false;
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
  for (const WorkerAddress& address : addresses) {
    known_.insert(static_cast<std::uint32_t>(address.worker.value() - 1));
  }
}

std::string WorkerModel::describe() const {
  static constexpr const char* states[] = {"joining", "active", "frozen", "evicted"};
  std::string text = "worker " + std::to_string(id().value()) + " is " + states[static_cast<int>(machine.state())] +
                     " in view (" + std::to_string(machine.view().term) + ", " + std::to_string(machine.view().n) + ")";
  text += " in step " + std::to_string(at_step) + (machine.is_newcomer() ? ", a newcomer" : "") +
          (gate.held() ? ", held" : "") + (gate.frozen() ? " at the boundary" : "");
  for (std::size_t group = 0; group < parts_.size(); ++group) {
    if (!parts_[group]) continue;
    const GroupPart& part = *parts_[group];
    text += "; group " + std::to_string(key_of(group).value()) + ": " + (part.made ? "" : "not made, ") +
            (part.connected ? "" : "not connected, ") + (part.frozen ? "frozen, " : "") + "entered " +
            std::to_string(part.entered) + ", completed " + std::to_string(part.completed) + " of " +
            std::to_string(part.goal);
  }
  return text;
}

}  // namespace closeranks::simulator
