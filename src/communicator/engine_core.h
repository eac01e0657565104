// The engine behind the public handles: groups, peers, threads, and the control connection.
//
//   engine_core.cc      start, groups, stop
//   engine_drive.cc     driving, waiting, the engine's thread
//   engine_waits.cc     callers that are blocked, and circles of them
//   engine_plain.cc     members of a plain job find each other through the address book
//   engine_views.cc     coordinated: messages of the coordinator, addresses, views
//   engine_segments.cc  coordinated: fetching the peers' lives, arenas and segments in the background
//   engine_joins.cc     coordinated: boundaries, and newcomers joining there
//   engine_orphan.cc    coordinated: nobody is left who could help
//
// Threads: everything below the drive lock is marked so. The control thread takes the lock for single changes and never
// settles ops (their callbacks may run foreign code): it leaves that to the engine's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "closeranks/engine.h"
#include "communicator/drive_lock.h"
#include "communicator/engine_waits.h"
#include "communicator/fork_guard.h"
#include "communicator/group.h"
#include "communicator/group_host.h"
#include "communicator/patience.h"
#include "communicator/peer.h"
#include "control/control_thread.h"
#include "control/worker_link.h"
#include "membership/boundary_gate.h"
#include "membership/worker.h"
#include "recorder/ring_writer.h"
#include "transport/life.h"
#include "transport/segment_server.h"
#include "transport/shared_arena.h"
#include "transport/waiter.h"

namespace closeranks::communicator {

class EngineCore final : public GroupHost, public std::enable_shared_from_this<EngineCore> {
 public:
  using Clock = Operation::Clock;

  static Result<std::shared_ptr<EngineCore>> start(EngineOptions options);
  explicit EngineCore(EngineOptions options);
  // stop() has been called: the engine's thread keeps this object alive until then. In a fork child the handles leak it
  // instead (engine.cc): its threads and mappings are not there.
  ~EngineCore() override = default;
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // ---- engine_core.cc, any thread -------------------------------------------------------------------------------
  Result<std::shared_ptr<Group>> create_group(GroupOptions options, const AddressBook* book);
  // engine.cc
  std::shared_ptr<Communicator> handle_of(const std::shared_ptr<Group>& group);
  // Ends the group's ops (Fault::closed) after up to `grace`, and forgets it.
  void close_group(const std::shared_ptr<Group>& group, std::chrono::milliseconds grace);
  // Engine::stop. Idempotent; any thread but the control thread.
  void stop(std::chrono::milliseconds grace);
  [[nodiscard]] std::shared_ptr<SharedMemory> shared_memory() const { return arena_; }
  [[nodiscard]] ViewNumber view();
  [[nodiscard]] std::vector<Slot> present();
  [[nodiscard]] const EngineOptions& engine_options() const override { return options_; }
  // Engine's functions of the same names (engine_joins.cc).
  Result<BoundaryResult> at_boundary(std::uint64_t step, std::chrono::milliseconds patience);
  [[nodiscard]] bool newcomer();
  Result<StateTransfer> request_join();
  Result<bool> finish_transfer(ViewNumber round, const Status& outcome);
  void step_finished(std::uint64_t step);
  void pause(std::string what, std::chrono::milliseconds up_to);
  void leave(const std::string& reason);
  [[nodiscard]] bool in_fork_child() const { return fork_guard_.in_child(); }

  // ---- engine_drive.cc, any thread ------------------------------------------------------------------------------
  std::shared_ptr<Operation> issue(Group& group, Call call, std::shared_ptr<OperationDriver> driver);
  // `patient`: it looks and yields for a while before it sleeps.
  Status wait_for(Group& group, Operation& operation, std::chrono::milliseconds timeout, bool patient = true);
  // Communicator::run.
  Status run(Group& group, const Call& call);
  // Runs `change` under the drive lock, then wakes whoever has to look at what it did. Settles ops unless called on the
  // control thread.
  template <class Change>
  auto change(Change&& change_it) {
    struct Afterwards {
      EngineCore& core;
      ~Afterwards() { core.changed(); }
    } const afterwards{*this};
    const std::lock_guard lock(lock_);
    return std::forward<Change>(change_it)();
  }

