// Suspects and fences of the coordinator's machine: who is taken for lost, and the proof that it touches nothing more.
#include <algorithm>

#include "membership/coordinator.h"

namespace closeranks::membership {

// A peer's word. It fences only when an op of the reporter waits: then nothing goes on without the suspect anyway.
// Otherwise the suspect's agent will tell (protocol rule 22). A suspect's own word counts for nothing: of two that
// suspect each other the first is heard.
void Coordinator::on_suspicion(const Suspicion& suspicion, const Member& from, Time now) {
  Member* suspected = roster_.find(suspicion.suspect);
  if (suspected == nullptr || suspected->life == Life::excluded) return;
  if (from.life != Life::running || from.worker == suspicion.suspect) return;
  if (!suspicion.in_op && config_.rules.reports_are_hints) return;
  // That it has not come: said before the reporter could know better, or said again after a change of view. It has
  // come, and its peers see for themselves.
  if (!suspicion.seems_gone && suspected->registered) return;
  const std::string reason = text_of(from) + " waits for it: " + suspicion.reason;
  suspected->waited_for = suspected->waited_for || suspicion.in_op;
  if (suspected->life == Life::running) {
    if (suspicion.seems_gone) suspect(*suspected, reason, now);
  } else if (suspected->life == Life::left) {
    if (suspected->suspected_because.empty()) {
      suspected->suspected_because = reason;
      emit(EventKind::worker_suspected, suspected, reason);
    }
    condemn(*suspected);
  }
}

void Coordinator::on_agent_hello(const std::string& host, Time now) {
  for (Member& member : roster_.members()) {
    if (member.host == host && member.life == Life::suspected) ask_for_fence(member, now);
  }
}

void Coordinator::on_agent_suspicion(const AgentSuspicion& suspicion, Time now) {
  Member* member = roster_.find(suspicion.worker);
  if (member != nullptr && member->life == Life::running) suspect(*member, suspicion.reason, now);
}

void Coordinator::on_fenced(const Fenced& fenced) {
  Member* member = roster_.find(fenced.worker);
  if (member == nullptr) return;
  EndStatus status{fenced.reaped, fenced.by_itself, fenced.wait_status, fenced.reason};
  process_ended(*member, status);
}

void Coordinator::on_exited(const Exited& exited) {
  Member* member = roster_.find(exited.worker);
  if (member != nullptr) process_ended(*member, {true, true, exited.wait_status, exited.reason});
}

void Coordinator::suspect(Member& member, const std::string& reason, Time now) {
  member.life = Life::suspected;
  member.suspected_because = reason;
  emit(EventKind::worker_suspected, &member, reason);
  ask_for_fence(member, now);
}

void Coordinator::ask_for_fence(Member& member, Time now) {
  member.fence_deadline = now + config_.fence_deadline;
  effects_.to_agents.emplace_back(member.host, Fence{member.worker, member.suspected_because, member.hangs});
}

// The worker's process is over, or as good as. May come twice: as proof first, with its status later.
void Coordinator::process_ended(Member& member, const EndStatus& status) {
  EndStatus& end = member.end;
  end.by_itself = end.by_itself && status.by_itself;
  end.known = end.known || status.known;
  if (status.known) end.wait_status = status.wait_status;
  if (end.reason.empty() || status.known) end.reason = status.reason;
  if (member.life == Life::excluded) {
    give_up_without_shrink();
    return;
  }
  member.fence_deadline.reset();
  if (!member.in_view) {
    drop(member);
    return;
  }

  // Status 0 by itself: it has left in order, and is excluded only when some op waits for it. Until the status is
  // known a worker that said goodbye gets the benefit of the doubt; any other does not: its peers may be in an op.
  const bool orderly =
      end.by_itself && !member.waited_for && (end.known ? end.wait_status == 0 : member.life == Life::left);
  const bool committed = change_ && std::any_of(change_->excluding.begin(), change_->excluding.end(),
                                                [&](const auto& other) { return other.worker == member.worker; });
  if (orderly && !committed) {
    if (member.life != Life::left) emit(EventKind::worker_left, &member, end.reason);
    member.life = Life::left;
    member.must_go = member.for_good;
  } else if (!member.must_go) {
    if (member.suspected_because.empty()) {
      member.suspected_because = end.reason;
      emit(EventKind::worker_suspected, &member, end.reason);
    }
    condemn(member);
  }
}

// A newcomer that has not joined is in no view: its end changes none. Its slot is vacant again.
void Coordinator::drop(Member& member) {
  const bool orderly = member.end.known && member.end.by_itself && member.end.wait_status == 0;
  if (orderly || member.life == Life::left) {
    if (member.life != Life::left) emit(EventKind::worker_left, &member, member.end.reason);
  } else {
    if (member.suspected_because.empty()) {
      member.suspected_because = member.end.reason;
      emit(EventKind::worker_suspected, &member, member.end.reason);
    }
    emit(EventKind::worker_fenced, &member, member.end.reason);
  }
  member.life = Life::excluded;
}

void Coordinator::condemn(Member& member) {
  member.life = Life::gone;
  member.must_go = true;
  emit(EventKind::worker_fenced, &member, member.end.reason.empty() ? "said goodbye before" : member.end.reason);
}

void Coordinator::check_fences(Time now) {
  for (Member& member : roster_.members()) {
    if (!member.fence_deadline || now < *member.fence_deadline) continue;
    emit(EventKind::fence_overdue, &member,
         "its agent on '" + member.host + "' has not proved within " + std::to_string(config_.fence_deadline.count()) +
             " ms that it is gone; asking again",
         member.suspected_because);
    ask_for_fence(member, now);
  }
}

}  // namespace closeranks::membership
