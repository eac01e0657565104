// The job's state and its parts, one file each: job.cc (start, run), job_workers.cc (starting workers and
// replacements), job_spares.cc (spares and their successors), job_processes.cc (reaping, stops, life words),
// job_hang.cc (the last stack of a hung worker), job_recorder.cc (the agent's file of the flight recorder),
// job_coordinator.cc (events and messages), job_requests.cc (`closeranks job`), job_end.cc (signals, draining, the way
// to the end, the last words). Everything here runs on the main thread, except what says otherwise.
#pragma once

#include <sys/types.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/control_socket.h"
#include "agent/launch_options.h"
#include "agent/log_folder.h"
#include "agent/out_of_memory.h"
#include "agent/output.h"
#include "agent/replacement_policy.h"
#include "agent/reports.h"
#include "agent/spare_policy.h"
#include "agent/stop_timer.h"
#include "agent/store_server.h"
#include "agent/temporary_folder.h"
#include "agent/verdict.h"
#include "agent/watcher.h"
#include "agent/worker_environment.h"
#include "base/deadlines.h"
#include "control/agent_link.h"
#include "control/control_thread.h"
#include "coordinator/events.h"
#include "coordinator/journal.h"
#include "coordinator/server.h"
#include "recorder/ring_writer.h"

namespace closeranks::agent {

// How often stopped workers, missing life words and leftover processes are looked for.
inline constexpr std::chrono::milliseconds tick_interval{100};
// Processes that a worker left behind may end by themselves: python's resource tracker removes shared memory first.
inline constexpr std::chrono::milliseconds leftover_grace{1'000};

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
    std::optional<Slot> slot;  // none: a spare
    pid_t pid = 0;
    Clock::time_point started;  // as a worker; of a spare: as a process
    Clock::time_point life_looked_for;
    bool has_life = false;
    bool has_stepped = false;  // of a replacement: it has finished its first step
    bool left_for_good = false;
    bool out = false;     // gone and in no view, and the policy knows
    bool killed = false;  // by us, at the job's end
    bool exited = false;
    std::string reason;  // how it ended
    StopTimer stop{deadlines::stop};
    // For the flight recorder.
    OutOfMemoryWatch memory;
    Clock::time_point memory_looked_at;
    std::string state;  // describe_process()
    Clock::time_point state_since;
    bool state_told = false;
    // Of a spare.
    bool ready = false;
    FileDescriptor orders;          // where it is told what to become
    FileDescriptor output, errors;  // not read before it is a worker: what it says then is the slot's
  };
  // The spare that another one leaves behind when it becomes a worker, until it has said which process it is.
  struct Successor {
    WorkerId id;
    Clock::time_point since;
    FileDescriptor orders, output, errors;
  };
  // How far the end of the job has come; only forward.
  enum class Ending { no, draining, grace, terminating, killing, over };

  // job.cc
  Status prepare();
  Status open_log_folder();
  void make_temporary_folder();
  Status open_events();
  Status start_coordinator();
  Status start_workers();
  void open_control_socket();

  // job_workers.cc
  [[nodiscard]] WorkerId fresh_worker() { return WorkerId(next_worker_++); }
  Status start_process(WorkerId id, Slot slot);
  void adopt(WorkerId id, Slot slot);
  void replace();
  void start_replacement(Slot slot);
  bool announce(WorkerId id, Slot slot);
  void worker_out(WorkerId id, ReplacementPolicy::Out how, const std::string& reason);
  void session_started();
  void stop_replacing();

  // job_spares.cc
  std::optional<WorkerId> take_spare();
  [[nodiscard]] bool expects_spare(Clock::time_point now) const;
  void hand_over(WorkerId id, Slot slot, Clock::time_point now);
  void start_spare();
  void look_at_spare(WorkerId id, Worker& worker, Clock::time_point now);
  void look_at_successors(Clock::time_point now);
  bool follow_successor(Successor& successor, pid_t pid, Clock::time_point now);
  void spare_exited(WorkerId id, Worker& worker);
  void kill_spares();

