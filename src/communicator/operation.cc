#include "communicator/operation.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::communicator {

namespace {

const std::shared_ptr<const Contributors>& nobody() {
  static const auto none = std::make_shared<const Contributors>();
  return none;
}

}  // namespace

std::shared_ptr<const Contributors> just(Slot slot) {
  return std::make_shared<const Contributors>(Contributors{{slot}, {slot}, true});
}

void Operation::begin(Call call, const CallShape& shape, std::uint64_t expected_sequence, Clock::time_point issued,
                      Clock::time_point deadline) {
  call_ = std::move(call);
  begin_anew(shape, expected_sequence, issued, deadline);
}

void Operation::begin_copy_of(const Call& call, const CallShape& shape, std::uint64_t expected_sequence,
                              Clock::time_point issued, Clock::time_point deadline) {
  call_ = call;              // into the memory of the lists of the call before
  call_.keep_alive.reset();  // the caller waits
  begin_anew(shape, expected_sequence, issued, deadline);
}

void Operation::begin_anew(const CallShape& shape, std::uint64_t expected_sequence, Clock::time_point issued,
                           Clock::time_point deadline) {
  shape_ = cut = shape;
  entries = shape.pieces;
  entries_entered = entries_done = 0;
  exchange.reset();
  in_place = {};
  repaired = false;
  times = {};
  entered_as(expected_sequence);
  issued_ = issued;
  deadline_ = deadline;
  if (!status_.ok()) status_ = {};
  contributors_ = nobody();
  source_ = {};
  actions_taken_ = false;
  settled_.store(false, std::memory_order_relaxed);
  settling_thread_.store({}, std::memory_order_relaxed);
  done_.store(false, std::memory_order_relaxed);
}

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
  return *contributors_;
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

void Operation::add_contributors(const std::shared_ptr<const Contributors>& contributors) {
  if (contributors_ == nobody()) contributors_ = contributors;
  if (contributors_ == contributors) return;
  const std::vector<Slot>& slots = contributors->slots;
  if (contributors_->uniform && contributors_->slots == slots) return;
  Contributors merged = *contributors_;
  merged.uniform = false;
  std::erase_if(merged.slots_in_all,
                [&slots](Slot slot) { return std::find(slots.begin(), slots.end(), slot) == slots.end(); });
  for (const Slot slot : slots) {
    auto& all = merged.slots;
    if (std::find(all.begin(), all.end(), slot) == all.end()) all.push_back(slot);
  }
  std::sort(merged.slots.begin(), merged.slots.end());
  contributors_ = std::make_shared<const Contributors>(std::move(merged));
}

void Operation::add_failure(Status failure) {
  if (status_.ok()) status_ = std::move(failure);
}

void Operation::finish(Rank source) {
  CR_ASSERT(!done());
  source_ = source;
  if (!status_.ok()) contributors_ = nobody();
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
