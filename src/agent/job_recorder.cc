// What the agent's own file of the flight recorder says: how workers ended, and what the kernel says of those that do
// not end.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>

#include "agent/job_state.h"
#include "base/process_state.h"
#include "recorder/recording.h"
#include "recorder/ring_writer.h"

namespace closeranks::agent {
namespace {

// A state lasts this long before it is worth a record: reading a file is uninterruptible sleep, too.
constexpr std::chrono::milliseconds state_told_after{500};

}  // namespace

// The job goes on without it.
void Job::open_recorder() {
  facts_.trace_folder = trace_folder(options_, log_folder_.path);
  if (!recorder::recording || facts_.trace_folder.empty()) return;
  // A script may change to another folder before it imports closeranks.
  facts_.trace_folder = std::filesystem::absolute(facts_.trace_folder);
  recorder::RingOptions ring;
  ring.directory = facts_.trace_folder;
  // An agent has little to say.
  ring.bytes = std::min(options_.trace_bytes, recorder::default_ring_bytes / 4);
  ring.role = recorder::Role::agent;
  ring.job = facts_.job;
  ring.slots_in_job = options_.workers;
  auto opened = recorder::RingWriter::open(ring);
  if (opened.ok()) {
    ring_ = std::move(opened.value());
  } else {
    output_->say("nothing is recorded here: " + opened.status().message() + "; --trace-dir names another folder");
  }
}

void Job::record(recorder::EventKind kind, WorkerId id, std::uint64_t number, const std::string& detail,
                 const std::string& stack) {
  if (!ring_) return;
  const std::optional<Slot> slot = workers_.at(id).slot;
  recorder::EventRecord event{.kind = kind,
                              .number = number,
                              .worker = id,
                              .detail = detail,
                              .stack = stack,
                              .use = recorder::NameUse::last_words};
  if (slot.has_value()) event.slots = {&*slot, 1};
  ring_->event(event);
}

// Before what it did to the others is told.
void Job::record_exit(const membership::Exited& exited, const std::string& how, const std::string& why) {
  if (!ring_) return;
  const Worker& worker = workers_.at(exited.worker);
  record(recorder::EventKind::worker_exited, exited.worker, static_cast<std::uint64_t>(exited.wait_status),
         why.empty() ? how : how + ": " + why);
  if (!WIFSIGNALED(exited.wait_status) || WTERMSIG(exited.wait_status) != SIGKILL || worker.killed) return;
  const std::optional<std::uint64_t> count = worker.memory.killed();
  if (count.has_value()) record(recorder::EventKind::out_of_memory, exited.worker, *count, "the kernel killed it");
}

void Job::record_state(WorkerId id, Worker& worker, Clock::time_point now) {
  if (!ring_) return;
  if (now - worker.memory_looked_at >= std::chrono::seconds(1)) {
    worker.memory_looked_at = now;
    worker.memory.look(worker.pid, now);
  }
  const std::string state = describe_process(worker.pid);
  const bool of_note =
      state.starts_with("stopped") || state.starts_with("traced") || state.starts_with("in the kernel");
  if (state != worker.state) {
    // It is over: said once, too.
    if (worker.state_told && !of_note) record(recorder::EventKind::peer_state, id, 0, state);
    worker.state = state;
    worker.state_since = now;
    worker.state_told = false;
  }
  if (!of_note || worker.state_told || now - worker.state_since < state_told_after) return;
  worker.state_told = true;
  record(recorder::EventKind::peer_state, id, 0, state);
}

}  // namespace closeranks::agent
