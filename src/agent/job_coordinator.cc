// The agent's side of the coordinator: what it says, and what it makes of what the coordinator decides.
#include <unistd.h>

#include <utility>

#include "agent/job_state.h"
#include "base/process_state.h"
#include "base/slot_names.h"

namespace closeranks::agent {

void Job::send(const membership::FromAgent& message) {
  Reports::Messages messages{message};
  if (const auto* fenced = std::get_if<membership::Fenced>(&message))
    messages = reports_.ended(fenced->worker, message);
  if (const auto* exited = std::get_if<membership::Exited>(&message))
    messages = reports_.ended(exited->worker, message);
  if (const auto* started = std::get_if<membership::Started>(&message)) messages = reports_.started(*started);
  if (const auto* drain = std::get_if<membership::Drain>(&message)) messages = reports_.asked(*drain);
  if (const auto* resize = std::get_if<membership::Resize>(&message)) messages = reports_.asked(*resize);
  // Without a connection it is said again in the opening of the next one.
  for (const membership::FromAgent& one : messages) (void)link_->send(one);
}

std::vector<membership::FromAgent> Job::opening() {
  std::vector<membership::FromAgent> messages{membership::AgentHello{host_, static_cast<std::uint32_t>(::getpid())}};
  const Reports::Messages reports = reports_.all();
  messages.insert(messages.end(), reports.begin(), reports.end());
  return messages;
}

void Job::emit(EventKind kind, std::optional<WorkerId> worker, const std::string& reason, const std::string& detail) {
  Event event;
  event.kind = kind;
  event.host = host_;
  event.reason = reason;
  event.detail = detail;
  if (worker.has_value()) {
    event.worker = worker;
    event.slot = workers_.at(*worker).slot;
    event.pid = static_cast<std::uint32_t>(workers_.at(*worker).pid);
  }
  events_->emit(std::move(event));
}

void Job::on_event(const Event& event) {
  // Not one of ours: a stranger's claim, say.
  if (event.worker.has_value() && !workers_.contains(*event.worker)) return;
  switch (event.kind) {
    case EventKind::worker_suspected:
      verdict_.suspected(*event.worker, event.reason);
      break;
    case EventKind::worker_excluded:
      verdict_.excluded(*event.worker, event.reason);
      record(recorder::EventKind::excluded, *event.worker, 0, event.reason);
      if (!workers_.at(*event.worker).left_for_good) unreported_.push_back(*event.worker);
      on_excluded(*event.worker, event.reason);
      break;
    case EventKind::worker_left:
      on_left(*event.worker, event.reason);
      break;
    case EventKind::worker_joined:
      verdict_.joined(*event.worker);
      output_->say(name_of(*event.worker) + " has joined; " + name_slots(verdict_.present()) + " train");
      break;
    case EventKind::first_step:
      on_first_step(*event.worker);
      break;
    case EventKind::session_started:
      session_started();
      break;
    case EventKind::view_installed:
      report_view();
      break;
    case EventKind::gave_up:
      // Whoever leaves last leaves nobody behind; that is what was asked for.
      if (ending_ == Ending::draining) break;
      verdict_.gave_up(event.reason);
      break;
    case EventKind::superseded:
      verdict_.gave_up(event.reason);
      break;
    default:
      return;
  }
  if (verdict_.must_end()) begin_ending(Ending::grace);
  // A loss is told first, with the view that it makes.
  if (event.kind != EventKind::worker_excluded) replace();
  check_end();
}

void Job::on_exited(const membership::Exited& exited) {
  Worker& worker = workers_.at(exited.worker);
  const std::string how = describe_wait_status(exited.wait_status);
  worker.reason = how;
  const std::string why = exited.reason == how ? "" : exited.reason;
  emit(EventKind::worker_exited, exited.worker, how, why);
  record_exit(exited, how, why);
  if (!worker.slot.has_value()) {
    spare_exited(exited.worker, worker);
    check_end();
    return;
  }
  // One that was ended because the job is over caused nothing.
  verdict_.exited(exited.worker, worker.killed ? 0 : exited.wait_status, how, !why.empty());
  // One that was never let in is in no view that would have to change first.
  if (!verdict_.has_joined(exited.worker)) worker_out(exited.worker, ReplacementPolicy::Out::early, how);
  // The others follow; nobody is let in any more.
  if (verdict_.finishing()) stop_replacing();
  if (verdict_.must_end()) begin_ending(Ending::grace);
  replace();
  check_end();
}

void Job::on_excluded(WorkerId id, const std::string& reason) {
  using Out = ReplacementPolicy::Out;
  const Worker& worker = workers_.at(id);
  // Of the first workers it is not known whether they have trained; that newcomers are let in says that somebody has.
  const bool first_generation = id.value() < options_.workers;
  const Out lost = worker.has_stepped || first_generation ? Out::lost : Out::early;
  worker_out(id, worker.left_for_good ? Out::left : lost, reason);
}

// In order. For good: the others go on, and its slot stays vacant.
void Job::on_left(WorkerId id, const std::string& reason) {
  if (!reason.starts_with(membership::left_for_good)) return;
  workers_.at(id).left_for_good = true;
  verdict_.left_for_good(id);
  output_->say(name_of(id) + " leaves the job for good");
}

void Job::on_first_step(WorkerId id) {
  Worker& worker = workers_.at(id);
  worker.has_stepped = true;
  if (worker.slot.has_value()) replacements_.first_step(*worker.slot);
  spares_.newcomer_trains(Clock::now());
}

// One sentence per worker that the view just installed leaves out.
void Job::report_view() {
  const std::vector<WorkerId> lost = std::exchange(unreported_, {});
  if (interrupted_ || verdict_.must_end()) return;
  const std::vector<Slot> present = verdict_.present();
  const std::string rest =
      present.empty() ? "nobody is left" : name_slots(present) + (present.size() == 1 ? " goes on" : " go on");
  for (const WorkerId worker : lost) {
    output_->say(name_of(worker) + " " + as_predicate(verdict_.reason_of(worker)) + "; " + rest);
  }
}

}  // namespace closeranks::agent
