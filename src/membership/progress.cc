// How far the workers are, of the coordinator's machine.
#include <utility>

#include "membership/coordinator.h"

namespace closeranks::membership {
namespace {

constexpr Time look_every = std::chrono::milliseconds(250);

}  // namespace

void Coordinator::on_progress(const Progress& progress, Member& member, Time now) {
  if (member.life != Life::running) return;
  hang_.progress(progress, now);
  if (!judge_at_) judge_at_ = now;
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

void Coordinator::on_pause(const Pause& pause, const Member& member, Time now) {
  if (member.life == Life::running) hang_.paused(pause, now);
}

// Only while nothing else is going on: a change of view, or a fence, is what everybody waits for then.
void Coordinator::find_the_hung(Time now) {
  if (!judge_at_ || now < *judge_at_) return;
  judge_at_ = now + look_every;
  std::vector<Filled> present;
  std::optional<HangDetector::Boundary> boundary;
  if (round_ && round_->stage != Round::Stage::holding) boundary.emplace().step = round_->step;
  for (const Member& member : roster_.members()) {
    if (!is_present(member) || member.life == Life::left) continue;
    if (member.life != Life::running) return hang_.disturbed();
    present.push_back({member.slot, member.worker});
    if (!boundary) continue;
    const bool arrived = round_->stage == Round::Stage::admitted ? round_->answers.contains(member.worker)
                                                                 : round_->done.contains(member.worker);
    (arrived ? boundary->arrived : boundary->missing).push_back(member.slot);
  }
  if (change_) return hang_.disturbed();
  const HangDetector::Verdict verdict = hang_.judge(present, boundary, now);
  if (verdict.circle)
    emit(EventKind::worker_hung, nullptr, *verdict.circle, "nobody is fenced for it; its ops end at their timeouts");
  for (const HangDetector::Hung& hung : verdict.hung) {
    Member& member = *roster_.find(hung.worker);
    member.hangs = member.waited_for = true;
    emit(EventKind::worker_hung, &member, hung.reason);
    suspect(member, hung.reason, now);
    hang_.forget(hung.worker);
  }
}

}  // namespace closeranks::membership
