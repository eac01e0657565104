// The job's way to its end: signals, draining, deadlines from grace to SIGKILL, the last words.
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "agent/job_state.h"
#include "base/process_state.h"
#include "base/slot_names.h"

namespace closeranks::agent {
namespace {

using std::chrono::milliseconds;

// All processes have ended: how long the coordinator may take to exclude the last one that failed.
constexpr milliseconds settle{1'000};
// Output still in the pipes of processes that are gone.
constexpr milliseconds drain{5'000};

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

}  // namespace

std::string Job::name_of(WorkerId id) const {
  const auto worker = workers_.find(id);
  std::string number = "worker " + std::to_string(id.value());
  if (worker == workers_.end()) return number;
  const std::string place =
      worker->second.slot.has_value() ? "slot " + std::to_string(worker->second.slot->value()) : std::string("a spare");
  return place + " (" + number + ", pid " + std::to_string(worker->second.pid) + ")";
}

void Job::wait_for_signals() {
  signals_.async_wait([this](const std::error_code& error, int signal) {
    if (error) return;
    on_signal(signal);
    wait_for_signals();
  });
}

void Job::on_signal(int signal) {
  verdict_.interrupted(signal);
  const bool again = std::exchange(interrupted_, true);
  if (!again && begin_draining(signal)) return;
  if (again && ending_ != Ending::draining) {
    output_->say(signal_name(signal) + " again: the workers are killed");
    begin_ending(Ending::killing);
    return;
  }
  output_->say(signal_name(signal) + ": the workers are asked to end (SIGTERM), and killed in " +
               std::to_string(deadlines::terminate.count() / 1000) + " s or at the next " + signal_name(signal));
  if (!again) emit(EventKind::job_interrupted, std::nullopt, signal_name(signal));
  begin_ending(Ending::terminating);
}

// A preemption notice: a script with boundaries leaves at its next one, having handed over what it owes. True if that
// is what happens.
bool Job::begin_draining(int signal) {
  if (signal != SIGTERM || !in_session_ || ending_ != Ending::no || verdict_.finishing()) return false;
  ending_ = Ending::draining;
  output_->say("SIGTERM: the workers leave at their next boundary; in " +
               std::to_string(options_.grace.count() / 1000) + " s, or at the next signal, they get SIGTERM too");
  emit(EventKind::job_interrupted, std::nullopt, "SIGTERM");
  stop_replacing();
  kill_spares();
  send(membership::Drain{"SIGTERM to the agent"});
  deadline_.expires_after(options_.grace);
  deadline_.async_wait([this](const std::error_code& error) {
    if (error || ending_ != Ending::draining) return;
    output_->say("the workers have not left within " + std::to_string(options_.grace.count() / 1000) +
                 " s (--grace); they get SIGTERM");
    begin_ending(Ending::terminating);
  });
  return true;
}

// The job is over for everybody who was in a view; the others have no part in it any more.
bool Job::extras_are_gone(Clock::time_point now) {
  stop_replacing();
  kill_spares();
  const auto over_for = now - *all_exited_at_;
  bool gone = true;
  for (auto& [id, worker] : workers_) {
    if (worker.exited) continue;
    gone = false;
    // The coordinator tells newcomers that the job has finished, and they end by themselves.
    if (over_for < deadlines::newcomer_end || std::exchange(worker.killed, true)) continue;
    watcher_->fence(id, "the job is over and it was never let in");
  }
  return gone || over_for > deadlines::newcomer_end + deadlines::fence;
}

void Job::say_that_it_fails() {
  const auto cause = verdict_.root_cause();
  const std::string sentence =
      cause.has_value() ? name_of(*cause) + " " + as_predicate(verdict_.reason_of(*cause)) : "the job cannot go on";
  if (!verdict_.all_exited()) {
    output_->say(sentence + "; the job ends" + (options_.shrink ? "" : " (--shrink would let the others go on)"));
  }
  emit(EventKind::job_failing, cause, sentence);
}

void Job::begin_ending(Ending stage) {
  if (stage <= ending_) return;
  ending_ = stage;
  stop_replacing();
  kill_spares();
  milliseconds next{};
  switch (stage) {
    case Ending::grace:
      say_that_it_fails();
      next = deadlines::failure_grace;
      break;
    case Ending::terminating:
      for (const auto& [id, worker] : workers_) watcher_->signal_group(id, SIGTERM);
      // A stopped worker sees its signal only when it runs.
      for (const auto& [id, worker] : workers_) watcher_->signal_group(id, SIGCONT);
      next = deadlines::terminate;
      break;
    case Ending::killing:
      for (const auto& [id, worker] : workers_) watcher_->fence(id, "killed at the job's end");
      next = deadlines::fence;
      break;
    case Ending::no:
    case Ending::draining:
    case Ending::over:
      return;
  }
  deadline_.expires_after(next);
  deadline_.async_wait([this, stage](const std::error_code& error) {
    if (!error && ending_ == stage) on_ending_overdue(stage);
  });
}

void Job::on_ending_overdue(Ending stage) {
  if (stage != Ending::killing) {
    begin_ending(stage == Ending::grace ? Ending::terminating : Ending::killing);
    return;
  }
  for (const auto& [id, worker] : workers_) {
    if (worker.exited) continue;
    output_->say(name_of(id) + " cannot be killed (it sleeps in '" + waiting_channel(worker.pid) +
                 "' in the kernel); it is left behind");
  }
  finish();
}

void Job::check_end() {
  if (ending_ == Ending::over) return;
  if (!verdict_.all_exited()) {
    all_exited_at_.reset();
    return;
  }
  const auto now = Clock::now();
  if (!all_exited_at_.has_value()) all_exited_at_ = now;
  // The next tick asks again.
  if (!verdict_.settled() && now - *all_exited_at_ < settle) return;
  if (!extras_are_gone(now)) return;
  if (leftovers_ && now - *all_exited_at_ < leftover_grace + settle) return;
  finish();
}

void Job::finish() {
  ending_ = Ending::over;
  main_.stop();
}

// Some workers could be started, others not.
void Job::give_up_start() {
  for (const auto& [id, worker] : workers_) watcher_->fence(id, "the job could not start");
  const auto until = Clock::now() + deadlines::fence;
  const auto runs = [](const auto& entry) { return !entry.second.exited; };
  while (Clock::now() < until && std::any_of(workers_.begin(), workers_.end(), runs)) {
    main_.run_for(milliseconds(10));
    reap_children();
  }
}

void Job::stop_services() {
  // The coordinator first: that its agent leaves is no event any more.
  if (server_) server_->stop();
  if (link_) link_->stop();
  control_.stop();
}

int Job::conclude() {
  control_socket_.reset();
  // The default handling of signals again: from here on another Ctrl-C ends us at once.
  signals_.clear();
  children_.clear();
  if (watcher_->kill_leftovers(milliseconds(0)) > 0) {
    output_->say("processes that the workers left behind were killed");
  }
  temporary_folder_.reset();
  const int status = verdict_.all_exited() ? verdict_.exit_status() : 1;
  if (!output_->finish(drain)) output_->say("some output was still coming and is left out");
  stop_services();
  report_end(status);
  if (ring_) ring_->end("exit status " + std::to_string(status));
  return status;
}

void Job::report_end(int status) {
  const std::vector<std::string> causes = verdict_.causes();
  if (interrupted_) {
    output_->say("ended by " + signal_name(status - 128) + "; exit status " + std::to_string(status));
  } else if (status != 0) {
    const std::string first = causes.empty() ? "no worker is left" : causes.front();
    output_->say("the job failed: " + first + "; exit status " + std::to_string(status));
    for (std::size_t at = 1; at < causes.size(); ++at) output_->say("  then " + causes[at]);
  } else if (!causes.empty()) {
    std::string on_the_way;
    for (const std::string& cause : causes) on_the_way += (on_the_way.empty() ? "" : ", ") + cause;
    output_->say("the job finished on " + name_slots(verdict_.finished()) + "; on the way " + on_the_way);
  }
  if (status != 0 && !facts_.log_folder.empty()) output_->say("logs of every worker: " + facts_.log_folder);
  emit(EventKind::job_finished, std::nullopt, causes.empty() ? "" : causes.front(),
       "exit status " + std::to_string(status));
}

}  // namespace closeranks::agent
