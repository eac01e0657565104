// A caller that is blocked in an op for longer than usual: tells the wait board whom it waits for, and looks for a
// circle of such waits that it is part of (order_cycle.h). The op then fails on every member instead of waiting for
// ever, under plain launchers too: all of it goes through shared memory.
//
// What a record claims is true when it is written: a member has not called what the op needs (issuers.h), and all its
// threads that call ops of that group are blocked. Read in this order: which threads are blocked; what was called;
// whether the same waits still last. A thread that is in the same wait before and after has called nothing between, and
// whatever it called before is visible.
//
// Only waits without an end of their own count: a caller that limits its patience below the op's deadline comes back by
// itself. A thread that waits in another way (on torch's future, say) is not seen, and accuses and is accused of
// nothing.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "communicator/group.h"
#include "communicator/operation.h"
#include "communicator/order_cycle.h"
#include "transport/wait_board.h"

namespace closeranks::communicator {

class EngineCore;

// A wait shorter than this is on no board: it costs nothing.
inline constexpr std::chrono::milliseconds told_after{250};
// Between two looks of a waiting thread. From the last member's wait to the verdict: told_after, one look for each
// neighbour to see it, cycle_lasts, and a look: 1.5 s at most.
inline constexpr std::chrono::milliseconds wait_look{200};

// Lives in EngineCore::wait_for(), on the waiting thread.
class BlockedWait {
 public:
  using Clock = Operation::Clock;

  // `for_ever`: the wait has no end of its own.
  BlockedWait(EngineCore& core, Group& group, Operation& operation, bool for_ever);
  // The wait is over: off the board, before the caller does anything else.
  ~BlockedWait();
  BlockedWait(const BlockedWait&) = delete;
  BlockedWait& operator=(const BlockedWait&) = delete;

  // When look() has something to do. Any thread may call what is below under the drive lock; the owner everything.
  [[nodiscard]] Clock::time_point next_look() const { return next_look_; }
  // With no lock held. May fail the op's group (Fault::mismatch).
  void look();

  // ---- under the drive lock -------------------------------------------------------------------------------------
  [[nodiscard]] Group& group() const { return group_; }
  [[nodiscard]] const Operation& operation() const { return operation_; }
  // True when `verdict` is about this wait: names it, or a thread of the circle that it was last seen in.
  [[nodiscard]] bool concerned_by(const transport::WaitVerdict& verdict) const;

 private:
  bool look(Clock::time_point now);
  [[nodiscard]] std::vector<std::vector<transport::WaitBoard::Blocked>> blocked_members() const;
  [[nodiscard]] std::vector<transport::WaitKey> awaited_threads_of(
      Rank member, const std::vector<transport::WaitBoard::Blocked>& blocked) const;
  void tell(const std::vector<std::vector<transport::WaitBoard::Blocked>>& blocked);
  [[nodiscard]] Waits reachable() const;
  void declare(const OrderCycle& cycle, const Waits& waits);

  EngineCore& core_;
  Group& group_;
  Operation& operation_;
  Clock::time_point next_look_;
  std::optional<transport::OwnWaitBoard::Taken> taken_;
  transport::WaitKey key_;
  CycleWatch watch_;
};

}  // namespace closeranks::communicator
