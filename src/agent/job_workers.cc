// Who is started for which slot: the first workers, and replacements.
#include <utility>

#include "agent/job_state.h"
#include "agent/worker_process.h"
#include "base/slot_names.h"

namespace closeranks::agent {

// A process of its own for the worker of a slot.
Status Job::start_process(WorkerId id, Slot slot) {
  auto process = start_worker(command_, worker_environment(options_, facts_, slot, id, inherited_));
  if (!process.ok()) return process.status();
  Worker& worker = workers_[id];
  worker.pid = process.value().pid;
  worker.output = std::move(process.value().output);
  worker.errors = std::move(process.value().errors);
  worker.stop = StopTimer(options_.stop_timeout);
  watcher_->follow(id, worker.pid, process.value().process);
  adopt(id, slot);
  return {};
}

// The process fills the slot from now on.
void Job::adopt(WorkerId id, Slot slot) {
  Worker& worker = workers_.at(id);
  worker.slot = slot;
  worker.started = Clock::now();
  in_slot_.at(slot.value()) = id;
  output_->attach(slot, log_name(slot, id), std::move(worker.output), std::move(worker.errors));
  emit(EventKind::worker_started, id, "");
}

// ---- replacements ------------------------------------------------------------------------------------------------

void Job::session_started() {
  if (std::exchange(in_session_, true)) return;
  verdict_.goes_on();
  replacements_.takes_newcomers();
  // What it costs an unmodified script: nothing.
  spares_.enable(Clock::now());
}

void Job::stop_replacing() {
  replacements_.stop();
  spares_.stop();
}

// Once per worker: it is gone, and in no view.
void Job::worker_out(WorkerId id, ReplacementPolicy::Out how, const std::string& reason) {
  Worker& worker = workers_.at(id);
  if (worker.out || !worker.slot.has_value() || in_slot_.at(worker.slot->value()) != id) return;
  worker.out = true;
  replacements_.worker_out(*worker.slot, how, reason, Clock::now());
}

void Job::replace() {
  if (ending_ != Ending::no) stop_replacing();
  const auto now = Clock::now();
  const ReplacementPolicy::Actions actions = replacements_.act(now);
  for (const ReplacementPolicy::GivenUp& given_up : actions.given_up) {
    const WorkerId last = in_slot_.at(given_up.slot.value());
    const std::string sentence = name_slots({given_up.slot}) + " is given up: " + std::to_string(given_up.tries) +
                                 (given_up.tries == 1 ? " worker" : " workers") +
                                 " ended before a first step, the last one " + given_up.last_error;
    output_->say(sentence + (facts_.log_folder.empty() ? ""
                                                       : "; its output is in " + facts_.log_folder + "/" +
                                                             log_name(given_up.slot, last) + ".stderr.log"));
    emit(EventKind::slot_given_up, last, given_up.last_error, sentence);
  }
  for (const Slot slot : actions.start) start_replacement(slot);
  for (std::uint32_t count = spares_.act(now); count > 0; --count) start_spare();
}

// The coordinator knows of the worker before its process can connect: what was written to it first is read first, and
// the process's own connection takes several turns of the same thread until it has proved the token.
bool Job::announce(WorkerId id, Slot slot) {
  if (!link_->connected()) return false;
  verdict_.started(id, slot);
  send(membership::Started{id, slot});
  return control_.run([] {}).ok();
}

void Job::start_replacement(Slot slot) {
  const auto now = Clock::now();
  const std::optional<WorkerId> spare = take_spare();
  if (!spare.has_value() && expects_spare(now)) return replacements_.put_off(slot, now + tick_interval);
  const WorkerId id = spare.has_value() ? *spare : fresh_worker();
  if (!announce(id, slot)) return replacements_.put_off(slot, now + deadlines::reconnect);
  if (spare.has_value()) {
    output_->say("slot " + std::to_string(slot.value()) + ": a spare takes it (worker " + std::to_string(id.value()) +
                 ", pid " + std::to_string(workers_.at(id).pid) + ")");
    return hand_over(id, slot, now);
  }
  if (Status status = start_process(id, slot); !status.ok()) {
    // Announced, and there will be no process: as good as ended.
    send(membership::Exited{id, 127 << 8, status.message()});
    verdict_.exited(id, 127 << 8, status.message());
    output_->say("a new worker for slot " + std::to_string(slot.value()) + " cannot be started: " + status.message());
    return replacements_.worker_out(slot, ReplacementPolicy::Out::early, status.message(), now);
  }
  output_->say("slot " + std::to_string(slot.value()) + ": a new worker is started (worker " +
               std::to_string(id.value()) + ", pid " + std::to_string(workers_.at(id).pid) + ")");
}

}  // namespace closeranks::agent