  // ---- GroupHost, under the drive lock --------------------------------------------------------------------------
  [[nodiscard]] transport::OwnArena& arena() const override { return *arena_; }
  [[nodiscard]] const std::shared_ptr<recorder::RingWriter>& ring() const override { return ring_; }
  void finished(std::shared_ptr<Operation> operation) override;
  void repaired(membership::OpRepaired event) override;
  void suspect(const Peer& peer, std::string reason) override;

 private:
  friend class DriverPresence;
  friend class BlockedWait;

  // engine_core.cc
  Status start_parts();
  Status check(const GroupOptions& options) const;
  Result<std::shared_ptr<Group>> make_group(GroupOptions options, GroupKey key, Rank self, Group::Role role);
  void add_group(const std::shared_ptr<Group>& group);
  [[nodiscard]] WorkerId worker_of(Slot slot) const;

  // engine_drive.cc
  void check_finite(Group& group, const Call& call);
  bool drive(const Operation* target);
  bool drive_until(Operation& operation, Patience patience);
  bool drive_groups(const Operation* target);
  void settle(const std::vector<std::shared_ptr<Operation>>& operations);
  void changed();
  void look_again();
  void wake_engine_thread();
  void attend();
  [[nodiscard]] std::vector<const transport::PeerLife*> watched();
  [[nodiscard]] Clock::time_point next_look(Clock::time_point now);
  void run_engine_thread();

  // engine_waits.cc, under the lock
  bool do_all_there_is();
  [[nodiscard]] std::optional<transport::WaitBoard> board_of(WorkerId worker) const;
  [[nodiscard]] std::string worker_name(WorkerId worker) const;
  void fail_for(const transport::WaitVerdict& verdict, Group& waiting_in, const Operation& operation);
  bool look_for_verdicts();

  // engine_plain.cc
  static Status await_connected(Group& group, Clock::time_point deadline, std::chrono::milliseconds timeout);
  Status meet_members(Group& group, const AddressBook& book, std::chrono::milliseconds timeout);
  Status meet_member(Group& group, Rank rank, const AddressBook& book, Clock::time_point deadline);
  Status attach_life(const std::shared_ptr<Peer>& peer, Clock::time_point deadline);
  Status attach_arena(const std::shared_ptr<Peer>& peer, Clock::time_point deadline);
  Status attach_segment(Group& group, Rank rank, const Peer& peer, Clock::time_point deadline);
  Result<std::shared_ptr<Peer>> peer_from_address(Slot slot, const std::string& address);
  [[nodiscard]] std::string own_address() const;

  // engine_views.cc: control thread, but for join()
  Status join();
  void carry_out(membership::WorkerEffects effects);
  void on_addresses(const std::vector<membership::WorkerAddress>& addresses);
  std::vector<membership::GroupStatus> on_freeze(const membership::FreezeRequest& request);
  void on_install(const membership::Install& install);
  void on_evicted(const membership::Evicted& evicted);
  void end_all(const Status& status);

  void record_view(const membership::Install& install, std::size_t excluded_before);

  // engine_joins.cc: training thread
  Result<std::optional<StateTransfer>> meet_newcomers(ViewNumber round);
  Result<std::optional<StateTransfer>> await_transfer(std::optional<ViewNumber> round, Clock::time_point since);
  Status await_boundary(std::uint64_t seen, Clock::time_point since, const std::string& what,
                        Clock::time_point look_at = {});
  void answer_round(ViewNumber round, std::vector<membership::GroupStatus> statuses);
  std::vector<membership::GroupStatus> freeze_for_round();
  [[nodiscard]] bool awaits_somebody() const;
  // engine_joins.cc: control thread
  void boundary_changed();
  void on_hold(const membership::Hold& hold);
  void on_admit(const membership::Admit& admit);
  void on_transfer(const membership::Transfer& transfer);
  void on_round_over(const membership::RoundOver& over);
  void tell_of_cancelled(const membership::RoundOver& over);
  void report_progress();

