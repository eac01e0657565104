// Newcomers that an agent starts, and workers that are to leave at a boundary (drain, resize); the end of a job with
// newcomers that never got in.
#include <algorithm>

#include "membership/coordinator.h"

namespace closeranks::membership {

void Coordinator::on_started(const std::string& host, const Started& started) {
  if (Member* known = roster_.find(started.worker)) {
    known->host = host;  // after a restart, or said again
    return;
  }
  std::string reason;
  if (!roster_.has_slot(started.slot)) {
    reason = "the job has no slot " + std::to_string(started.slot.value());
  } else if (const Member* holder = roster_.in_slot(started.slot)) {
    reason = "slot " + std::to_string(started.slot.value()) + " is filled by worker " +
             std::to_string(holder->worker.value());
  }
  if (!reason.empty()) {
    effects_.to_agents.emplace_back(host, Fence{started.worker, reason});
    return;
  }
  roster_.add({started.worker, started.slot, host});
  effects_.journal.emplace_back(WorkerStarted{started.worker, started.slot, host});
}

void Coordinator::wants_away(Member& member, const std::string& reason) {
  if (member.life != Life::running || !member.leave_because.empty()) return;
  member.leave_because = reason;
  emit(EventKind::draining, &member, reason);
  ask_to_leave(member);
}

// Only a worker of a session has a boundary to leave at; any other is asked when it has come to one.
void Coordinator::ask_to_leave(Member& member) {
  if (member.leave_because.empty() || member.told_to_leave || !member.connected || member.life != Life::running) return;
  if (member.in_view && !member.in_session) return;
  member.told_to_leave = true;
  send(member.worker, Leave{member.leave_because});
}

void Coordinator::on_drain(const std::string& host, const Drain& drain) {
  for (Member& member : roster_.members()) {
    if (member.host == host) wants_away(member, drain.reason);
  }
}

// The highest slots go, down to min_present; growing is the agents' part.
void Coordinator::on_resize(const Resize& resize) {
  const std::uint32_t wanted = std::max(resize.present, config_.min_present);
  std::uint32_t staying = 0;
  for (const Member& member : roster_.members()) {
    if (member.life == Life::running && member.leave_because.empty()) ++staying;
  }
  std::vector<Member>& members = roster_.members();
  for (auto member = members.rbegin(); member != members.rend() && staying > wanted; ++member) {
    if (member->life != Life::running || !member->leave_because.empty()) continue;
    wants_away(*member, "the job is resized to " + std::to_string(wanted) + " workers");
    --staying;
  }
}

// In order: nobody is lost, nobody goes on.
bool Coordinator::everybody_left() const {
  return std::all_of(roster_.members().begin(), roster_.members().end(),
                     [](const Member& member) { return !is_present(member) || member.life == Life::left; });
}

void Coordinator::tell_finished() {
  if (!everybody_left()) return;
  for (Member& member : roster_.members()) {
    if (member.in_view || member.life != Life::running || !member.connected || member.told_finished) continue;
    member.told_finished = true;
    send(member.worker, JobFinished{});
  }
}

}  // namespace closeranks::membership