  // job_hang.cc
  [[nodiscard]] std::string stack_file(WorkerId worker) const;
  void fence_with_stack(const membership::Fence& fence);
  void await_stack(const membership::Fence& fence, std::uint64_t before, std::uint64_t last, Clock::time_point grown,
                   Clock::time_point until);
  void show_stack(const membership::Fence& fence, std::uint64_t before);

  // job_recorder.cc
  void open_recorder();
  void record(recorder::EventKind kind, WorkerId id, std::uint64_t number, const std::string& detail,
              const std::string& stack = {});
  void record_exit(const membership::Exited& exited, const std::string& how, const std::string& why);
  void record_state(WorkerId id, Worker& worker, Clock::time_point now);

  // job_requests.cc
  std::string answer(const std::string& request);
  std::string resize(std::uint32_t present);
  [[nodiscard]] std::string status() const;

  // job_processes.cc
  void wait_for_children();
  void reap_children();
  void clear_leftovers();
  void schedule_tick();
  void tick();
  void find_life_of(WorkerId id, Worker& worker, Clock::time_point now);
  void look_at(WorkerId id, Worker& worker, Clock::time_point now);

  // job_coordinator.cc; send() and opening() on any thread
  void send(const membership::FromAgent& message);
  std::vector<membership::FromAgent> opening();
  void on_event(const Event& event);
  void on_exited(const membership::Exited& exited);
  void emit(EventKind kind, std::optional<WorkerId> worker, const std::string& reason, const std::string& detail = {});
  void on_excluded(WorkerId worker, const std::string& reason);
  void on_left(WorkerId worker, const std::string& reason);
  void on_first_step(WorkerId worker);
  void report_view();

  // job_end.cc
  void wait_for_signals();
  void on_signal(int signal);
  void begin_ending(Ending stage);
  void on_ending_overdue(Ending stage);
  void say_that_it_fails();
  bool begin_draining(int signal);
  [[nodiscard]] bool extras_are_gone(Clock::time_point now);
  void check_end();
  void finish();
  void give_up_start();
  void stop_services();
  int conclude();
  void report_end(int status);
  [[nodiscard]] std::string name_of(WorkerId worker) const;

  const LaunchOptions options_;
  const std::vector<std::string> tool_folders_;
  const std::string host_;
  JobFacts facts_;
  LogFolder log_folder_;
  std::optional<TemporaryFolder> temporary_folder_;
  asio::io_context main_;
  asio::signal_set signals_;
  asio::signal_set children_;
  asio::steady_timer tick_;
  asio::steady_timer deadline_;
  Verdict verdict_;
  std::map<WorkerId, Worker> workers_;
  std::vector<WorkerId> in_slot_;  // by slot: the latest one started for it
  std::uint64_t next_worker_ = 0;
  ReplacementPolicy replacements_;
  SparePolicy spares_;
  std::vector<Successor> successors_;
  bool in_session_ = false;             // the script has boundaries
  std::string spare_trouble_;           // how the last spare ended, and told
  std::vector<WorkerId> unreported_;    // excluded, and not yet said
  std::vector<std::string> inherited_;  // environment
  std::vector<std::string> command_;    // of a worker
  Ending ending_ = Ending::no;
  bool interrupted_ = false;
  bool leftovers_ = false;  // some worker has ended, and what it left behind may not be gone yet
  std::optional<Clock::time_point> all_exited_at_;
  Reports reports_;

  // Later ones use earlier ones, from their threads; conclude() stops them in time.
  std::unique_ptr<Output> output_;
  std::shared_ptr<recorder::RingWriter> ring_;  // nullptr: nothing is recorded
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
  std::unique_ptr<ControlSocket> control_socket_;
};

}  // namespace closeranks::agent
