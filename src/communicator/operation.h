// An op from its issue to its end: what the caller holds (Op), and what its group remembers of it meanwhile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "closeranks/communicator.h"
#include "communicator/call_shape.h"
#include "communicator/exchange_table.h"
#include "communicator/in_place.h"
#include "communicator/op_times.h"

namespace closeranks::communicator {

class Operation;

// Who drives while a caller waits: the engine.
class OperationDriver {
 public:
  virtual ~OperationDriver() = default;
  // Op::wait(). Any thread.
  virtual Status wait_for(Operation& operation, std::chrono::milliseconds timeout) = 0;
};

// Of an op that one member alone brings something to.
std::shared_ptr<const Contributors> just(Slot slot);

// Threads: the Op interface from any thread; the rest, where not said otherwise, under the drive lock.
class Operation final : public Op {
 public:
  using Clock = std::chrono::steady_clock;

  // `driver`: of its wait(); nullptr: it is never waited for (Communicator::run does it all).
  explicit Operation(std::shared_ptr<OperationDriver> driver) : driver_(std::move(driver)) {}
  // A call begins. The object may have been another one's before, which has settled and that nobody asks for any more:
  // its memory is used again.
  void begin(Call call, const CallShape& shape, std::uint64_t expected_sequence, Clock::time_point issued,
             Clock::time_point deadline);
  void begin_copy_of(const Call& call, const CallShape& shape, std::uint64_t expected_sequence,
                     Clock::time_point issued, Clock::time_point deadline);

  [[nodiscard]] bool done() const override { return done_.load(std::memory_order_acquire); }
  Status wait(std::chrono::milliseconds timeout) override;
  [[nodiscard]] Status status() const override;
  [[nodiscard]] Contributors contributors() const override;
  [[nodiscard]] Rank source() const override;
  [[nodiscard]] std::uint64_t sequence() const override { return first_sequence_.load(std::memory_order_relaxed); }
  void when_done(std::function<void()> action) override;

  [[nodiscard]] const Call& call() const { return call_; }
  // Of a finished op; never nullptr.
  [[nodiscard]] const std::shared_ptr<const Contributors>& who_contributed() const { return contributors_; }
  [[nodiscard]] const CallShape& shape() const { return shape_; }
  [[nodiscard]] Clock::time_point issued() const { return issued_; }
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }

  // Its entries: as many as are known (an all_to_all that has not exchanged its table: that one), those entered, and
  // those that are over.
  std::uint32_t entries = 1;
  std::uint32_t entries_entered = 0;
  std::uint32_t entries_done = 0;
  // How its unit is cut into entries; all_to_all: its pairs, once they are known.
  CallShape cut;
  std::optional<ExchangeTable> exchange;  // all_to_all
  InPlace in_place;
  bool repaired = false;    // a member was lost while it was in flight
  OpTimes times;            // op_recorder.h
  std::uint32_t place = 0;  // collectives called on the group before it, in this epoch (issuers.h)
  // As the group was at its issue: weight or factor of this member's input, and the step it belongs to (policy exact).
  double weight = 1;
  std::uint64_t step = 0;
  // First entry of that step; known when its own first entry is entered.
  std::uint64_t step_start = 0;
  // The number of its first entry is known.
  void entered_as(std::uint64_t sequence) { first_sequence_.store(sequence, std::memory_order_relaxed); }
  // Adds the contributors of one finished entry that brings data, before entries_done counts it. The same object stands
  // for the same contributors.
  void add_contributors(const std::shared_ptr<const Contributors>& contributors);
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
  void begin_anew(const CallShape& shape, std::uint64_t expected_sequence, Clock::time_point issued,
                  Clock::time_point deadline);

  Call call_;
  CallShape shape_;
  std::atomic<std::uint64_t> first_sequence_{0};
  Clock::time_point issued_;
  Clock::time_point deadline_;
  const std::shared_ptr<OperationDriver> driver_;

  // Written before done_ is set, read after it is.
  Status status_;
  std::shared_ptr<const Contributors> contributors_;
  Rank source_;
  std::atomic<bool> done_{false};

  std::atomic<bool> settled_{false};
  std::atomic<std::thread::id> settling_thread_{};
  std::mutex actions_mutex_;
  bool actions_taken_ = false;
  std::vector<std::function<void()>> actions_;
};

}  // namespace closeranks::communicator
