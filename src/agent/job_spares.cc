// Spares: processes that wait to become workers, and those that they leave behind then.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "agent/job_state.h"
#include "agent/spare_process.h"
#include "agent/worker_environment.h"
#include "base/process_state.h"

namespace closeranks::agent {
namespace {

// A successor is there some 50 ms after its parent got its orders; a busy machine takes longer. A new process takes
// seconds.
constexpr std::chrono::milliseconds successor_patience{3'000};

std::string mebibytes(pid_t pid) {
  const std::uint64_t bytes = resident_bytes(pid);
  return std::to_string((bytes + (1u << 19)) >> 20) + " MiB";
}

}  // namespace

// The spare that has come furthest; one still importing is nearer than a new process.
std::optional<WorkerId> Job::take_spare() {
  std::optional<WorkerId> best;
  for (const auto& [id, worker] : workers_) {
    if (worker.slot.has_value() || worker.exited || worker.killed || !worker.orders.valid()) continue;
    const auto state = process_state(worker.pid);
    if (!state.has_value() || state->letter == 'Z' || state->letter == 'T') continue;
    if (!best.has_value() || (worker.ready && !workers_.at(*best).ready)) best = id;
  }
  return best;
}

// One is about to be there: worth waiting for.
bool Job::expects_spare(Clock::time_point now) const {
  return std::any_of(successors_.begin(), successors_.end(),
                     [now](const Successor& successor) { return now - successor.since < successor_patience; });
}

void Job::hand_over(WorkerId id, Slot slot, Clock::time_point now) {
  const FileDescriptor orders = std::move(workers_.at(id).orders);
  adopt(id, slot);
  auto ends = make_successor_ends();
  const Status sent = send_orders(orders, worker_environment(options_, facts_, slot, id, inherited_),
                                  spare_orders(options_), ends.ok() ? &ends.value() : nullptr);
  const bool successor = ends.ok() && sent.ok();
  spares_.taken(now, successor);
  if (successor) {
    successors_.push_back({fresh_worker(), now, std::move(ends.value().orders), std::move(ends.value().output.read),
                           std::move(ends.value().errors.read)});
  }
  // One that died just now is reaped as any worker.
  if (!sent.ok()) output_->say(sent.message());
}

void Job::start_spare() {
  const WorkerId id = fresh_worker();
  auto started = agent::start_spare(spare_command(command_.front()), spare_environment(options_, inherited_));
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
  if (!spare.ready && spare.orders.valid() && word_of(spare.orders).pid.has_value()) {
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

void Job::look_at_successors(Clock::time_point now) {
  std::erase_if(successors_, [&](Successor& successor) {
    const SpareWord word = word_of(successor.orders);
    if (word.pid.has_value() && follow_successor(successor, *word.pid, now)) return true;
    // Its parent may have ended before it forked, or could not.
    if (!word.gone && !word.pid.has_value() && now - successor.since < deadlines::spare_ready) return false;
    spares_.died(now);
    return true;
  });
}

// From here on it is a spare like any other. False: it is no child of ours, or gone.
bool Job::follow_successor(Successor& successor, pid_t pid, Clock::time_point now) {
  auto process = open_process(pid);
  const auto state = process_state(pid);
  if (!process.ok() || !state.has_value() || state->parent != ::getpid()) return false;
  Worker& spare = workers_[successor.id];
  spare.pid = pid;
  spare.started = now;
  spare.stop = StopTimer(options_.stop_timeout);
  spare.orders = std::move(successor.orders);
  spare.output = std::move(successor.output);
  spare.errors = std::move(successor.errors);
  watcher_->follow(successor.id, pid, process.value());
  return true;
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

// A successor that is not known yet ends by the end of its socket.
void Job::kill_spares() {
  successors_.clear();
  for (auto& [id, worker] : workers_) {
    if (worker.slot.has_value() || std::exchange(worker.killed, true)) continue;
    watcher_->fence(id, "the job ends");
  }
}

}  // namespace closeranks::agent
