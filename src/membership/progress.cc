// How far the workers are, of the coordinator's machine.
#include <utility>

#include "membership/coordinator.h"

namespace closeranks::membership {

void Coordinator::on_progress(const Progress& progress, Member& member, Time) {
  member.in_session = progress.in_session;
  if (progress.in_session && !std::exchange(session_started_, true)) {
    emit(EventKind::session_started, &member, "it has boundaries: workers can join and leave");
  }
  ask_to_leave(member);
}

void Coordinator::on_first_step(const FirstStep& step, Member& member) {
  if (!member.first_step_due) return;
  member.first_step_due = false;
  emit(EventKind::first_step, &member, "finished step " + std::to_string(step.step));
}

void Coordinator::on_pause(const Pause&, const Member&, Time) {}

}  // namespace closeranks::membership
