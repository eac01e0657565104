// Rounds of joining of the coordinator's machine: hold, admit, transfer, install; and cancel (protocol rules 18 to 20).
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "membership/coordinator.h"

namespace closeranks::membership {
namespace {

template <class List, class Value>
bool contains(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

const GroupStatus* find_group(const std::vector<GroupStatus>& statuses, GroupKey group) {
  for (const GroupStatus& status : statuses) {
    if (status.group == group) return &status;
  }
  return nullptr;
}

std::string name_of_group(const GroupStatus& status) {
  return "group '" + status.name + "' (key " + std::to_string(status.group.value()) + ")";
}

}  // namespace

void Coordinator::on_join_request(const JoinRequest&, Member& member) {
  if (member.in_view || member.life != Life::running) return;  // it is in already: the install is on its way
  member.asks = true;
}

bool Coordinator::takes_part(const Member& member) const {
  return round_ && (contains(round_->survivors, member.worker) || contains(round_->newcomers, member.worker));
}

void Coordinator::on_holding(const Holding& holding, const Member& member) {
  if (superseded_by(holding.round)) return;
  if (!round_ || holding.round != round_->number || round_->stage != Round::Stage::holding) return;
  if (contains(round_->survivors, member.worker)) round_->steps.emplace(member.worker, holding.step);
}

void Coordinator::on_state_moved(ViewNumber round, const Member& member) {
  if (!round_ || round != round_->number || round_->stage != Round::Stage::transferring) return;
  if (takes_part(member)) round_->done.insert(member.worker);
}

void Coordinator::on_join_failed(const JoinFailed& failed, Member& member, Time now) {
  if (!round_ || failed.round != round_->number || !takes_part(member)) return;
  const bool newcomer = contains(round_->newcomers, member.worker);
  cancel_round(text_of(member) + ": " + failed.reason, now);
  if (!newcomer || ++member.joins_failed < config_.join_attempts) return;
  const std::string reason =
      "it could not join in " + std::to_string(member.joins_failed) + " attempts: " + failed.reason;
  evict(member.worker, reason);
  suspect(member, reason, now);
}

void Coordinator::send_round(const ToWorker& message) {
  for (const std::vector<WorkerId>& side : {round_->survivors, round_->newcomers}) {
    for (const WorkerId worker : side) {
      const Member* member = roster_.find(worker);
      if (member->connected && member->life == Life::running) send(worker, message);
    }
  }
}

void Coordinator::cancel_round(const std::string& reason, Time now) {
  for (const WorkerId worker : round_->newcomers) {
    emit(EventKind::join_cancelled, roster_.find(worker), reason);
    effects_.events.back().view = round_->number;
  }
  send_round(Cancel{round_->number, reason});
  cancelled_.insert(round_->number);
  round_.reset();
  join_pause_ = std::min(std::max(2 * join_pause_, config_.join_pause), config_.join_pause_most);
  join_not_before_ = now + join_pause_;
}

std::string Coordinator::trouble_of_round() const {
  for (const Member& member : roster_.members()) {
    if (!is_present(member)) continue;
    const bool suspected = member.life == Life::suspected;
    if (suspected || member.must_go) {
      return text_of(member) + (member.for_good ? " leaves the job" : " is lost: " + member.suspected_because);
    }
  }
  return "a view change comes first";
}

// Called when no view change is in progress or due.
void Coordinator::advance_round(Time now) {
  if (!round_) return open_round(now);
  for (const std::vector<WorkerId>& side : {round_->survivors, round_->newcomers}) {
    for (const WorkerId worker : side) {
      const Member& member = *roster_.find(worker);
      if (member.life == Life::running || !config_.rules.trouble_cancels_join) continue;
      return cancel_round(text_of(member) + (member.life == Life::left ? " has left" : " is lost"), now);
    }
  }
  if (now >= round_->deadline) {
    std::string late;
    for (const std::vector<WorkerId>& side : {round_->survivors, round_->newcomers}) {
      for (const WorkerId worker : side) {
        const bool answered = round_->stage == Round::Stage::holding    ? round_->steps.contains(worker)
                              : round_->stage == Round::Stage::admitted ? round_->answers.contains(worker)
                                                                        : round_->done.contains(worker);
        const bool asked = round_->stage != Round::Stage::holding || contains(round_->survivors, worker);
        if (asked && !answered) late += (late.empty() ? "" : ", ") + text_of(*roster_.find(worker));
      }
    }
    static constexpr const char* what[] = {"did not say which step it is in", "did not come to the boundary",
                                           "did not finish the transfer of the state"};
    return cancel_round(late + " " + what[static_cast<int>(round_->stage)] + " in time", now);
  }
  const std::size_t all = round_->survivors.size() + round_->newcomers.size();
  const bool some = !config_.rules.join_waits_for_all && !round_->answers.empty();
  if (round_->stage == Round::Stage::holding && round_->steps.size() == round_->survivors.size()) {
    round_->stage = Round::Stage::admitted;
    round_->deadline = now + config_.boundary_deadline;
    for (const auto& [worker, step] : round_->steps) round_->step = std::max(round_->step, step + 1);
    send_round(Admit{round_->number, round_->step});
  } else if (round_->stage == Round::Stage::admitted && some) {
    install_round();
  } else if (round_->stage == Round::Stage::admitted && round_->answers.size() == all) {
    start_transfer(now);
  } else if (round_->stage == Round::Stage::transferring && round_->done.size() == all) {
    install_round();
  }
}

void Coordinator::open_round(Time now) {
  if (join_not_before_ && now < *join_not_before_) return;
  join_not_before_.reset();
  Round round;
  bool in_session = false;
  for (const Member& member : roster_.members()) {
    if (is_present(member)) {
      // Somebody is starting, reconnects, or has left, so that the job may be ending: later.
      if (member.life != Life::running || !member.registered || !member.connected) return;
      round.survivors.push_back(member.worker);
      in_session = in_session || member.in_session;
    } else if (member.asks && member.life == Life::running && member.connected && member.leave_because.empty()) {
      round.newcomers.push_back(member.worker);
    }
  }
  if (round.newcomers.empty() || round.survivors.empty() || !in_session) return;
  round.number = {term_, ++last_n_};
  round.deadline = now + config_.prepared_deadline;
  round_ = std::move(round);
  for (const WorkerId worker : round_->newcomers) {
    emit(EventKind::join_pending, roster_.find(worker), "the others are asked to hold at their next boundary");
    effects_.events.back().view = round_->number;
  }
  const Hold hold{round_->number, addresses_of(round_->newcomers)};
  for (const WorkerId worker : round_->survivors) send(worker, hold);
}

std::vector<WorkerAddress> Coordinator::addresses_of(const std::vector<WorkerId>& workers) const {
  std::vector<WorkerAddress> addresses;
  for (const WorkerId worker : workers) addresses.push_back(roster_.find(worker)->address);
  return addresses;
}

// Everybody is frozen at the boundary. Rule 18: every group is idle, and all are equally far; newcomers have made the
// groups the others have.
void Coordinator::start_transfer(Time now) {
  std::map<GroupKey, const GroupStatus*> seen;
  for (const WorkerId worker : round_->survivors) {
    if (!config_.rules.join_needs_idle_groups) break;
    for (const GroupStatus& status : round_->answers[worker]) {
      const Member& member = *roster_.find(worker);
      if (status.entered != status.completed) {
        return cancel_round(name_of_group(status) + " has ops in flight at the boundary of " + text_of(member), now);
      }
      const auto [place, first] = seen.emplace(status.group, &status);
      const GroupStatus& other = *place->second;
      const bool alike =
          other.members == status.members && other.policy == status.policy && other.epoch == status.epoch;
      if (!alike || (status.policy != Policy::fail && other.entered != status.entered)) {
        return cancel_round("the survivors are not equally far in " + name_of_group(status) +
                                " at the boundary: " + text_of(member) + " has completed " +
                                std::to_string(status.completed) + " ops, another " + std::to_string(other.completed),
                            now);
      }
    }
  }
  if (refuse_mismatch(now)) return;
  round_->stage = Round::Stage::transferring;
  round_->deadline = now + config_.transfer_deadline;
  send_round(Transfer{round_->number, round_->step, addresses_of(round_->newcomers), addresses_of(round_->survivors)});
}

// True: some newcomer has other groups than the rest. It is given up, and the round with it.
bool Coordinator::refuse_mismatch(Time now) {
  const auto differs = [this](const Member& newcomer, const Member& other) -> std::string {
    const std::vector<GroupStatus>& own = round_->answers[newcomer.worker];
    const std::vector<GroupStatus>& theirs = round_->answers[other.worker];
    for (const GroupStatus& status : theirs) {
      if (!contains(status.members, newcomer.slot)) continue;
      const GroupStatus* mine = find_group(own, status.group);
      if (mine == nullptr) return "it has not made " + name_of_group(status) + ", which " + text_of(other) + " has";
      if (mine->members != status.members) return name_of_group(status) + " has other members there";
      if (mine->policy != status.policy) return name_of_group(status) + " has another policy there";
    }
    for (const GroupStatus& status : own) {
      if (!contains(status.members, other.slot) || find_group(theirs, status.group) != nullptr) continue;
      // It may have failed with a lost member, and was shut down: the newcomer's fails when it joins.
      if (status.policy == Policy::fail) continue;
      return "it has made " + name_of_group(status) + ", which " + text_of(other) + " has not";
    }
    return {};
  };
  for (const WorkerId worker : round_->newcomers) {
    Member& newcomer = *roster_.find(worker);
    std::string reason;
    for (const std::vector<WorkerId>& side : {round_->survivors, round_->newcomers}) {
      for (const WorkerId other : side) {
        // Of two newcomers that differ the later one goes.
        if (contains(round_->newcomers, other) && other >= worker) continue;
        if (reason.empty() && round_->answers.contains(other)) reason = differs(newcomer, *roster_.find(other));
      }
    }
    if (reason.empty()) continue;
    reason = "it does not fit the job: " + reason + ". Every worker must run the same script";
    cancel_round(text_of(newcomer) + ": " + reason, now);
    evict(worker, reason);
    suspect(newcomer, reason, now);
    return true;
  }
  return false;
}

// Only newcomers have the group, and not all of its members are new.
bool Coordinator::shut_down(const std::vector<GroupStatus>& statuses, const std::vector<WorkerId>& survivors) const {
  if (std::any_of(statuses.begin(), statuses.end(), [](const GroupStatus& status) { return !status.alone; })) {
    return false;
  }
  return std::any_of(survivors.begin(), survivors.end(), [&](WorkerId survivor) {
    return contains(statuses.front().members, roster_.find(survivor)->slot);
  });
}

void Coordinator::install_round() {
  const Round round = std::move(*round_);
  round_.reset();
  Install install;
  install.view = round.number;
  install.joined = addresses_of(round.newcomers);
  for (const WorkerId worker : round.newcomers) {
    Member& member = *roster_.find(worker);
    member.in_view = true;
    member.since = round.number;
    member.asks = false;
    member.joins_failed = 0;
    member.first_step_due = true;
  }
  std::map<GroupKey, std::vector<GroupStatus>> statuses;
  for (const auto& [worker, answer] : round.answers) {
    for (const GroupStatus& status : answer) statuses[status.group].push_back(status);
  }
  const std::vector<Refill> refills = roster_.refills();
  std::vector<GroupBase> bases;
  for (const auto& [group, of_group] : statuses) {
    const bool grows = std::any_of(install.joined.begin(), install.joined.end(), [&](const WorkerAddress& joined) {
      return contains(of_group.front().members, joined.slot);
    });
    if (!grows || shut_down(of_group, round.survivors)) continue;
    install.groups.push_back(resolve_group(of_group, round.number, excluded_, config_.rules, refills));
    const GroupBase base{group, of_group.front().members, install.groups.back().base};
    bases.push_back(base);
    epochs_[group] = {round.number, base};
  }
  view_ = round.number;
  install.excluded = excluded_;
  install.members = roster_.filled();
  effects_.journal.emplace_back(ViewDecided{view_, excluded_, install.members, std::move(bases)});
  for (const WorkerId worker : round.newcomers) {
    emit(EventKind::worker_joined, roster_.find(worker),
         "takes part from the boundary before step " + std::to_string(round.step) + " on");
  }
  emit(EventKind::view_installed, nullptr,
       std::to_string(install.groups.size()) + (install.groups.size() == 1 ? " group grows" : " groups grow"));
  effects_.events.back().present = roster_.present_slots();
  for (const Member& member : roster_.members()) {
    if (must_answer(member) && member.connected) send(member.worker, install);
  }
  // A worker that registers later learns of the joined from its welcome; the others have them in the install.
  last_install_ = std::move(install);
  cancelled_.clear();
  join_pause_ = std::chrono::milliseconds{0};
  join_not_before_.reset();
}

}  // namespace closeranks::membership
