// The job's state and its parts, one file each: job.cc (start, run), job_processes.cc (reaping, stops, life words),
// job_coordinator.cc (events and messages), job_end.cc (signals, the way to the end, the last words).
// Everything here runs on the main thread, except what says otherwise.
#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "agent/launch_options.h"
#include "agent/log_folder.h"
#include "agent/output.h"
#include "agent/stop_timer.h"
#include "agent/store_server.h"
#include "agent/verdict.h"
#include "agent/watcher.h"
#include "agent/worker_environment.h"
#include "base/deadlines.h"
#include "control/agent_link.h"
#include "control/control_thread.h"
#include "coordinator/events.h"
#include "coordinator/journal.h"
#include "coordinator/server.h"

namespace closeranks::agent {

// How often stopped workers, missing life words and leftover processes are looked for.
inline constexpr std::chrono::milliseconds tick_interval{100};
// Processes that a worker left behind may end by themselves: python's resource tracker removes shared memory first.
inline constexpr std::chrono::milliseconds leftover_grace{1'000};

inline Slot slot_of(WorkerId worker) { return Slot(static_cast<std::uint32_t>(worker.value())); }

class Job {
 public:
  Job(const LaunchOptions& options, const std::vector<std::string>& tool_folders);
  // To the job's end; returns the exit status of the tool.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  using Event = coordinator::Event;
  using EventKind = coordinator::EventKind;

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

  // job.cc
  Status prepare();
  Status open_log_folder();
  Status open_events();
  Status start_coordinator();
  Status start_workers();

  // job_processes.cc
  void wait_for_children();
  void reap_children();
  void schedule_tick();
  void tick();
  void find_life_of(WorkerId id, Worker& worker, Clock::time_point now);
  void look_at(WorkerId id, Worker& worker, Clock::time_point now);

  // job_coordinator.cc; send() and opening() on any thread
  void send(const membership::FromAgent& message);
  std::vector<membership::FromAgent> opening();
  void on_event(const Event& event);
  void on_exited(const membership::Exited& exited);
  void emit(EventKind kind, std::optional<Slot> slot, const std::string& reason, const std::string& detail = {});
  void report_view();

  // job_end.cc
  void wait_for_signals();
  void on_signal(int signal);
  void begin_ending(Ending stage);
  void on_ending_overdue(Ending stage);
  void say_that_it_fails();
  void check_end();
  void finish();
  void give_up_start();
  void stop_services();
  int conclude();
  void report_end(int status);
  [[nodiscard]] std::string name_of(Slot slot) const;

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

  std::mutex ended_mutex_;
  std::vector<membership::FromAgent> ended_;  // under ended_mutex_: repeated to a coordinator that we reach anew

  // Later ones use earlier ones, from their threads; conclude() stops them in time.
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
};

}  // namespace closeranks::agent
