#include "agent/job.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/post.hpp>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "agent/job_state.h"
#include "agent/process_tree.h"
#include "base/log.h"
#include "base/priority.h"
#include "base/process_state.h"
#include "base/token.h"

extern char** environ;

namespace closeranks::agent {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

bool is_ignored(int signal) {
  struct sigaction current{};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
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

}  // namespace

Job::Job(const LaunchOptions& options, const std::vector<std::string>& tool_folders)
    : options_(options),
      tool_folders_(tool_folders),
      host_(host_name()),
      signals_(main_),
      children_(main_, SIGCHLD),
      tick_(main_),
      deadline_(main_),
      verdict_(options.workers, options.shrink),
      next_worker_(options.workers),
      replacements_(options.workers, ReplacementLimits{.most = options.max_replacements}),
      spares_(options.no_python || options.max_replacements == 0 ? 0 : options.spares),
      reports_(options.workers),
      control_("cr-control") {
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT}) signals_.add(signal);
  // Under nohup the job outlives its terminal.
  if (!is_ignored(SIGHUP)) signals_.add(SIGHUP);
}

Status Job::open_log_folder() {
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
  return {};
}

// The job goes on without it: python makes folders of its own then.
void Job::make_temporary_folder() {
  auto folder = TemporaryFolder::make();
  if (!folder.ok()) return output_->say(folder.status().message() + "; what killed workers leave there will stay");
  temporary_folder_ = std::move(folder.value());
  facts_.temporary_folder = temporary_folder_->path();
}

Status Job::open_events() {
  std::vector<coordinator::EventSink*> sinks;
  const auto add_file = [&sinks](const std::string& path, std::unique_ptr<coordinator::EventFile>& place) -> Status {
    auto file = coordinator::EventFile::open(path);
    if (!file.ok()) return file.status();
    place = std::move(file.value());
    sinks.push_back(place.get());
    return {};
  };
  if (!options_.events_file.empty()) {
    if (Status status = add_file(options_.events_file, events_file_); !status.ok()) return status;
  }
  if (!log_folder_.path.empty()) {
    if (Status status = add_file(log_folder_.path + "/events.jsonl", events_log_); !status.ok()) return status;
  }
  events_here_ = std::make_unique<coordinator::EventFunction>(
      [this](const Event& event) { asio::post(main_, [this, event] { on_event(event); }); });
  sinks.push_back(events_here_.get());
  events_ = std::make_unique<coordinator::EventFan>(std::move(sinks));
  return {};
}

Status Job::start_coordinator() {
  // Before anything else runs there: its thread answers for deaths while training keeps every core busy.
  control_.post([] { raise_own_priority(); });
  coordinator::ServerOptions server;
  server.job = facts_.job;
  server.token = facts_.token;
  server.min_present = options_.min_present;
  server.shrink = options_.shrink;
  server.hang_timeout = options_.hang_timeout;
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
    // The stack takes a while; this thread is the coordinator's.
    if (fence.keep_stack) {
      asio::post(main_, [this, fence] { fence_with_stack(fence); });
    } else {
      watcher_->fence(fence.worker, fence.reason);
    }
  };
  link_ = std::make_unique<control::AgentLink>(control_, std::move(link));
  link_->start();
  return {};
}

Status Job::prepare() {
  facts_.job = make_job_id(options_.run_id);
  facts_.token = make_token();
  const auto self = process_state(::getpid());
  facts_.process = std::to_string(::getpid()) + ":" + std::to_string(self.has_value() ? self->start_ticks : 0);
  log::configure("agent of job " + facts_.job);
  if (Status status = open_log_folder(); !status.ok()) return status;
  open_recorder();
  make_temporary_folder();
  if (Status status = open_events(); !status.ok()) return status;
  auto store = StoreServer::start(main_, options_.master_port);
  if (!store.ok()) return store.status();
  store_ = std::move(store.value());
  facts_.master_port = store_->port();
  return start_coordinator();
}

Status Job::start_workers() {
  const bool one_thread = options_.workers > 1 && std::getenv("OMP_NUM_THREADS") == nullptr;
  output_->say("job " + facts_.job + ": " + std::to_string(options_.workers) +
               (options_.workers == 1 ? " worker" : " workers") +
               (one_thread ? " with OMP_NUM_THREADS=1 each, as torchrun sets it" : "") +
               (facts_.log_folder.empty() ? "" : "; logs in " + facts_.log_folder));
  emit(EventKind::job_started, std::nullopt, "", facts_.log_folder);

  for (char** entry = environ; *entry != nullptr; ++entry) inherited_.emplace_back(*entry);
  command_ = worker_command(options_, find_python(tool_folders_));
  for (std::uint32_t slot = 0; slot < options_.workers; ++slot) {
    in_slot_.emplace_back(slot);
    if (Status status = start_process(WorkerId(slot), Slot(slot)); !status.ok()) return status;
  }
  return {};
}

// For `closeranks job`. The job goes on without it.
void Job::open_control_socket() {
  if (log_folder_.path.empty()) return;
  auto socket =
      ControlSocket::open(main_, log_folder_.path, [this](const std::string& request) { return answer(request); });
  if (socket.ok()) {
    control_socket_ = std::move(socket.value());
  } else {
    output_->say(socket.status().message() + "; closeranks job cannot reach this job");
  }
}

int Job::run() {
  ::signal(SIGPIPE, SIG_IGN);
  become_subreaper();
  if (Status status = prepare(); !status.ok()) {
    if (!output_) output_ = std::make_unique<Output>(OutputOptions{});
    output_->say(status.message());
    stop_services();
    return 1;
  }
  open_control_socket();
  wait_for_signals();
  wait_for_children();
  if (Status status = start_workers(); !status.ok()) {
    output_->say(status.message());
    give_up_start();
    stop_services();
    return 1;
  }
  schedule_tick();
  main_.run();
  return conclude();
}

int run_job(const LaunchOptions& options, const std::vector<std::string>& tool_folders) {
  return std::make_unique<Job>(options, tool_folders)->run();
}

}  // namespace closeranks::agent
