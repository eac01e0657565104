// The coordinator of views, as a pure machine: (state, message or tick, time) -> effects. No I/O, no clock, no threads;
// its owner calls it from one thread and carries out the effects in their order:
//   1. append `journal` (durably, where it is a file)   2. report `events`   3. send `to_agents` and `to_workers`
// If the append fails nothing may be sent and the coordinator must stop.
//
//   suspect -> fence (by the worker's agent) -> propose(n) -> every registered survivor freezes the affected groups and
//   answers prepared(n) -> resolve -> journal -> install(n)
// A survivor that does not answer by the deadline becomes a suspect. A further proven loss replaces the change in
// progress by one with a fresh number that excludes more. Only the newest number counts, everywhere.
//
// Joining is a round, with a number of its own from the same counter, and never at the same time as a change:
//   hold(n) to everybody -> each says which step it is in -> admit at the boundary before S -> each is frozen there and
//   says prepared(n) -> transfer of the state -> served, received -> journal -> install(n)
// Whatever goes wrong before the install cancels the round; the newcomers' requests stand (protocol rules 18 to 20).
//
// What the owner owes the machine:
// - Connections are ordered streams. A message for a worker or agent without a connection is dropped, never kept for
//   its next connection: hello brings the other side up to date.
// - An agent says AgentHello first on every connection, then repeats Fenced or Exited for each of its workers that has
//   ended so far, and last the Drain and the newest Resize that it has been asked for: neither is in the journal. It
//   says Started for a newcomer before that can connect, and again after each AgentHello.
// - tick() at `Effects::next_tick` at the latest; calls at other times do no harm.
//
// Files: coordinator.cc (dispatch, start, restart), roster.cc (who is who), suspicion.cc (suspects and fences),
// view_change.cc (propose, prepared, resolve, install), join.cc (rounds of joining), departure.cc (newcomers that are
// started, and workers that are asked to leave), progress.cc (who hangs).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/deadlines.h"
#include "closeranks/ids.h"
#include "membership/events.h"
#include "membership/group_status.h"
#include "membership/hang.h"
#include "membership/journal.h"
#include "membership/messages.h"
#include "membership/roster.h"
#include "membership/rules.h"

namespace closeranks::membership {

struct CoordinatorConfig {
  std::string job;
  // Fewer present slots than this: the coordinator gives up. At least 1.
  std::uint32_t min_present = 1;
  // false: the first loss ends the job. Its view is still installed, so that every worker's error names the slot; then
  // `gave_up` is reported and the owner ends the job (after deadlines::failure_grace).
  bool shrink = true;
  std::chrono::milliseconds prepared_deadline = deadlines::prepared;
  std::chrono::milliseconds fence_deadline = deadlines::fence;
  // A round that is not at its boundary, or whose state has not arrived, by then is cancelled and tried again. The
  // workers at the boundary wait meanwhile, so a hung one is found long before (hang.h).
  std::chrono::milliseconds boundary_deadline = deadlines::boundary;
  std::chrono::milliseconds transfer_deadline = deadlines::state_transfer;
  // Between a cancelled round and the next; doubles with each up to join_pause_most.
  std::chrono::milliseconds join_pause{100};
  std::chrono::milliseconds join_pause_most{5'000};
  // A newcomer that spoils this many rounds by itself is given up.
  std::uint32_t join_attempts = 3;
  // Addresses of newly registered workers are passed on to the others at most this often (and one message then holds
  // many): a job of a thousand would send a million messages at its start otherwise.
  std::chrono::milliseconds announce_interval{2};
  // While a deadline runs the machine asks for a tick this often. No call for four times as long: the coordinator
  // itself was stalled, answers may still lie in its sockets, and all deadlines start anew (protocol rule 21).
  std::chrono::milliseconds tick_interval{500};
  HangConfig hang;
  Rules rules;
};

struct Effects {
  std::vector<JournalRecord> journal;
  std::vector<Event> events;
  std::vector<std::pair<std::string, ToAgent>> to_agents;  // by the agent's host
  std::vector<std::pair<WorkerId, ToWorker>> to_workers;
  std::optional<Time> next_tick;  // none: nothing to wait for
};

class Coordinator {
 public:
  // `roster`: one worker per slot, at least one, slots and ids distinct; the same at every restart. `journal`: empty
  // at the first start, else all records written so far. The term is one above the highest in the journal.
  Coordinator(CoordinatorConfig config, const std::vector<RosterEntry>& roster, const Journal& journal);

  // Call once, first: journals the term (and the first view).
  Effects start(Time now);
  Effects handle_worker(const FromWorker& message, Time now);
  // `host`: as in the agent's AgentHello on this connection.
  Effects handle_agent(const std::string& host, const FromAgent& message, Time now);
  Effects tick(Time now);
  // The worker's newest connection broke. By itself no suspicion: the worker reconnects, and death is its agent's to
  // tell. It is named in later reasons.
  Effects connection_lost(WorkerId worker, Time now);

  // The view in force (decided and journaled; installs may still be on their way).
  [[nodiscard]] ViewNumber view() const { return view_; }
  [[nodiscard]] std::uint32_t term() const { return term_; }
  [[nodiscard]] const std::vector<ExcludedMember>& excluded() const { return excluded_; }
  [[nodiscard]] std::vector<Slot> present() const { return roster_.present_slots(); }
  [[nodiscard]] bool changing() const { return change_.has_value(); }
  [[nodiscard]] bool joining() const { return round_.has_value(); }
  // gave_up or superseded: every later call returns no effects.
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] const Roster& roster() const { return roster_; }

