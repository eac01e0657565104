// One group of this process: its queue of ops, the entries in flight, and the group machine that says what to do next.
// Everything runs under the drive lock of the engine; nothing here waits.
//
//   group.cc          issue, stepping, finishing; messages
//   group_entries.cc  entering (copy in) and leaving (copy out) an entry; the entries of an all_to_all
//   group_small.cc    Communicator::run of a small op, from its call to its result in one go
//   group_actions.cc  the machine's actions, done on the mapped segments and arenas
//   group_faults.cc   deaths, deadlines, failures and their texts
//   group_views.cc    freeze, install, policies
//   group_waits.cc    whom an op waits for to call something, and circles of such waits
//   group_records.cc  what the flight recorder is told besides the ops' own records
//   group_joins.cc    alone until it has joined; starting anew with a member that joins; steps and weights
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "algorithm/group_machine.h"
#include "closeranks/communicator.h"
#include "communicator/call_shape.h"
#include "communicator/drive_lock.h"
#include "communicator/group_host.h"
#include "communicator/in_flight.h"
#include "communicator/issuers.h"
#include "communicator/kernels.h"
#include "communicator/members.h"
#include "communicator/op_memory.h"
#include "communicator/op_recorder.h"
#include "communicator/operation.h"
#include "communicator/patience.h"
#include "communicator/point_to_point.h"
#include "communicator/region_allocator.h"
#include "membership/group_status.h"
#include "transport/segment.h"

namespace closeranks::communicator {

// Staging memory of one entry: a quarter of the second-level caches of a few cores, so that a piece is still in them
// when it is reduced; and small against the region, so that many pieces are in flight.
inline constexpr std::uint64_t entry_budget_bytes = std::uint64_t{2} * 1024 * 1024;
// Shape of the segments of a group: a pure function of its size.
transport::SegmentShape segment_shape(std::uint32_t members);

class Group {
 public:
  using Clock = Operation::Clock;

  enum class Role : std::uint8_t {
    member,
    alone,           // of a newcomer that has not joined: becomes `member` when it does
    state_transfer,  // carries the state to newcomers: takes no part in views, and ends with its round
  };
  // `own`: this member's segment, of segment_shape(). `host` must outlive the group's last use.
  Group(GroupHost& host, GroupOptions options, GroupKey key, Rank self, transport::Segment own,
        Role role = Role::member);

  // ---- callers (group.cc) ---------------------------------------------------------------------------------------
  // Queues the call, or returns an op that is done already (a wrong call, a group that can do no more).
  std::shared_ptr<Operation> issue(Call call, std::shared_ptr<OperationDriver> driver);

  // Communicator::run (group_small.cc). Small ops with nothing before them are done in here if all members are about:
  // then `done`. Otherwise `operation`, which is in flight as an issued one.
  struct Run {
    bool done = false;
    bool waited = false;  // the patience is used up
    std::shared_ptr<Operation> operation;
  };
  // Looks for the others for as long as `patience` lasts and nobody else wants the lock.
  Run run(const Call& call, Patience& patience, const DriveLock& lock);
  // An op of run() is over and nobody will ask for it any more.
  void give_back(std::shared_ptr<Operation> operation);
  // True while ops are not done.
  [[nodiscard]] bool open() const { return !entries_.empty() || !queue_.empty() || !transfers_.empty(); }

  // ---- drivers (group.cc) ---------------------------------------------------------------------------------------
  // Does one action: enters a piece, or what the machine says next. False when there is nothing to do until a word
  // changes. Peers are rung at flush().
  bool step();
  // Wakes the peers that may wait for what was stored since the last flush.
  void flush();

