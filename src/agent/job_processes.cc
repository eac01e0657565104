// The job's processes, as the main thread sees them: who has ended, who is stopped, where life words are found.
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "agent/job_state.h"
#include "agent/life_finder.h"
#include "base/process_state.h"

namespace closeranks::agent {
namespace {

using std::chrono::milliseconds;

// A worker that has no life word after this may never get one (a script without closeranks): looked at less often.
constexpr milliseconds life_expected{60'000};
constexpr milliseconds life_rarely{2'000};

std::string seconds_text(milliseconds time) {
  const auto tenths = (time.count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

void Job::wait_for_children() {
  children_.async_wait([this](const std::error_code& error, int) {
    if (error) return;
    reap_children();
    wait_for_children();
  });
}

// Workers through the watcher, which must know before a pid can be used again; orphans here and now.
void Job::reap_children() {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const auto worker = std::find_if(workers_.begin(), workers_.end(), [&info](const auto& entry) {
      return entry.second.pid == info.si_pid && !entry.second.exited;
    });
    if (worker == workers_.end()) {
      ::waitpid(info.si_pid, nullptr, WNOHANG);
    } else if (watcher_->reap(worker->first).has_value()) {
      worker->second.exited = true;
      leftovers_ = true;
    } else {
      return;  // not yet after all; the next tick asks again
    }
  }
}

void Job::find_life_of(WorkerId id, Worker& worker, Clock::time_point now) {
  const bool expected = now - worker.started < life_expected;
  if (worker.has_life || now - worker.life_looked_for < (expected ? tick_interval / 2 : life_rarely)) return;
  worker.life_looked_for = now;
  std::vector<pid_t> candidates{worker.pid};
  // A program of the user's own may be a script around the process that is in the job.
  if (options_.no_python) {
    for (const pid_t child : descendants_of(worker.pid)) candidates.push_back(child);
  }
  const transport::LifeIdentity identity{facts_.job, id, *worker.slot};
  for (const pid_t pid : candidates) {
    auto life = find_life(pid, identity, transport::agent_watcher(options_.workers));
    if (!life.has_value()) continue;
    worker.has_life = true;
    watcher_->attach_life(id, std::move(*life), pid);
    return;
  }
}

void Job::look_at(WorkerId id, Worker& worker, Clock::time_point now) {
  if (worker.slot.has_value()) {
    find_life_of(id, worker, now);
  } else {
    look_at_spare(id, worker, now);
  }
  record_state(id, worker, now);
  // Every report of a stop or a continuation since the last look.
  bool moved = false;
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(worker.pid), &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
         info.si_pid != 0) {
    moved = true;
    info = {};
  }
  const auto state = process_state(worker.pid);
  const bool stopped = state.has_value() && state->letter == 'T';
  if (const auto stopped_for = worker.stop.look(now, stopped, moved); stopped_for.has_value()) {
    const std::string reason = "stopped for " + seconds_text(*stopped_for);
    output_->say(name_of(id) + " has been " + reason + "; it is killed");
    if (!worker.slot.has_value()) {
      watcher_->fence(id, reason);
      return;
    }
    verdict_.suspected(id, reason);
    send(membership::AgentSuspicion{id, reason});
  }
}

void Job::clear_leftovers() {
  leftovers_ = watcher_->kill_leftovers(leftover_grace) > 0;
  if (leftovers_ || !temporary_folder_.has_value()) return;
  for (const auto& [id, worker] : workers_) {
    if (worker.exited) temporary_folder_->remove(id);
  }
}

void Job::schedule_tick() {
  tick_.expires_after(tick_interval);
  tick_.async_wait([this](const std::error_code& error) {
    if (!error) tick();
  });
}

void Job::tick() {
  const auto now = Clock::now();
  reap_children();
  for (auto& [id, worker] : workers_) {
    if (!worker.exited) look_at(id, worker, now);
  }
  look_at_successors(now);
  if (ending_ == Ending::no) replace();
  if (leftovers_) clear_leftovers();
  check_end();
  if (ending_ != Ending::over) schedule_tick();
}

}  // namespace closeranks::agent
