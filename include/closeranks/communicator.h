// One communicator per group: issues collectives, waits for them, tells who contributed.
//
// Threads: every function may be called from any thread. Ops of one group run in the order of their issue.
// A caller that waits drives the engine itself; otherwise the engine's thread does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "closeranks/op.h"
#include "closeranks/status.h"

namespace closeranks {

// Memory of the caller. Not owned; must stay valid until the op is done. Anything goes; what lies in the engine's
// shared memory (Engine::shared_memory()) is read and written in place by the others, without a staging copy, wherever
// that is safe: one buffer per side, aligned to its element, no overlap of input and output but for the
// in-place forms named below. It makes no difference to the result. Elsewhere, results of the kinds that reduce for
// everybody (all_reduce, reduce) and inputs are staged.
struct Buffer {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// One call. `inputs` and `outputs` are lists that count as one concatenated buffer each (torch passes lists).
// With n = group size and u = unit bytes (a whole number of elements):
//   all_reduce      inputs u,   outputs u   (the same memory for in-place)
//   broadcast       inputs u on every member that may be root, outputs u (the same memory: in place)
//   all_gather      inputs u,   outputs n*u, unit r is rank r's; zeros for a vacant slot
//   reduce_scatter  inputs n*u, outputs u: unit `rank` of the sum
//   gather          inputs u,   outputs n*u at root, empty elsewhere
//   scatter         inputs n*u at root, empty elsewhere; outputs u
//   reduce          inputs u,   outputs u at root (the same memory for in-place), empty elsewhere
//   all_to_all      inputs: input_bytes[r] for each rank r, one after the other; outputs: output_bytes[r] from each.
//                   What i sends to j is what j receives from i, else Fault::mismatch; zeros from a vacant slot
//   barrier         none
//   send            inputs u to `root` (the peer);  recv: outputs u from `root`
// In place, as MPI and torch know it: broadcast, all_reduce, reduce: the same memory; all_gather: the input is the
// output's own unit; reduce_scatter: the output is the input's own unit. No other overlap: the result is undefined.
struct Call {
  OpKind kind = OpKind::barrier;
  DType dtype = DType::bytes;
  ReduceOp reduce = ReduceOp::sum;
  Rank root;                // root, or the peer of send/recv
  bool any_source = false;  // recv only: `root` is ignored, the source is told by Op::source()
  std::int32_t tag = 0;     // send and recv
  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  // all_to_all: bytes to and from each rank, whole elements; one number per member, adding up to the buffers.
  std::vector<std::uint64_t> input_bytes;
  std::vector<std::uint64_t> output_bytes;
  double factor = 1;  // ReduceOp::premul_sum: this member's input counts times it
  // Facts that must be the same on all members and that sizes do not show (DDP: a hash of the bucket's layout): another
  // value is a Fault::mismatch.
  std::uint64_t fingerprint = 0;
  // For the flight recorder: the name of the tensors' shapes (recorder::RingWriter::text); 0: not known.
  std::uint32_t shape = 0;
  // As well: the name of the caller's stack; 0: not known. A small call that has one goes the way of the large ones,
  // for its own record has no room for it.
  std::uint32_t stack = 0;
  // Deadline of the op from its issue; zero: the group's own timeout.
  std::chrono::milliseconds timeout{0};
  // The caller waits at once: the engine's thread is not woken for this op. Saves a thread switch; the op is driven all
  // the same if the caller does something else first, but only when a waiting caller or another op wakes the engine.
  bool wait_follows = false;
  // Kept until the op is done: owners of the memory above (torch's storages).
  std::shared_ptr<void> keep_alive;
};

// The slots whose input is in a result. A private tensor larger than the staging pool is reduced in pieces, and when a
// member is lost between two of them they differ: then `uniform` is false.
struct Contributors {
  std::vector<Slot> slots;         // in some piece
  std::vector<Slot> slots_in_all;  // in every piece: what counts as used (protocol rule 25)
  bool uniform = true;
};

// An issued op. Shared by the caller and the engine.
class Op {
 public:
  virtual ~Op() = default;
  [[nodiscard]] virtual bool done() const = 0;
  // Waits until the op is done, driving the engine meanwhile. Returns the op's status: the caller's own timeout is
  // a Fault::timeout that names the slots that have not entered. zero: until the op's own deadline.
  virtual Status wait(std::chrono::milliseconds timeout) = 0;
  // Precondition of the following: done().
  [[nodiscard]] virtual Status status() const = 0;
  [[nodiscard]] virtual Contributors contributors() const = 0;
  [[nodiscard]] virtual Rank source() const = 0;  // recv with any_source
  // Number of its first entry. All of a group's ops count; one that waits behind an all_to_all, whose entries are
  // counted as they are known, has the number it is expected to get until it is entered.
  [[nodiscard]] virtual std::uint64_t sequence() const = 0;
  // Runs `action` once when the op is done (at once if it is), on the completing thread, with no lock of ours held.
  // wait() returns after the actions given before the op was done have run, except inside of one of them.
  virtual void when_done(std::function<void()> action) = 0;
};

// One line of a group's short memory of finished ops.
struct FinishedOp {
  std::uint64_t sequence = 0;  // of its first entry
  OpKind kind = OpKind::barrier;
  std::uint64_t bytes = 0;
  std::int64_t finished_unix_ns = 0;
  Contributors contributors;
};

struct GroupOptions {
  std::string name;           // the same on every member
  std::vector<Slot> members;  // rank order; contains this worker's slot
  Policy policy = Policy::fail;
  // DDP's own broadcasts: the root is the lowest contributing member instead of Call::root.
  bool lowest_member_is_root = false;
  std::chrono::milliseconds timeout{600000};
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  // Never fails at once: errors are raised at wait (protocol rule 16), except a call that is wrong in itself
  // (Fault::invalid_argument), which comes back as an op that is already done.
  virtual std::shared_ptr<Op> issue(Call call) = 0;
  // Issues `call` and waits for it: the status that Op::wait() would have given. For small payloads with nothing queued
  // before it this is the shortest way there is: no op is made, no memory allocated, no thread woken. Who counted is
  // told by last_contributors(). Call::wait_follows is of no matter.
  virtual Status run(const Call& call) = 0;