  // ---- faults (group_faults.cc) ---------------------------------------------------------------------------------
  // Members that ops wait for now, and that are not known to be gone.
  [[nodiscard]] std::vector<const transport::PeerLife*> watched() const;
  // Somebody died or left: acts on those that ops wait for, after looking once more at what they had stored before.
  void look_for_deaths();
  // Fails ops whose deadline has passed.
  void look_for_deadlines(Clock::time_point now);
  // Coordinated: true when an op waits for a member that is gone, which only the coordinator can help.
  [[nodiscard]] bool waits_for_gone() const;
  // Coordinated: slots without an address that an op has waited for this long.
  [[nodiscard]] std::vector<Slot> waiting_without_address(Clock::time_point now, Clock::duration patience) const;
  // Every op in flight, and every later one, ends with `status`. Ignored by a failed group.
  void fail(Status status);
  // ok, or why the group can do no more ops.
  [[nodiscard]] Status health() const { return broken_.value_or(Status{}); }
  // Fault::timeout of an op that is not done, naming whom it waits for.
  [[nodiscard]] Status timed_out(const Operation& operation, Clock::time_point now) const;
  // Earliest deadline of the ops in flight; the largest time point without any.
  [[nodiscard]] Clock::time_point next_deadline() const;

  // A driver found nothing to do for a while: records whom the oldest op waits for, if it has done so for long.
  void note_waiting(Clock::time_point now);

  // ---- circles of waits (group_waits.cc; engine_waits.h) ---------------------------------------------------------
  // Members that have to call something before `operation` can end: all of them, or (`any`) one of them. Empty: none
  // has, or it is not known.
  struct Awaited {
    bool any = false;
    std::vector<Rank> members;
  };
  [[nodiscard]] Awaited awaited_by(const Operation& operation) const;
  // Threads of a member that call the group's ops; empty: not known.
  [[nodiscard]] std::vector<std::uint32_t> callers(Rank member) const;
  // What the group's numbers count in.
  [[nodiscard]] std::uint64_t epoch_word() const;
  // Place of the lowest op in flight, or of the next one.
  [[nodiscard]] std::uint32_t lowest_place() const;
  // By rank: the place from which on a member fails all ops of the group. An op in flight that can never end for it,
  // or nullptr.
  [[nodiscard]] std::shared_ptr<Operation> stuck_without(
      const std::vector<std::optional<std::uint32_t>>& failed_at) const;
  // "all_reduce of 4 float32, sum #17 of group 'tp'"
  [[nodiscard]] std::string call_text(const Operation& operation) const;
  // Fault::mismatch, of `operation` if it waits in the circle; `sentence` says who waits for whom.
  [[nodiscard]] Status circle_status(const std::string& sentence, const Operation* operation) const;

  // ---- members and views (group_views.cc) -----------------------------------------------------------------------
  Members& members() { return members_; }
  [[nodiscard]] std::vector<Slot> present() const;
  [[nodiscard]] bool has_present(Slot slot) const;
  // A segment has come in, or a member went: says `connected` when all present members are held.
  void look_at_connections();
  // Freezes and reports (protocol rules 7, 8), with the entry words of those `excluding` that are members.
  membership::GroupStatus freeze(const std::vector<membership::ExcludedMember>& excluding);
  // `members`: of the view, this worker left out, as far as they are known.
  void install(const membership::Install& install, const std::vector<std::shared_ptr<Peer>>& members);
  // A group made late: slots that were vacant before it existed.
  void start_without(const std::vector<membership::ExcludedMember>& excluded,
                     const std::vector<membership::Filled>& filled);
  Status set_policy(Policy policy);

  // ---- joining (group_joins.cc) ---------------------------------------------------------------------------------
  // Ops run on this member's input alone, at their issue.
  [[nodiscard]] bool alone() const { return role_ == Role::alone; }
  [[nodiscard]] bool transfers_state() const { return role_ == Role::state_transfer; }
  Status answer_broadcasts(std::vector<std::vector<std::byte>> answers);
  // ok, or why no member can join now: an op is in flight (Move::retry), or the group has failed (Move::fix_call).
  [[nodiscard]] Status ready_for_newcomers() const;
  // Stops at the boundary where newcomers come in, and reports.
  membership::GroupStatus freeze_for_round();
  // That round is over; a view change may still keep the group frozen.
  void thaw();
  Status set_weight(double weight);
  // A step begins: it starts with the first entry of the first op issued from here on (policy exact).
  void begin_step() { ++step_; }
  [[nodiscard]] membership::GroupProgress progress(Clock::time_point now) const;

