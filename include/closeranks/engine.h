// The process's one engine: owns the communicators, the segments it shares with its peers, its life words, and (in a
// coordinated job) the control connection. Held by a handle; destroyed with the last one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/communicator.h"

namespace closeranks {

class SharedMemory;  // shared_memory.h

namespace recorder {
class RingWriter;  // the process's flight recorder
}

// How a plain job (no coordinator) exchanges addresses: the torch store, or a map in a test. Both may block up to the
// given deadline and are called from the thread that calls Engine::create_group only.
struct AddressBook {
  std::function<Status(const std::string& key, const std::string& value)> set;
  std::function<Result<std::string>(const std::string& key, std::chrono::milliseconds deadline)> get;
};

// A process, told apart from a later one with the same number.
struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;  // since boot, as in /proc/PID/stat
};

struct EngineOptions {
  Slot slot;                // of this worker
  std::uint32_t slots = 1;  // N of the job
  // Coordinated job; empty: plain job (fixed members, policy fail only). "host:port".
  std::string coordinator;
  std::string token;  // shared secret of the job; plain jobs draw one and share it through the address book
  WorkerId worker;    // given by the agent; plain: equal to the slot
  std::string job;    // id of the job, for logs and names
  std::chrono::milliseconds orphan_timeout{60000};
  // The process whose end is the coordinator's end for good: the agent that holds it, on this host. When it has ended
  // every op fails at once, and this process is killed after deadlines::agent_lost. None: a coordinator that may be
  // started again.
  std::optional<ProcessIdentity> coordinator_process;
  // Where output goes once the coordinator's process, which read it from pipes, has ended: appended to NAME.stdout.log
  // and NAME.stderr.log. Empty: nowhere.
  std::string output_files;
  // How errors name a member: "slot 2" in a coordinated job, "rank 2" in a plain one.
  std::string member_word = "slot";
  // Where it records what its groups do. nullptr: a file of its own in $CLOSERANKS_TRACE_DIR; nowhere if that is not
  // set, or if it is not to record at all.
  std::shared_ptr<recorder::RingWriter> recorder;
  bool records = true;
};

// What a boundary or a join hands out while newcomers are let in: the group over which the state moves, named by slots.
// `group` holds sources and newcomers, policy fail; it ends with the round, whatever comes of it.
struct StateTransfer {
  ViewNumber round;
  std::uint64_t step = 0;  // the boundary at which the newcomers come in: the next step of everybody
  std::vector<Slot> newcomers;
  std::vector<Slot> sources;  // workers of the view, ascending
  std::shared_ptr<Communicator> group;
};

enum class Boundary : std::uint8_t {
  passed,    // the step may begin
  transfer,  // newcomers are being let in: serve the state, then call finish_transfer()
  leave,     // this worker is asked to leave: hand over what it owes, then call leave()
};

struct BoundaryResult {
  Boundary boundary = Boundary::passed;
  std::optional<StateTransfer> transfer;
  std::string reason;  // leave: why, in the coordinator's words
};

class Engine {
 public:
  // Starts the engine's thread, the segment server and, if coordinated, joins the job (deadline: connect_timeout).
  static Result<std::shared_ptr<Engine>> start(EngineOptions options);
  // Options from the environment `closeranks run` sets (CLOSERANKS_COORDINATOR, CLOSERANKS_TOKEN, CLOSERANKS_WORKER,
  // CLOSERANKS_JOB, CLOSERANKS_COORDINATOR_PROCESS, RANK, WORLD_SIZE, ...); nullopt outside of a coordinated job.
  static std::optional<EngineOptions> options_from_environment();

  virtual ~Engine() = default;
  // Makes the group's communicator. Plain: collective over its members, waits for all of them up to the group's
  // timeout and names those missing. Coordinated: returns at once, members meet in the first op.
  // `book` is used by plain jobs only.
  virtual Result<std::shared_ptr<Communicator>> create_group(GroupOptions options, const AddressBook* book) = 0;
  [[nodiscard]] virtual const EngineOptions& options() const = 0;
  // Memory that the other workers of the host read and write in place. Never nullptr; where the system gives no such
  // memory, its allocate() has none to give. Stays valid after the engine (its memory may still be in use).
  [[nodiscard]] virtual std::shared_ptr<SharedMemory> shared_memory() const = 0;
  // The installed view: its number and the present slots. Plain: {0,0} and all.
  [[nodiscard]] virtual ViewNumber view() const = 0;
  [[nodiscard]] virtual std::vector<Slot> present() const = 0;

  // ---- boundaries (coordinated jobs; the training thread only) ---------------------------------------------------
  // Between two steps; `step` is the number of the step about to begin, 1 for the first. Returns `passed` at once when
  // nobody joins; otherwise it may wait for the coordinator (at most as long as the coordinator is there, and
  // orphan_timeout beyond). After `transfer` and finish_transfer() the step begins: do not call it again for that step.
  // `patience`: while a slot is vacant that may be filled again, the step does not begin before somebody is let in, for
  // up to this long. Plain jobs: always `passed`.
  virtual Result<BoundaryResult> at_boundary(std::uint64_t step, std::chrono::milliseconds patience) = 0;
  // Started for a vacant slot and not yet in the view: ops run on this worker's input alone.
  [[nodiscard]] virtual bool newcomer() const = 0;
  // A newcomer at its first boundary: asks to be let in, and waits until the others serve their state.
  // Fault::closed with Move::none: the job has finished.
  virtual Result<StateTransfer> request_join() = 0;
  // The state of `round` has been sent or received (`outcome` ok), or why not. Waits for the others. True: installed,
  // all members of the new view go on at the transfer's step. False: the round was cancelled; a survivor begins its
  // step, a newcomer calls request_join() again.
  virtual Result<bool> finish_transfer(ViewNumber round, const Status& outcome) = 0;
  // Step `step` is done: for the coordinator's picture of who makes progress.
  virtual void step_finished(std::uint64_t step) = 0;
  // The caller does something long (a checkpoint, an evaluation) and must not be taken for hung meanwhile. Zero: over.
  virtual void pause(std::string what, std::chrono::milliseconds up_to) = 0;
  // Leaves the job for good: the others go on without this worker, and nobody takes its place. Ends all groups.
  virtual void leave(const std::string& reason) = 0;

  // Says goodbye to the coordinator and stops. Ops in flight end with Fault::closed.
  virtual void stop(std::chrono::milliseconds grace) = 0;
};

}  // namespace closeranks
