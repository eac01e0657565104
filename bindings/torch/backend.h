// The c10d backend "closeranks": one Communicator per group behind torch's Backend interface.
//
// Collectives never fail at issue, except a call that is wrong in itself (Failure); errors are raised at wait. They
// must not be called with the GIL, as torch's bindings take care of. Tensors on the CPU only so far; the backend is
// registered for cuda too, so that one object serves a group's both devices, and says clearly that it does not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "closeranks/communicator.h"
#include "closeranks/engine.h"
#include "hooks.h"
#include "options.h"
#include "tensors.h"
#include "timeouts.h"
#include "work.h"

namespace closeranks::torch_binding {

// While one lives, the all_reduces that this thread issues carry `fingerprint` (communicator.h, Call): DDP's hook says
// by it how a bucket is laid out, and torch's options have no place for that.
class FingerprintScope {
 public:
  explicit FingerprintScope(std::uint64_t fingerprint) : outer_(current()) { current() = fingerprint; }
  ~FingerprintScope() { current() = outer_; }
  FingerprintScope(const FingerprintScope&) = delete;
  FingerprintScope& operator=(const FingerprintScope&) = delete;
  static std::uint64_t& current() {
    static thread_local std::uint64_t fingerprint = 0;
    return fingerprint;
  }

 private:
  std::uint64_t outer_;
};

class CloseranksBackend final : public c10d::Backend {
 public:
  // Makes the group's communicator (and the process's engine, for the first group): in a plain job a rendezvous over
  // options.store that waits for all members up to options.timeout. Throws Failure. `settings` may be null.
  // `world_slot`, `world_slots`: torch's rank and world size. Not with the GIL.
  static c10::intrusive_ptr<CloseranksBackend> create(const c10d::DistributedBackendOptions& options,
                                                      const c10::intrusive_ptr<GroupSettings>& settings,
                                                      Slot world_slot, std::uint32_t world_slots);
  // Use create().
  CloseranksBackend(std::shared_ptr<Engine> engine, std::shared_ptr<Communicator> communicator,
                    c10::intrusive_ptr<GroupSettings> settings);
  ~CloseranksBackend() override;

  const std::string getBackendName() const override { return "closeranks"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return settings_; }
  [[nodiscard]] Communicator& communicator() { return *communicator_; }

  // ---- collectives (collectives.cc) --------------------------------------------------------------------------------
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer all_gather_single(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                    const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  // An empty list of sizes means equal parts.
  WorkPointer all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                                std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  // Blocks. The error names every member that has not come, so `wait_all_ranks` changes nothing.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // ---- point to point (point_to_point.cc) --------------------------------------------------------------------------
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  // ---- the group ---------------------------------------------------------------------------------------------------
  std::uint64_t getSequenceNumberForGroup() override { return communicator_->next_sequence(); }
  bool supportsSplitting() const override { return true; }
  // Child group of `ranks` (of this group), policy as in `options`, else fail; null on a non-member.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override { timeouts_->extend(timeout); }
  c10d::ErrorType getError() override;
  // Ends ops in flight with Closed: at once, or after a grace.
  void abort() override;
  void shutdown() override;

  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) override { hooks_->add(id, std::move(hook)); }
  void unregisterCompletionHook(std::int64_t id) override { hooks_->remove(id); }

 private:
  struct Issue {
    c10d::OpType type;
    const char* title;
    std::chrono::milliseconds timeout;
    bool async = true;  // false: the caller waits at once
  };
  c10::intrusive_ptr<CloseranksWork> issue(TensorCall call, Issue how, Tensors results);
  // An op whose result has a part per member. Parts of vacant members are zeros, which is said once per group; on a
  // group of DDP's own, `fill_part` replaces them (the all_gather of its constructor must not see a difference).
  using FillPart = std::function<void(std::size_t rank)>;
  c10::intrusive_ptr<CloseranksWork> issue_gathering(TensorCall call, Issue how, Tensors results,
                                                     const FillPart& fill_part = {});
  static WorkOptions work_options(Issue how, Tensors results);
  c10::intrusive_ptr<CloseranksWork> start(TensorCall call, WorkOptions options);
  static const at::Tensor& only_one(const Tensors& tensors, const char* op);
  [[nodiscard]] Rank checked_rank(std::int64_t rank, const char* op) const;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Communicator> communicator_;
  c10::intrusive_ptr<GroupSettings> settings_;
  std::shared_ptr<CompletionHooks> hooks_;
  std::shared_ptr<Timeouts> timeouts_;
  std::shared_ptr<std::atomic<bool>> said_vacant_;
};

}  // namespace closeranks::torch_binding