  // ---- what the caller asks -------------------------------------------------------------------------------------
  [[nodiscard]] const GroupOptions& options() const { return options_; }
  [[nodiscard]] GroupKey key() const { return key_; }
  [[nodiscard]] Rank rank() const { return members_.self(); }
  [[nodiscard]] const Contributors& last_contributors() const { return memory_.last_contributors(); }
  [[nodiscard]] std::vector<FinishedOp> recent_ops(std::int64_t after) const { return memory_.lines(after); }
  // The number that the next op's first entry is expected to get.
  [[nodiscard]] std::uint64_t next_sequence() const {
    return alone() ? ops_alone_ : machine_.next_sequence() + entries_queued_;
  }
  void set_timeout(std::chrono::milliseconds timeout) { options_.timeout = timeout; }
  OpRecorder& recorder() { return recorder_; }

 private:
  // group.cc
  [[nodiscard]] GroupFacts facts() const;
  std::shared_ptr<Operation> refuse(Call call, Status why, std::shared_ptr<OperationDriver> driver);
  [[nodiscard]] std::optional<Status> refused(const Call& call) const;
  void begin(const std::shared_ptr<Operation>& operation);
  void finish(const std::shared_ptr<Operation>& operation, Rank source = Rank{});
  bool drive_transfers();
  [[nodiscard]] Operation* oldest() const;

  // group_records.cc
  void note_arrivals();
  void note_timeout(const Operation& operation, const Status& status);
  void look_at_processes(const std::vector<Rank>& ranks);
  [[nodiscard]] std::vector<Slot> slots_of(const std::vector<Rank>& ranks) const;

  // group_entries.cc
  bool enter_next();
  void publish(const InFlight& entry, const Call& call, std::uint64_t call_bytes, double weight,
               std::uint64_t signature, std::uint64_t step_start);
  [[nodiscard]] std::uint64_t step_start_of(std::uint64_t step, std::uint64_t next_entry);
  void describe_entry(InFlight& entry, const Operation& operation) const;
  bool place(InFlight& entry);
  void copy_in(const InFlight& entry);
  void copy_out(const InFlight& entry);
  void copy_out_of_region(const InFlight& entry);
  static Reuse reuse_of_output(const InFlight& entry);
  void leave(const algorithm::Action& action);
  void take_in_table(Operation& operation);
  void abandon(const InFlight& entry, bool input);
  [[nodiscard]] const std::shared_ptr<const Contributors>& contributors_of(std::uint64_t sequence);

  // group_small.cc
  // A call that was small: what need not be found out again for the next of the same kind and sizes.
  struct SmallCall {
    bool valid = false;
    ReduceOp reduce = ReduceOp::sum;
    Rank root;
    Buffer input;  // its size, not its memory
    Buffer output;
    std::uint64_t fingerprint = 0;
    algorithm::EntryPlan plan;
    std::uint64_t signature = 0;
    std::uint64_t input_bytes = 0;  // that this member gives
    bool has_output = false;
    std::uint64_t bytes = 0;  // of the larger side
    recorder::CallFacts facts{};
  };
  enum class Await : std::uint8_t { all_here, wanted, over };
  Run run_as_any(const Call& call);
  [[nodiscard]] std::shared_ptr<Operation> spare_operation();
  void begin_copy(Operation& operation, const Call& call, const CallShape& shape, std::uint64_t sequence);
  [[nodiscard]] bool is_usual();
  [[nodiscard]] const SmallCall* small_call(const Call& call);
  Await await_all(std::uint64_t sequence, Patience& patience, const DriveLock& lock, OpRecorder::Small& recorded);
  bool finish_small(const Call& call, const SmallCall& small, std::uint64_t sequence,
                    const OpRecorder::Small& recorded);

  // group_joins.cc
  void do_alone(const std::shared_ptr<Operation>& operation);
  void take_members(const std::vector<std::shared_ptr<Peer>>& members);
  void start_anew(const membership::GroupResolution& resolution, const std::vector<std::shared_ptr<Peer>>& members);