  [[nodiscard]] virtual const GroupOptions& options() const = 0;
  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual std::vector<Slot> present() const = 0;       // members not excluded in the installed view
  [[nodiscard]] virtual Contributors last_contributors() const = 0;  // of the last op done
  // Of the last 1024 ops done those numbered above `after` (-1: all of them) that ended later than every collective up
  // to it, oldest first.
  [[nodiscard]] virtual std::vector<FinishedOp> recent_ops(std::int64_t after) const = 0;
  [[nodiscard]] virtual std::uint64_t next_sequence() const = 0;
  // ok, or why the group can do no more ops.
  [[nodiscard]] virtual Status health() const = 0;
  // Collective by contract: every member sets the same policy at the same point, with no op in flight.
  virtual Status set_policy(Policy policy) = 0;
  // Weight of this member's input in the AVG ops issued from here on: the result is sum(weight * input) / sum(weight)
  // over the contributors. Each entry carries it, so weight and input always have the same contributors. Equal weights
  // give exactly the plain average. Weight 0: the input is not read; all of them 0: the result is zeros.
  // Fault::invalid_argument for a negative weight or one that is not finite.
  virtual Status set_weight(double weight) = 0;
  // While this worker is a newcomer that has not joined yet: the next broadcasts of the group are answered with
  // `answers`, in their order, instead of the caller's own input (DDP's bucket layout). Each must have the bytes of the
  // broadcast it answers. Fault::invalid_argument once the group has other members.
  virtual Status answer_broadcasts(std::vector<std::vector<std::byte>> answers) = 0;
  // True while this worker is a newcomer that has not joined yet: ops run locally, on this member's input alone.
  [[nodiscard]] virtual bool alone() const = 0;
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  // Ops in flight end with Fault::closed. Waits up to `grace` for them to finish by themselves first.
  virtual void shutdown(std::chrono::milliseconds grace) = 0;
};

}  // namespace closeranks