 private:
  struct Change {
    ViewNumber number;
    std::vector<ExcludedMember> excluding;
    std::map<WorkerId, std::vector<GroupStatus>> answers;
    Time deadline;
  };

  // A round of joining.
  struct Round {
    enum class Stage : std::uint8_t { holding, admitted, transferring };
    ViewNumber number;
    Stage stage = Stage::holding;
    std::vector<WorkerId> survivors;  // ascending slots
    std::vector<WorkerId> newcomers;
    std::map<WorkerId, std::uint64_t> steps;
    std::uint64_t step = 0;
    std::map<WorkerId, std::vector<GroupStatus>> answers;
    std::set<WorkerId> done;  // state served or received
    Time deadline;
  };

  // coordinator.cc
  void restore(const Journal& journal);
  void begin(Time now);
  Effects finish(Time now);
  void emit(EventKind kind, const Member* member, std::string reason, std::string detail = {});
  void send(WorkerId worker, ToWorker message);
  void end(EventKind kind, const Member* member, std::string reason, std::string detail);

  // roster.cc
  void on_hello(const Hello& hello, Member& member, Time now);
  void bring_up_to_date(const Hello& hello, const Member& member);
  void welcome(const Member& member);
  void announce(Time now);
  bool superseded_by(ViewNumber known);
  void evict(WorkerId worker, const std::string& reason);
  [[nodiscard]] std::string exclusion_reason(WorkerId worker) const;
  void on_goodbye(const Goodbye& goodbye, Member& member);

  // suspicion.cc
  void on_suspicion(const Suspicion& suspicion, const Member& from, Time now);
  void on_agent_hello(const std::string& host, Time now);
  void on_agent_suspicion(const AgentSuspicion& suspicion, Time now);
  void on_fenced(const Fenced& fenced);
  void on_exited(const Exited& exited);
  void suspect(Member& member, const std::string& reason, Time now);
  void ask_for_fence(Member& member, Time now);
  void process_ended(Member& member, const EndStatus& status);
  void condemn(Member& member);
  void drop(Member& member);
  void check_fences(Time now);

  // view_change.cc
  void advance(Time now);
  bool give_up_if_too_few(const std::vector<Member*>& leaving);
  void propose(const std::vector<Member*>& leaving, Time now);
  void send_proposal(WorkerId worker);
  void on_prepared(const Prepared& prepared, const Member& member);
  [[nodiscard]] bool must_answer(const Member& member) const;
  void suspect_the_late(Time now);
  [[nodiscard]] bool everybody_answered() const;
  void install();
  [[nodiscard]] std::vector<GroupResolution> resolve() const;
  void add_missed_epochs(std::vector<GroupResolution>& resolutions) const;
  void give_up_without_shrink();

  // join.cc
  void on_join_request(const JoinRequest& request, Member& member);
  void on_holding(const Holding& holding, const Member& member);
  void on_state_moved(ViewNumber round, const Member& member);
  void on_join_failed(const JoinFailed& failed, Member& member, Time now);
  [[nodiscard]] bool takes_part(const Member& member) const;
  void cancel_round(const std::string& reason, Time now);
  void advance_round(Time now);
  void open_round(Time now);
  void start_transfer(Time now);
  bool refuse_mismatch(Time now);
  [[nodiscard]] std::string trouble_of_round() const;
  [[nodiscard]] std::vector<WorkerAddress> addresses_of(const std::vector<WorkerId>& workers) const;
  void send_round(const ToWorker& message);
  [[nodiscard]] bool shut_down(const std::vector<GroupStatus>& statuses, const std::vector<WorkerId>& survivors) const;
  void install_round();

  // departure.cc
  void on_started(const std::string& host, const Started& started);
  void on_drain(const std::string& host, const Drain& drain);
  void on_resize(const Resize& resize);
  void wants_away(Member& member, const std::string& reason);
  void ask_to_leave(Member& member);
  [[nodiscard]] bool everybody_left() const;
  void tell_finished();

  // progress.cc
  void on_progress(const Progress& progress, Member& member, Time now);
  void on_first_step(const FirstStep& step, Member& member);
  void on_pause(const Pause& pause, const Member& member, Time now);
  void find_the_hung(Time now);

  CoordinatorConfig config_;
  Roster roster_;
  std::uint32_t term_ = 1;
  ViewNumber view_;
  std::uint64_t last_n_ = 0;              // highest n used in any proposal of this term, or decided before it
  std::vector<ExcludedMember> excluded_;  // in the view in force
  std::optional<Change> change_;
  std::optional<Round> round_;
  // Of each group's last join. A survivor that missed the install is told from here what no status may tell: a group
  // that fails with its members is in none.
  struct Epoch {
    ViewNumber view;
    GroupBase base;
  };
  std::map<GroupKey, Epoch> epochs_;
  std::set<ViewNumber> cancelled_;  // rounds of this term since the view in force
  std::optional<Time> join_not_before_;
  std::chrono::milliseconds join_pause_{0};
  HangDetector hang_;
  std::optional<Time> judge_at_;         // none: nobody has told any progress
  std::optional<Install> last_install_;  // of this term: for a worker that missed it
  // Restarted, and some worker may not have what the journal says: the next change names everybody excluded so far.
  bool unresolved_ = false;
  bool restarted_ = false;
  bool session_started_ = false;  // some worker has boundaries
  bool ended_ = false;
  std::vector<WorkerAddress> unannounced_;
  std::optional<Time> announce_at_;
  std::optional<Time> last_call_;
  Effects effects_;  // of the call in progress
};

std::string text_of(ViewNumber view);  // "(term, n)"
// "slot 2 (worker 3)"
std::string text_of(const Member& member);

}  // namespace closeranks::membership
