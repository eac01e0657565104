#include "agent/job.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "agent/life_finder.h"
#include "agent/log_folder.h"
#include "agent/output.h"
#include "agent/process_tree.h"
#include "agent/stop_timer.h"
#include "agent/store_server.h"
#include "agent/traceback_filter.h"
#include "agent/verdict.h"
#include "agent/watcher.h"
#include "agent/worker_environment.h"
#include "agent/worker_process.h"
#include "base/deadlines.h"
#include "base/log.h"
#include "base/token.h"
#include "control/agent_link.h"
#include "control/control_thread.h"
#include "coordinator/events.h"
#include "coordinator/journal.h"
#include "coordinator/server.h"
#include "transport/process_state.h"

extern char** environ;

namespace closeranks::agent {
namespace {

using coordinator::Event;
using coordinator::EventKind;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How often stopped workers, missing life words and leftover processes are looked for.
constexpr milliseconds tick_interval{100};
// A worker that has no life word after this may never get one (a script without closeranks): looked at less often.
constexpr milliseconds life_expected{60'000};
constexpr milliseconds life_rarely{2'000};
// Processes that a worker left behind may end by themselves: python's resource tracker removes shared memory first.
constexpr milliseconds leftover_grace{1'000};
// All processes have ended: how long the coordinator may take to exclude the last one that failed.
constexpr milliseconds settle{1'000};
// Output still in the pipes of processes that are gone.
constexpr milliseconds drain{5'000};

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string seconds_text(milliseconds time) {
  const auto tenths = (time.count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

// A file name and a claim on connections: letters, digits, - and _ of the run's id, and something unique.
std::string make_job_id(const std::string& run_id) {
  std::string id;
  for (const char letter : run_id.substr(0, 40)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '-' || letter == '_';
    id.push_back(plain ? letter : '_');
  }
  return (id.empty() ? "" : id + "-") + make_token().substr(0, 8);
}

class Job {
 public:
  Job(const LaunchOptions& options, const std::vector<std::string>& tool_folders)
      : options_(options),
        tool_folders_(tool_folders),
        host_(host_name()),
        signals_(main_, SIGINT, SIGTERM, SIGHUP),
        children_(main_, SIGCHLD),
        tick_(main_),
        deadline_(main_),
        verdict_(options.workers, options.shrink),
        control_("cr-control") {
    signals_.add(SIGQUIT);
  }
  int run();

 private:
  // One worker as the main thread knows it; its death is the watcher's business.
  struct Worker {
    pid_t pid = 0;
    Clock::time_point started;
    Clock::time_point life_looked_for;
    bool has_life = false;
    bool exited = false;
    StopTimer stop{deadlines::stop};
  };
  // How far the end of the job has come; only forward.
  enum class Ending { no, grace, terminating, killing, over };

  Status prepare();
  Status open_events();
  Status start_coordinator();
  Status start_workers();
  void wait_for_signals();
  void wait_for_children();
  void reap_children();
  void schedule_tick();
  void tick();
  void look_at(WorkerId id, Worker& worker, Clock::time_point now);
  void on_event(const Event& event);
  void on_exited(const membership::Exited& exited);
  void on_signal(int signal);
  void begin_ending(Ending stage);
  void check_end();
  void finish();

  std::string name_of(Slot slot) const;
  void emit(EventKind kind, std::optional<Slot> slot, const std::string& reason, const std::string& detail = {});
  void send(const membership::FromAgent& message);
  std::vector<membership::FromAgent> opening();
  void report_view();
  void report_end(int status);

  const LaunchOptions options_;
  const std::vector<std::string> tool_folders_;
  const std::string host_;
  JobFacts facts_;
  LogFolder log_folder_;
  asio::io_context main_;
  asio::signal_set signals_;
  asio::signal_set children_;
  asio::steady_timer tick_;
  asio::steady_timer deadline_;
  Verdict verdict_;
  std::map<WorkerId, Worker> workers_;
  std::vector<Slot> unreported_;  // excluded, and not yet said
  Ending ending_ = Ending::no;
  bool interrupted_ = false;
  bool leftovers_ = false;  // some worker has ended, and what it left behind may not be gone yet
  std::optional<Clock::time_point> all_exited_at_;

  std::unique_ptr<Output> output_;
  std::unique_ptr<coordinator::EventFile> events_file_;
  std::unique_ptr<coordinator::EventFile> events_log_;
  std::unique_ptr<coordinator::EventFunction> events_here_;
  std::unique_ptr<coordinator::EventFan> events_;
  std::unique_ptr<StoreServer> store_;
  coordinator::MemoryJournal journal_;
  control::ControlThread control_;
  std::unique_ptr<coordinator::Server> server_;
  std::unique_ptr<control::AgentLink> link_;
  std::unique_ptr<Watcher> watcher_;

  std::mutex ended_mutex_;
  std::vector<membership::FromAgent> ended_;  // under ended_mutex_: repeated to a coordinator that we reach anew
};

// ---- start -------------------------------------------------------------------------------------------------------

Status Job::open_events() {
  std::vector<coordinator::EventSink*> sinks;
  if (!options_.events_file.empty()) {
    auto file = coordinator::EventFile::open(options_.events_file);
    if (!file.ok()) return file.status();
    events_file_ = std::move(file.value());
    sinks.push_back(events_file_.get());
  }
  if (!log_folder_.path.empty()) {
    auto file = coordinator::EventFile::open(log_folder_.path + "/events.jsonl");
    if (!file.ok()) return file.status();
    events_log_ = std::move(file.value());
    sinks.push_back(events_log_.get());
  }
  events_here_ = std::make_unique<coordinator::EventFunction>(
      [this](const Event& event) { asio::post(main_, [this, event] { on_event(event); }); });
  sinks.push_back(events_here_.get());
  events_ = std::make_unique<coordinator::EventFan>(std::move(sinks));
  return {};
}

Status Job::prepare() {
  facts_.job = make_job_id(options_.run_id);
  facts_.token = make_token();
  log::configure("agent of job " + facts_.job);
  const bool own_place = options_.log_dir.empty();
  const std::string root = own_place ? default_log_root() : options_.log_dir;
  std::string trouble = root.empty() ? "there is no HOME" : "";
  if (!root.empty()) {
    auto folder = make_log_folder(root, facts_.job, own_place);
    // A folder that was asked for must work; the default one is a convenience.
    if (!folder.ok() && !own_place) return folder.status();
    if (folder.ok()) {
      log_folder_ = std::move(folder.value());
    } else {
      trouble = folder.status().message();
    }
  }
  facts_.log_folder = log_folder_.path;
  output_ = std::make_unique<Output>(OutputOptions{log_folder_.path, options_.redirects, options_.shown});
  if (!trouble.empty()) output_->say("no log files: " + trouble + "; --log-dir names a folder for them");
  if (Status status = open_events(); !status.ok()) return status;
  auto store = StoreServer::start(main_, options_.master_port);
  if (!store.ok()) return store.status();
  store_ = std::move(store.value());
  facts_.master_port = store_->port();
  return start_coordinator();
}

Status Job::start_coordinator() {
  // Before anything else runs there: its threads answer for deaths while training keeps every core busy.
  control_.post([] { raise_own_priority(); });
  coordinator::ServerOptions server;
  server.job = facts_.job;
  server.token = facts_.token;
  server.min_present = options_.shrink ? options_.min_present : 1;
  server.shrink = options_.shrink;
  for (std::uint32_t slot = 0; slot < options_.workers; ++slot) {
    server.roster.push_back({WorkerId(slot), Slot(slot), host_});
  }
  auto started = coordinator::Server::start(control_, std::move(server), journal_, *events_);
  if (!started.ok()) return started.status();
  server_ = std::move(started.value());
  facts_.coordinator = server_->address();

  watcher_ = std::make_unique<Watcher>(WatcherHandlers{
      .suspected = [this](const membership::AgentSuspicion& message) { send(message); },
      .fenced = [this](const membership::Fenced& message) { send(message); },
      .exited =
          [this](const membership::Exited& message) {
            send(message);
            asio::post(main_, [this, message] { on_exited(message); });
          },
  });
  control::AgentLinkOptions link;
  link.coordinator = facts_.coordinator;
  link.token = facts_.token;
  link.job = facts_.job;
  link.host = host_;
  link.opening = [this] { return opening(); };
  link.message = [this](const membership::ToAgent& message) {
    const auto& fence = std::get<membership::Fence>(message);
    watcher_->fence(fence.worker, fence.reason);
  };
  link_ = std::make_unique<control::AgentLink>(control_, std::move(link));
  link_->start();
  return {};
}

Status Job::start_workers() {
  std::vector<std::string> inherited;
  for (char** entry = environ; *entry != nullptr; ++entry) inherited.emplace_back(*entry);
  const std::vector<std::string> command = worker_command(options_, find_python(tool_folders_));
  for (std::uint32_t slot = 0; slot < options_.workers; ++slot) {
    auto process = start_worker(command, worker_environment(options_, facts_, Slot(slot), inherited));
    if (!process.ok()) return process.status();
    const WorkerId id(slot);
    Worker& worker = workers_[id];
    worker.pid = process.value().pid;
    worker.started = Clock::now();
    worker.stop = StopTimer(options_.stop_timeout);
    watcher_->follow(id, worker.pid, process.value().process);
    output_->attach(Slot(slot), std::move(process.value().output), std::move(process.value().errors));
    emit(EventKind::worker_started, Slot(slot), "");
  }
  return {};
}

// ---- what is said ------------------------------------------------------------------------------------------------

std::string Job::name_of(Slot slot) const {
  std::string text = "slot " + std::to_string(slot.value()) + " (worker " + std::to_string(slot.value());
  if (const auto worker = workers_.find(WorkerId(slot.value())); worker != workers_.end()) {
    text += ", pid " + std::to_string(worker->second.pid);
  }
  return text + ")";
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

// One sentence per worker that the view just installed leaves out.
void Job::report_view() {
  std::vector<Slot> lost;
  lost.swap(unreported_);
  if (interrupted_ || !options_.shrink || verdict_.must_end()) return;
  const std::vector<Slot> present = verdict_.present();
  for (const Slot slot : lost) {
    const std::string rest = present.empty() ? "nobody is left" : name_slots(present) + (present.size() == 1 ? " goes on" : " go on");
    output_->say(name_of(slot) + " " + as_predicate(verdict_.reason_of(slot)) + "; " + rest);
  }
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
    output_->say("the job finished on " + name_slots(verdict_.finished()) + "; on the way " + causes.front() +
                 (causes.size() > 1 ? " (and " + std::to_string(causes.size() - 1) + " more)" : ""));
  }
  if (status != 0 && !facts_.log_folder.empty()) output_->say("logs of every worker: " + facts_.log_folder);
  emit(EventKind::job_finished, std::nullopt, causes.empty() ? "" : causes.front(), "exit status " + std::to_string(status));
}

// ---- to and from the coordinator ---------------------------------------------------------------------------------

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

// ---- processes ---------------------------------------------------------------------------------------------------

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
    }
  }
}

void Job::on_exited(const membership::Exited& exited) {
  const Slot slot(static_cast<std::uint32_t>(exited.worker.value()));
  const std::string how = transport::describe_wait_status(exited.wait_status);
  verdict_.exited(slot, exited.wait_status, how);
  emit(EventKind::worker_exited, slot, how, exited.reason == how ? "" : exited.reason);
  if (verdict_.must_end()) begin_ending(Ending::grace);
  check_end();
}

void Job::look_at(WorkerId id, Worker& worker, Clock::time_point now) {
  if (!worker.has_life && now - worker.life_looked_for > (now - worker.started < life_expected ? tick_interval / 2 : life_rarely)) {
    worker.life_looked_for = now;
    const transport::LifeIdentity identity{facts_.job, id, Slot(static_cast<std::uint32_t>(id.value()))};
    if (auto life = find_life(worker.pid, identity, transport::agent_watcher(options_.workers)); life.has_value()) {
      worker.has_life = true;
      watcher_->attach_life(id, std::move(*life));
    }
  }
  // Every report of a stop or a continuation since the last look.
  bool moved = false;
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(worker.pid), &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid != 0) {
    moved = true;
    info = {};
  }
  const auto state = transport::process_state(worker.pid);
  const bool stopped = state.has_value() && state->letter == 'T';
  if (const auto stopped_for = worker.stop.look(now, stopped, moved); stopped_for.has_value()) {
    const std::string reason = "stopped for " + seconds_text(*stopped_for);
    output_->say(name_of(Slot(static_cast<std::uint32_t>(id.value()))) + " has been " + reason + "; it is killed");
    verdict_.suspected(Slot(static_cast<std::uint32_t>(id.value())), reason);
    send(membership::AgentSuspicion{id, reason});
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
  if (leftovers_) leftovers_ = watcher_->kill_leftovers(leftover_grace) > 0;
  check_end();
  if (ending_ != Ending::over) schedule_tick();
}

// ---- the end -----------------------------------------------------------------------------------------------------

void Job::wait_for_signals() {
  signals_.async_wait([this](const std::error_code& error, int signal) {
    if (error) return;
    on_signal(signal);
    wait_for_signals();
  });
}

void Job::on_signal(int signal) {
  verdict_.interrupted(signal);
  if (std::exchange(interrupted_, true)) {
    output_->say(signal_name(signal) + " again: the workers are killed");
    begin_ending(Ending::killing);
    return;
  }
  output_->say(signal_name(signal) + ": the workers are asked to end (SIGTERM), and killed in " +
               seconds_text(deadlines::terminate) + " or at the next " + signal_name(signal));
  emit(EventKind::job_interrupted, std::nullopt, signal_name(signal));
  begin_ending(Ending::terminating);
}

void Job::begin_ending(Ending stage) {
  if (stage <= ending_) return;
  ending_ = stage;
  milliseconds next{};
  switch (stage) {
    case Ending::grace: {
      const auto cause = verdict_.root_cause();
      const std::string sentence =
          cause.has_value() ? name_of(*cause) + " " + as_predicate(verdict_.reason_of(*cause)) : "the job cannot go on";
      if (!verdict_.all_exited()) {
        output_->say(sentence + "; the job ends" + (options_.shrink ? "" : " (--shrink would let the others go on)"));
      }
      emit(EventKind::job_failing, cause, sentence);
      next = deadlines::failure_grace;
      break;
    }
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
    case Ending::over:
      return;
  }
  deadline_.expires_after(next);
  deadline_.async_wait([this, stage](const std::error_code& error) {
    if (error || ending_ != stage) return;
    if (stage != Ending::killing) {
      begin_ending(stage == Ending::grace ? Ending::terminating : Ending::killing);
      return;
    }
    for (const auto& [id, worker] : workers_) {
      if (worker.exited) continue;
      output_->say(name_of(Slot(static_cast<std::uint32_t>(id.value()))) + " cannot be killed (it sleeps in '" +
                   transport::waiting_channel(worker.pid) + "' in the kernel); it is left behind");
    }
    finish();
  });
}

void Job::check_end() {
  if (ending_ == Ending::over || !verdict_.all_exited()) return;
  const auto now = Clock::now();
  if (!all_exited_at_.has_value()) all_exited_at_ = now;
  // The next tick asks again.
  if (!verdict_.settled() && now - *all_exited_at_ < settle) return;
  if (leftovers_ && now - *all_exited_at_ < leftover_grace + settle) return;
  finish();
}

void Job::finish() {
  ending_ = Ending::over;
  main_.stop();
}

int Job::run() {
  ::signal(SIGPIPE, SIG_IGN);
  become_subreaper();
  if (Status status = prepare(); !status.ok()) {
    if (!output_) output_ = std::make_unique<Output>(OutputOptions{});
    output_->say(status.message());
    return 1;
  }
  wait_for_signals();
  wait_for_children();
  const bool one_thread = options_.workers > 1 && std::getenv("OMP_NUM_THREADS") == nullptr;
  output_->say("job " + facts_.job + ": " + std::to_string(options_.workers) +
               (options_.workers == 1 ? " worker" : " workers") +
               (one_thread ? " with OMP_NUM_THREADS=1 each, as torchrun sets it" : "") +
               (facts_.log_folder.empty() ? "" : "; logs in " + facts_.log_folder));
  emit(EventKind::job_started, std::nullopt, "", facts_.log_folder);
  Status started = start_workers();
  if (!started.ok()) {
    output_->say(started.message());
    for (const auto& [id, worker] : workers_) watcher_->fence(id, "the job could not start");
    const auto until = Clock::now() + deadlines::fence;
    while (Clock::now() < until && std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return !w.second.exited; })) {
      reap_children();
      main_.run_for(milliseconds(10));
    }
    return 1;
  }
  schedule_tick();
  main_.run();
  // Nothing of the default handling of signals is ours from here on: another Ctrl-C ends us at once.
  signals_.clear();
  children_.clear();
  if (watcher_->kill_leftovers(milliseconds(0)) > 0) {
    output_->say("processes that the workers left behind were killed");
  }
  const int status = verdict_.all_exited() ? verdict_.exit_status() : 1;
  if (!output_->finish(drain)) output_->say("some output was still coming and is left out");
  // The coordinator first: that its agent leaves is no event any more. Nothing is emitted after the job's last one.
  server_->stop();
  link_->stop();
  control_.stop();
  report_end(status);
  return status;
}

}  // namespace

int run_job(const LaunchOptions& options, const std::vector<std::string>& tool_folders) {
  return std::make_unique<Job>(options, tool_folders)->run();
}

}  // namespace closeranks::agent
