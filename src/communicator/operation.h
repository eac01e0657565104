// An op from its issue to its end: what the caller holds (Op), and what its group remembers of it meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "closeranks/communicator.h"
#include "communicator/call_shape.h"

namespace closeranks::communicator {

class Operation;

// Who drives while a caller waits: the engine.
class OperationDriver {
 public:
  virtual ~OperationDriver() = default;
  // Op::wait(). Any thread.
  virtual Status wait_for(Operation& operation, std::chrono::milliseconds timeout) = 0;
};

// Threads: the Op interface from any thread; the rest, where not said otherwise, under the drive lock.
class Operation final : public Op {
 public:
  using Clock = std::chrono::steady_clock;

  Operation(Call call, CallShape shape, std::uint64_t first_sequence, Clock::time_point issued,
            Clock::time_point deadline, std::shared_ptr<OperationDriver> driver);

  [[nodiscard]] bool done() const override { return done_.load(std::memory_order_acquire); }
  Status wait(std::chrono::milliseconds timeout) override;
  [[nodiscard]] Status status() const override;
  [[nodiscard]] Contributors contributors() const override;
  [[nodiscard]] Rank source() const override;
  [[nodiscard]] std::uint64_t sequence() const override { return first_sequence_; }
  void when_done(std::function<void()> action) override;

  [[nodiscard]] const Call& call() const { return call_; }
  [[nodiscard]] const CallShape& shape() const { return shape_; }
  [[nodiscard]] Clock::time_point issued() const { return issued_; }
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }

  // Pieces that have become entries, and those whose entry is over.
  std::uint32_t pieces_entered = 0;
  std::uint32_t pieces_done = 0;
  bool repaired = false;  // a member was lost while it was in flight
  // As the group was at its issue: weight of this member's input, first entry of the step it belongs to (policy exact).
  double weight = 1;
  std::uint64_t step_start = 0;
  // Adds the contributors (slots, rank order) of one finished piece.
  void add_contributors(const std::vector<Slot>& slots);
  // The first failure of a piece is that of the op.
  void add_failure(Status failure);

  // The op is over with what add_*() gathered: done() is true from here on. Call settle() afterwards.
  void finish(Rank source = Rank{});
  // With no lock held: releases the caller's memory and runs what waits for the op. wait() returns after it, so that a
  // future completed by when_done() is complete then.
  void settle();
  // Any thread. True when wait() may return.
  [[nodiscard]] bool settled() const;

 private:
  Call call_;
  const CallShape shape_;
  const std::uint64_t first_sequence_;
  const Clock::time_point issued_;
  const Clock::time_point deadline_;
  const std::shared_ptr<OperationDriver> driver_;

  // Written before done_ is set, read after it is.
  Status status_;
  Contributors contributors_;
  Rank source_;
  std::atomic<bool> done_{false};

  std::atomic<bool> settled_{false};
  std::atomic<std::thread::id> settling_thread_{};
  std::mutex actions_mutex_;
  bool actions_taken_ = false;
  std::vector<std::function<void()>> actions_;
};

}  // namespace closeranks::communicator