  // group_actions.cc
  void perform(const algorithm::Action& action);
  bool reduce_block(const algorithm::Action& action);
  bool copy_block(const algorithm::Action& action);
  bool take_block(const algorithm::Action& action);
  bool take_reduced(const algorithm::Action& action);
  bool combine(const InFlight& entry);
  void claim(const algorithm::Action& action);
  void decide(const algorithm::Action& action);
  bool gather_sources(const InFlight& entry, std::uint32_t unit, const algorithm::Range& range);
  void reduce_sources(const algorithm::EntryPlan& plan, std::byte* to, std::uint64_t bytes);
  [[nodiscard]] std::optional<double> weight_of(Rank member, std::uint64_t sequence) const;
  [[nodiscard]] const std::byte* input_of(const InFlight& entry, Rank member, std::uint32_t unit,
                                          const algorithm::Range& range) const;
  [[nodiscard]] std::byte* output_of(const InFlight& entry, Rank member, const algorithm::Range& range) const;

  // group_faults.cc
  [[nodiscard]] std::vector<Rank> waiting_for() const;
  [[nodiscard]] std::vector<Rank> awaited_by_any(const Operation& operation) const;
  [[nodiscard]] std::string waiting_text(const Operation& operation, Clock::time_point now) const;
  void lose(Rank rank);
  void record_loss(Rank rank);
  void part_from(const std::vector<membership::Departure>& departures);  // group_views.cc
  static PointToPoint::Departure departure_of(const std::shared_ptr<Peer>& peer);
  [[nodiscard]] Status status_of(Fault outcome, Rank culprit, const Operation& operation, std::uint64_t sequence) const;
  [[nodiscard]] Status peer_lost_status(Rank culprit, const std::string& op) const;
  [[nodiscard]] Status incomplete_status(Rank culprit, const std::string& op) const;
  [[nodiscard]] Status mismatch_status(Rank culprit, std::uint64_t sequence, const std::string& op) const;
  [[nodiscard]] Status disagreement_status(const ExchangeTable::Disagreement& pair, const std::string& op) const;
  [[nodiscard]] std::string describe_op(const Operation& operation) const;
  [[nodiscard]] const transport::IssuerLine* line_of(Rank member) const;  // group_waits.cc

  GroupHost& host_;
  GroupOptions options_;
  GroupKey key_;
  Members members_;
  algorithm::GroupMachine machine_;
  Issuers issuers_;
  PointToPoint point_to_point_;
  RegionAllocator region_;
  std::optional<Status> broken_;

  std::deque<std::shared_ptr<Operation>> queue_;  // not all entries entered, or not all known
  std::uint64_t entries_queued_ = 0;              // of these ops, as far as known
  EntryRing entries_;                             // entered, not complete
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> transfers_;  // by PointToPoint id
  std::shared_ptr<Operation> spare_;                                         // run()'s, used again
  std::vector<bool> lost_;                 // by rank: look_for_deaths() has acted on it
  std::optional<WorkerId> recorded_loss_;  // the last one
  std::vector<const std::byte*> sources_;  // of the action in work; kept for its memory
  std::vector<double> weights_;            // as well
  std::optional<Status> entry_failure_;    // of the last entry that failed
  // run(): all is as usual, and what is known then.
  bool usual_ = false;
  std::vector<const transport::DescriptorSlot*> rings_;  // of those present
  std::uint64_t ring_mask_ = 0;
  std::array<SmallCall, static_cast<std::size_t>(OpKind::recv) + 1> small_calls_{};
  bool ring_pending_ = false;
  std::uint64_t repaired_below_ = 0;     // entries below it were in flight when a member was lost
  std::uint64_t taken_over_before_ = 0;  // blocks taken over when the last repaired op was reported

  Role role_ = Role::member;
  bool view_pending_ = false;                   // frozen for a view change
  std::deque<std::vector<std::byte>> answers_;  // alone: of the next broadcasts
  std::uint64_t ops_alone_ = 0;
  double weight_ = 1;       // of this member's input in averages issued from here on
  std::uint64_t step_ = 0;  // of ops issued from here on; counted by this member alone
  // The step whose first entry is known, and its number.
  std::uint64_t entered_step_ = 0;
  std::uint64_t entered_step_start_ = 0;

  OpMemory memory_;
  OpRecorder recorder_;
  Rank last_arrival_;  // in the last await_all()
  // The contributors of the last entry that was asked about: nearly always those of the next one, too.
  std::shared_ptr<const Contributors> contributors_;
  algorithm::RankSet contributing_;
};

}  // namespace closeranks::communicator