  // engine_orphan.cc: under the lock; then: control thread
  void look_for_orphanhood(Clock::time_point now);
  void watch_coordinator_process();
  void on_coordinator_ended();

  // engine_segments.cc: control thread
  void fetch_for(const std::shared_ptr<Group>& group);
  void fetch_life(const std::shared_ptr<Peer>& peer);
  void fetch_arena(const std::shared_ptr<Peer>& peer);
  void fetch_segment_of(const std::shared_ptr<Group>& group, Rank rank, const std::shared_ptr<Peer>& peer);
  void fetch_again_later();

  const EngineOptions options_;
  const ForkGuard fork_guard_;
  std::uint32_t spins_ = 0;                     // before the first yield
  std::shared_ptr<transport::OwnArena> arena_;  // set by start_parts(), then never changed
  std::string token_;
  bool checks_finite_ = false;  // $CLOSERANKS_CHECK_NAN; set by start_parts(), then never changed
  std::atomic<std::uint32_t> not_finite_said_{0};
  std::shared_ptr<recorder::RingWriter> ring_;  // set by start_parts(), then never changed; nullptr: none

  DriveLock lock_;
  // Under the drive lock.
  std::vector<std::shared_ptr<Group>> groups_;
  std::map<WorkerId, std::shared_ptr<Peer>> peers_;
  std::vector<std::shared_ptr<Peer>> former_peers_;  // sleepers may still hold pointers to their lives
  std::vector<std::shared_ptr<Operation>> finished_;
  std::vector<BlockedWait*> waits_;  // those on the wait board
  std::vector<membership::ExcludedMember> excluded_;
  std::vector<membership::Filled> members_;  // of the view
  ViewNumber view_;
  // Boundaries: the step and the hold (rule 19), and the round whose state moves.
  membership::BoundaryGate gate_;
  bool in_session_ = false;  // it has boundaries
  bool newcomer_ = false;    // not in the view yet: groups are made alone
  std::optional<std::string> leave_because_;
  bool job_finished_ = false;
  std::optional<StateTransfer> transfer_;
  std::shared_ptr<Group> transfer_group_;
  bool transfer_handed_out_ = false;        // to the training thread
  std::optional<ViewNumber> joined_round_;  // the last one that ended with its newcomers in
  std::optional<Status> ended_;             // evicted, stopped: why no group can be made any more

  std::atomic<std::int64_t> open_ops_{0};  // issued and not settled
  std::atomic<std::uint32_t> drivers_{0};  // callers that wait
  std::atomic<bool> engine_thread_active_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> link_lost_at_ns_{0};  // steady clock; 0: the coordinator is connected

  std::mutex boundary_mutex_;
  std::condition_variable boundary_;
  std::atomic<std::uint64_t> boundary_events_{0};  // raised under boundary_mutex_
  std::atomic<bool> said_waiting_{false};
  std::string not_ready_because_;                           // training thread: the last one told
  std::string cancelled_because_, said_cancelled_because_;  // control thread
  std::atomic<bool> first_step_due_{false};
  std::atomic<bool> leaves_for_good_{false};

  std::mutex idle_mutex_;
  std::condition_variable idle_;
  bool woken_ = false;  // under idle_mutex_

  std::mutex joined_mutex_;
  std::condition_variable joined_;
  bool has_joined_ = false;  // under joined_mutex_
  Status join_failure_;      // under joined_mutex_

  std::mutex stop_mutex_;
  bool stopped_ = false;  // under stop_mutex_

  // In this order: what is listed last is destroyed first.
  std::unique_ptr<control::ControlThread> control_;
  std::unique_ptr<transport::OwnLife> life_;
  std::unique_ptr<transport::SegmentServer> server_;
  std::unique_ptr<membership::Worker> machine_;  // control thread
  std::unique_ptr<control::WorkerLink> link_;
  bool fetch_retry_pending_ = false;  // control thread
  std::thread engine_thread_;
};

}  // namespace closeranks::communicator
