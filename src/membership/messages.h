// Messages between the coordinator and its workers and agents: plain values, encoded by src/control/codec.h.
// The pure machines take and return them; nothing here waits or does I/O.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "closeranks/ids.h"
#include "membership/group_status.h"

namespace closeranks::membership {

// Where a worker can be found by its peers.
struct WorkerAddress {
  WorkerId worker;
  Slot slot;
  std::uint32_t pid = 0;
  std::string host;
  std::string endpoint;  // of its segment server; same host: an abstract unix socket's name
  friend bool operator==(const WorkerAddress&, const WorkerAddress&) = default;
};

// Who fills a slot.
struct Filled {
  Slot slot;
  WorkerId worker;
  friend bool operator==(const Filled&, const Filled&) = default;
};

// ---- worker -> coordinator ---------------------------------------------------------------------------------------

// First message on every connection of a worker, also after a reconnect. `installed` is {0,0} before the first
// welcome; `prepared` is the highest view it answered prepared for and has not seen installed, else {0,0}.
struct Hello {
  WorkerAddress self;
  ViewNumber installed;
  ViewNumber prepared;
};

// "I am frozen for view `view`": connections to the excluded are closed, nothing of theirs is read any more except
// what `statuses` report (protocol rules 7, 8). One status per affected group this worker has made.
struct Prepared {
  ViewNumber view;
  WorkerId from;
  std::vector<GroupStatus> statuses;
};

// A hint (protocol rule 22). `in_op`: an op of the reporter waits for `suspect`. `seems_gone`: it shows a sign of death
// (its life word, its endpoint refuses); else it is only waited for - it has not even been heard of, say - which counts
// once its agent says that it has ended with status 0.
struct Suspicion {
  WorkerId from;
  WorkerId suspect;
  std::string reason;
  bool in_op = false;
  bool seems_gone = true;
};

// An op went on without a member, or was finished for one: for the event log (op_repaired).
struct OpRepaired {
  WorkerId from;
  std::string group;
  std::uint64_t sequence = 0;
  std::string op;
  std::vector<Slot> contributors;
  std::uint32_t blocks_taken_over = 0;
};

// The worker leaves in order (destroy_process_group, exit): its engine has stopped and touches no shared memory any
// more, so it counts as fenced. It is excluded only when an op of somebody else waits for it; at once with `for_good`:
// it leaves the job on purpose (session.leave, drain), and the others go on without it. It is not replaced.
struct Goodbye {
  WorkerId from;
  bool for_good = false;
};

// A group as a newcomer has made it, alone. Groups match by their key (protocol rule 18).
struct GroupIntroduction {
  GroupKey group;
  std::string name;
  std::vector<Slot> members;
  Policy policy = Policy::fail;
  friend bool operator==(const GroupIntroduction&, const GroupIntroduction&) = default;
};

// A newcomer is at its first boundary and asks to be let in. `groups` in the order of their making. Said again after
// every hello until it is in.
struct JoinRequest {
  WorkerId from;
  std::vector<GroupIntroduction> groups;
};

// Answer to Hold: the step the worker is in (0: it has begun none). It does not begin a later one than Admit allows
// (protocol rule 19).
struct Holding {
  ViewNumber round;
  WorkerId from;
  std::uint64_t step = 0;
};

// A survivor has sent its part of the state.
struct StateServed {
  ViewNumber round;
  WorkerId from;
};

// The newcomer has all of the state and is ready to take part.
struct StateReceived {
  ViewNumber round;
  WorkerId from;
};

// The round cannot go on here: a group is not idle at the boundary, the state does not fit, ...
struct JoinFailed {
  ViewNumber round;
  WorkerId from;
  std::string reason;
};

// How far one group of the sender is.
struct GroupProgress {
  GroupKey group;
  std::string name;
  std::uint64_t entered = 0;
  std::uint64_t completed = 0;
  bool waiting = false;         // an op of it is open
  std::uint32_t waited_ms = 0;  // for how long the oldest open op has waited
  std::string op;               // "all_reduce #12": the oldest open op, else the last one
  std::vector<Slot> waits_for;  // slots that have not entered it yet
  friend bool operator==(const GroupProgress&, const GroupProgress&) = default;
};

// Four times a second. What the search for hung workers goes by.
struct Progress {
  WorkerId from;
  std::uint64_t step = 0;   // the last step begun; 0: none
  bool in_session = false;  // it has boundaries
  std::vector<GroupProgress> groups;
};

// A newcomer has finished its first step since it joined: for the event log.
struct FirstStep {
  WorkerId from;
  std::uint64_t step = 0;
};

// "For up to `up_to_ms` I shall make no progress, and that is in order": it is not taken for hung. 0: over.
struct Pause {
  WorkerId from;
  std::string what;
  std::uint32_t up_to_ms = 0;
};

// ---- agent -> coordinator ----------------------------------------------------------------------------------------

// First message on every connection of an agent. It then repeats Started, Fenced or Exited for each worker that has
// ended, Drain and the newest Resize.
struct AgentHello {
  std::string host;
  std::uint32_t pid = 0;
};

// The agent's first sign (robust futex, pidfd, state T): proof follows as Fenced.
struct AgentSuspicion {
  WorkerId worker;
  std::string reason;
};

// Proof that the worker can touch nothing any more: reaped, or every thread without memory.
// `by_itself`: it had ended before anyone killed it. Status as from waitpid when known.
struct Fenced {
  WorkerId worker;
  bool by_itself = false;
  bool reaped = false;
  std::int32_t wait_status = 0;
  std::string reason;  // "killed by signal 9", "exited with status 1", ...
};

// The worker ended and was reaped; sent for every worker once, also after Fenced. Status 0 does not exclude it by
// itself: it is excluded when some worker's op waits for it.
struct Exited {
  WorkerId worker;
  std::int32_t wait_status = 0;
  std::string reason;
};

// The agent is about to start `worker` for a vacant slot, a fresh id. Said before the process can connect, and again
// after every AgentHello, before Fenced and Exited. Answered with a Fence when the slot is filled.
struct Started {
  WorkerId worker;
  Slot slot;
};

// Every worker of this host is to leave at its next boundary: the host goes away.
struct Drain {
  std::string reason;
};

// `closeranks job resize`: this many slots are to be present. The coordinator sends the highest ones away; the agents
// start workers for vacant slots.
struct Resize {
  std::uint32_t present = 0;
};

// ---- coordinator -> worker ---------------------------------------------------------------------------------------

// Answer to Hello: the view in force, with all known addresses. Sent again with the new ones whenever addresses are
// added: the receiver adds `workers` to what it has. Only the first one sets the receiver's view.
struct Welcome {
  std::uint32_t term = 0;  // of the coordinator; the view may be of an earlier one
  ViewNumber view;
  std::vector<WorkerAddress> workers;
  std::vector<ExcludedMember> excluded;  // all so far, in order
  // The receiver was started for a vacant slot and is in no view yet: its groups are made alone, until it has joined.
  bool newcomer = false;
  std::vector<Filled> members{};  // of the view; empty when sent again
};

// Freeze the groups that have a member in `excluding`; answer Prepared.
struct Propose {
  ViewNumber view;
  std::vector<ExcludedMember> excluding;  // in order; after a restart of the coordinator earlier ones too
};

// The view is in force: what becomes of each affected group. Groups made later start from `excluded`.
struct Install {
  ViewNumber view;
  std::vector<ExcludedMember> excluded;  // all so far, in order
  std::vector<GroupResolution> groups;
  std::vector<Filled> members{};        // all of the view, ascending slots
  std::vector<WorkerAddress> joined{};  // newcomers that the view adds; empty unless it ends a join
};

// Some workers want to join. The receiver answers Holding and passes its next boundary only when told how (protocol
// rules 19, 20). Void when the connection breaks.
struct Hold {
  ViewNumber round;
  std::vector<WorkerAddress> newcomers;
};

// Boundaries of steps below `step` are passed; at the boundary before `step` every group is frozen, idle, and the
// answer is Prepared{view = round}. A newcomer answers the same at once.
struct Admit {
  ViewNumber round;
  std::uint64_t step = 0;
};

// Everybody is frozen at the boundary before `step`: the state goes from `sources` (workers of the view, ascending
// slots) to `newcomers`.
struct Transfer {
  ViewNumber round;
  std::uint64_t step = 0;
  std::vector<WorkerAddress> newcomers;
  std::vector<WorkerAddress> sources;
};

// The round is over without a new view: whoever holds goes on. Newcomers may join in a later round.
struct Cancel {
  ViewNumber round;
  std::string reason;
};

// The job has finished in order while the receiver waited to join: it ends with status 0.
struct JobFinished {};

// Leave the job at the next boundary (drain, resize): Goodbye{for_good}.
struct Leave {
  std::string reason;
};

// The receiver is out: it must stop. Sent to any worker that is not in the view.
struct Evicted {
  std::uint32_t term = 0;
  ViewNumber view;
  WorkerId worker;
  std::string reason;
};

// ---- coordinator -> agent ----------------------------------------------------------------------------------------

// Kill the worker's whole process tree, see it gone, answer Fenced.
struct Fence {
  WorkerId worker;
  std::string reason;
  bool keep_stack = false;  // have it write its Python stack first: it hangs, and somebody will want to know where
};

using FromWorker = std::variant<Hello, Prepared, Suspicion, OpRepaired, Goodbye, JoinRequest, Holding, StateServed,
                                StateReceived, JoinFailed, Progress, FirstStep, Pause>;
using FromAgent = std::variant<AgentHello, AgentSuspicion, Fenced, Exited, Started, Drain, Resize>;
using ToWorker = std::variant<Welcome, Propose, Install, Evicted, Hold, Admit, Transfer, Cancel, JobFinished, Leave>;
using ToAgent = std::variant<Fence>;

}  // namespace closeranks::membership
