// The agent's side of the coordinator: what it says, and what it makes of what the coordinator decides.
#include <unistd.h>

#include <utility>

#include "agent/job_state.h"
#include "agent/slot_names.h"
#include "transport/process_state.h"

namespace closeranks::agent {

void Job::send(const membership::FromAgent& message) {
  if (!std::holds_alternative<membership::AgentSuspicion>(message)) {
    const std::scoped_lock lock(ended_mutex_);
    ended_.push_back(message);
  }
  // Without a connection it is said again in the opening of the next one.
  (void)link_->send(message);
}

std::vector<membership::FromAgent> Job::opening() {
  std::vector<membership::FromAgent> messages{membership::AgentHello{host_, static_cast<std::uint32_t>(::getpid())}};
  const std::scoped_lock lock(ended_mutex_);
  messages.insert(messages.end(), ended_.begin(), ended_.end());
  return messages;
}

void Job::emit(EventKind kind, std::optional<Slot> slot, const std::string& reason, const std::string& detail) {
  Event event;
  event.kind = kind;
  event.host = host_;
  event.reason = reason;
  event.detail = detail;
  if (slot.has_value()) {
    event.slot = slot;
    event.worker = WorkerId(slot->value());
    event.pid = static_cast<std::uint32_t>(workers_.at(*event.worker).pid);
  }
  events_->emit(std::move(event));
}

void Job::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::worker_suspected:
      verdict_.suspected(*event.slot, event.reason);
      break;
    case EventKind::worker_excluded:
      verdict_.excluded(*event.slot, event.reason);
      unreported_.push_back(*event.slot);
      break;
    case EventKind::view_installed:
      report_view();
      break;
    case EventKind::gave_up:
    case EventKind::superseded:
      verdict_.gave_up(event.reason);
      break;
    default:
      return;
  }
  if (verdict_.must_end()) begin_ending(Ending::grace);
  check_end();
}

void Job::on_exited(const membership::Exited& exited) {
  const Slot slot = slot_of(exited.worker);
  const std::string how = transport::describe_wait_status(exited.wait_status);
  verdict_.exited(slot, exited.wait_status, how);
  emit(EventKind::worker_exited, slot, how, exited.reason == how ? "" : exited.reason);
  if (verdict_.must_end()) begin_ending(Ending::grace);
  check_end();
}

// One sentence per worker that the view just installed leaves out.
void Job::report_view() {
  const std::vector<Slot> lost = std::exchange(unreported_, {});
  if (interrupted_ || !options_.shrink || verdict_.must_end()) return;
  const std::vector<Slot> present = verdict_.present();
  const std::string rest =
      present.empty() ? "nobody is left" : name_slots(present) + (present.size() == 1 ? " goes on" : " go on");
  for (const Slot slot : lost) {
    output_->say(name_of(slot) + " " + as_predicate(verdict_.reason_of(slot)) + "; " + rest);
  }
}

}  // namespace closeranks::agent
