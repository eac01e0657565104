#include "communicator/operation.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::communicator {

Operation::Operation(Call call, CallShape shape, std::uint64_t first_sequence, Clock::time_point issued,
                     Clock::time_point deadline, std::shared_ptr<OperationDriver> driver)
    : call_(std::move(call)),
      shape_(shape),
      first_sequence_(first_sequence),
      issued_(issued),
      deadline_(deadline),
      driver_(std::move(driver)) {}

Status Operation::wait(std::chrono::milliseconds timeout) {
  if (settled()) return status();
  return driver_->wait_for(*this, timeout);
}

Status Operation::status() const {
  CR_ASSERT(done());
  return status_;
}

Contributors Operation::contributors() const {
  CR_ASSERT(done());
  return contributors_;
}

Rank Operation::source() const {
  CR_ASSERT(done());
  return source_;
}

void Operation::when_done(std::function<void()> action) {
  {
    const std::lock_guard lock(actions_mutex_);
    if (!actions_taken_) {
      actions_.push_back(std::move(action));
      return;
    }
  }
  action();
}

void Operation::add_contributors(const std::vector<Slot>& slots) {
  if (pieces_done == 0) {
    contributors_.slots = contributors_.slots_in_all = slots;
    return;
  }
  if (contributors_.uniform && contributors_.slots == slots) return;
  contributors_.uniform = false;
  std::erase_if(contributors_.slots_in_all,
                [&slots](Slot slot) { return std::find(slots.begin(), slots.end(), slot) == slots.end(); });
  for (const Slot slot : slots) {
    auto& all = contributors_.slots;
    if (std::find(all.begin(), all.end(), slot) == all.end()) all.push_back(slot);
  }
  std::sort(contributors_.slots.begin(), contributors_.slots.end());
}

void Operation::add_failure(Status failure) {
  if (status_.ok()) status_ = std::move(failure);
}

void Operation::finish(Rank source) {
  CR_ASSERT(!done());
  source_ = source;
  if (!status_.ok()) contributors_ = {};
  done_.store(true, std::memory_order_release);
}

void Operation::settle() {
  std::vector<std::function<void()>> actions;
  {
    const std::lock_guard lock(actions_mutex_);
    actions_taken_ = true;
    actions.swap(actions_);
  }
  settling_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  call_.inputs.clear();
  call_.outputs.clear();
  call_.keep_alive.reset();
  for (const auto& action : actions) action();
  settled_.store(true, std::memory_order_release);
}

bool Operation::settled() const {
  if (settled_.load(std::memory_order_acquire)) return true;
  // An action may wait for its own op.
  return done() && settling_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

}  // namespace closeranks::communicator
