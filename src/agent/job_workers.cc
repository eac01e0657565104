// Who is started for which slot: the first workers, replacements, spares.
#include <algorithm>
#include <fstream>
#include <utility>

#include "agent/job_state.h"
#include "agent/slot_names.h"
#include "agent/spare_process.h"
#include "agent/worker_process.h"
#include "transport/process_state.h"

namespace closeranks::agent {
namespace {

std::string mebibytes(pid_t pid) {
  const std::uint64_t bytes = resident_bytes(pid);
  return std::to_string((bytes + (1u << 19)) >> 20) + " MiB";
}

}  // namespace

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

// The spare that has come furthest; one still importing is nearer than a new process.
std::optional<WorkerId> Job::take_spare() {
  std::optional<WorkerId> best;
  for (const auto& [id, worker] : workers_) {
    if (worker.slot.has_value() || worker.exited || worker.killed || !worker.orders.valid()) continue;
    const auto state = transport::process_state(worker.pid);
    if (!state.has_value() || state->letter == 'Z' || state->letter == 'T') continue;
    if (!best.has_value() || (worker.ready && !workers_.at(*best).ready)) best = id;
  }
  return best;
}

Status Job::hand_over(WorkerId id, Slot slot) {
  Worker& spare = workers_.at(id);
  const FileDescriptor orders = std::move(spare.orders);
  adopt(id, slot);
  return send_orders(orders, worker_environment(options_, facts_, slot, id, inherited_), spare_orders(options_));
}

void Job::start_replacement(Slot slot) {
  const auto now = Clock::now();
  const std::optional<WorkerId> spare = take_spare();
  const WorkerId id = spare.has_value() ? *spare : fresh_worker();
  if (!announce(id, slot)) return replacements_.put_off(slot, now + deadlines::reconnect);
  if (spare.has_value()) {
    spares_.taken(now);
    output_->say("slot " + std::to_string(slot.value()) + ": a spare takes it (worker " + std::to_string(id.value()) +
                 ", pid " + std::to_string(workers_.at(id).pid) + ")");
    // One that died just now is reaped as any worker.
    if (Status status = hand_over(id, slot); !status.ok()) output_->say(status.message());
    return;
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

// ---- spares ------------------------------------------------------------------------------------------------------

void Job::start_spare() {
  const WorkerId id = fresh_worker();
  auto started = agent::start_spare(spare_command(command_.front()), spare_environment(options_, id, inherited_));
  if (!started.ok()) {
    output_->say(started.status().message() + "; it is tried again later");
    spares_.died(Clock::now());
    return;
  }
  Worker& spare = workers_[id];
  spare.pid = started.value().process.pid;
  spare.started = Clock::now();
  spare.stop = StopTimer(options_.stop_timeout);
  spare.orders = std::move(started.value().orders);
  spare.output = std::move(started.value().process.output);
  spare.errors = std::move(started.value().process.errors);
  watcher_->follow(id, spare.pid, started.value().process.process);
}

void Job::look_at_spare(WorkerId id, Worker& spare, Clock::time_point now) {
  if (!spare.ready && spare.orders.valid() && is_ready(spare.orders)) {
    spare.ready = true;
    spares_.ready();
    spare_trouble_.clear();
    const std::string memory = mebibytes(spare.pid);
    output_->say("a spare is ready (worker " + std::to_string(id.value()) + ", pid " + std::to_string(spare.pid) +
                 ", " + memory + ")");
    emit(EventKind::spare_started, id, "", "memory " + memory);
  }
  if (!spare.ready && now - spare.started > deadlines::spare_ready) {
    watcher_->fence(id, "a spare that has not finished importing in " +
                            std::to_string(deadlines::spare_ready.count() / 1000) + " s");
  }
}

void Job::spare_exited(WorkerId id, Worker& spare) {
  spare.orders.reset();
  spares_.died(Clock::now());
  if (ending_ == Ending::no && !spare.killed && !replacements_.stopped()) {
    const std::string said = last_line(spare.errors);
    const std::string trouble = as_predicate(spare.reason) + (said.empty() ? "" : ": " + said);
    // One that cannot be started at all is tried for as long as the job runs, and told of once.
    if (std::exchange(spare_trouble_, trouble) != trouble) {
      output_->say(name_of(id) + " " + trouble + "; another is started later");
    }
  }
  spare.output.reset();
  spare.errors.reset();
}

}  // namespace closeranks::agent
