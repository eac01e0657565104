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
// more, so it counts as fenced. It is excluded only when an op of somebody else waits for it.
struct Goodbye {
  WorkerId from;
};

// ---- agent -> coordinator ----------------------------------------------------------------------------------------

// First message on every connection of an agent. It then repeats Fenced or Exited for each worker that has ended.
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

// ---- coordinator -> worker ---------------------------------------------------------------------------------------

// Answer to Hello: the view in force, with all known addresses. Sent again with the new ones whenever addresses are
// added: the receiver adds `workers` to what it has. Only the first one sets the receiver's view.
struct Welcome {
  std::uint32_t term = 0;  // of the coordinator; the view may be of an earlier one
  ViewNumber view;
  std::vector<WorkerAddress> workers;
  std::vector<ExcludedMember> excluded;  // all so far, in order
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
};

using FromWorker = std::variant<Hello, Prepared, Suspicion, OpRepaired, Goodbye>;
using FromAgent = std::variant<AgentHello, AgentSuspicion, Fenced, Exited>;
using ToWorker = std::variant<Welcome, Propose, Install, Evicted>;
using ToAgent = std::variant<Fence>;

}  // namespace closeranks::membership
