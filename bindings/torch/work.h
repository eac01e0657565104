// One issued call as torch's Work: waits, future, contributors.
//
// It settles once, on whichever thread sees its op done: copies stand-ins back, then is completed, then fires
// hooks, then completes its future, whose callbacks run on that thread with no lock held. wait() returns after the
// future is completed, so a caller that waited never sees a pending one.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "closeranks/communicator.h"
#include "hooks.h"
#include "tensors.h"
#include "timeouts.h"

namespace closeranks::torch_binding {

struct WorkOptions {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;           // for the profiler, "closeranks:all_reduce"
  bool wait_follows = false;             // the caller waits at once
  std::vector<at::Tensor> results;       // value of the future
  std::chrono::milliseconds timeout{0};  // as told to the op; zero: the group's own
  // Runs at settling, after success: the op's contributors are known and the copies are made.
  std::function<void(const Contributors&)> after_success;
};

class CloseranksWork final : public c10d::Work {
 public:
  // Issues `call` on `communicator`; done already on return where the caller would wait at once. Never fails: errors
  // are raised by wait() (protocol rule 16).
  static c10::intrusive_ptr<CloseranksWork> start(Communicator& communicator, TensorCall call, WorkOptions options,
                                                  std::shared_ptr<CompletionHooks> hooks,
                                                  std::shared_ptr<Timeouts> timeouts);
  ~CloseranksWork() override = default;
  // Use start(): an op in flight must be able to keep its Work alive.
  CloseranksWork(int rank, TensorCall call, WorkOptions options, std::shared_ptr<CompletionHooks> hooks,
                 std::shared_ptr<Timeouts> timeouts);

  // Throws Failure. `timeout` zero: until the op's own deadline; when the caller's own timeout passes first, the op
  // stays in flight and may be waited for again. Not with the GIL.
  bool wait(std::chrono::milliseconds timeout) override;
  // isCompleted() is the base's: true once settled; it drives nothing, the engine's thread does.
  void synchronize() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::vector<at::Tensor> result() override { return options_.results; }
  int sourceRank() const override;
  std::uint64_t getSequencenumber() const override;
  std::chrono::milliseconds getTimeout() const override { return options_.timeout; }
  std::uint64_t getCompletionKey() const override { return completion_key_; }

  // Slots whose input is in the result. Throws InvalidCall while the op is in flight, and its Failure
  // when it has failed.
  [[nodiscard]] Contributors contributors();

 private:
  void settle(Status status);
  void complete(const c10::intrusive_ptr<c10::ivalue::Future>& future);

  WorkOptions options_;
  TensorCall call_;
  std::shared_ptr<Op> op_;     // null: it was run, not issued
  Contributors contributors_;  // of an op that was run
  std::shared_ptr<CompletionHooks> hooks_;
  std::shared_ptr<Timeouts> timeouts_;
  std::chrono::milliseconds ephemeral_{0};
  const std::uint64_t completion_key_;
  std::atomic<bool> settled_{false};
  Status status_;  // written before settled_
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace closeranks::torch_binding
