#include "work.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "failure.h"

namespace closeranks::torch_binding {
namespace {

using std::chrono::milliseconds;

// Never reused in this process, as the flight recorder asks.
std::uint64_t next_completion_key() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

CloseranksWork::CloseranksWork(int rank, TensorCall call, WorkOptions options, std::shared_ptr<CompletionHooks> hooks,
                               std::shared_ptr<Timeouts> timeouts)
    : Work(rank, options.type, options.title, call.inputs()),
      options_(std::move(options)),
      call_(std::move(call)),
      hooks_(std::move(hooks)),
      timeouts_(std::move(timeouts)),
      completion_key_(next_completion_key()) {}

c10::intrusive_ptr<CloseranksWork> CloseranksWork::start(Communicator& communicator, TensorCall call,
                                                         WorkOptions options, std::shared_ptr<CompletionHooks> hooks,
                                                         std::shared_ptr<Timeouts> timeouts) {
  auto work = c10::make_intrusive<CloseranksWork>(static_cast<int>(communicator.rank().value()), std::move(call),
                                                  std::move(options), std::move(hooks), std::move(timeouts));
  const Timeouts::Assigned assigned = work->timeouts_->assign(work->options_.timeout);
  work->options_.timeout = assigned.timeout;
  work->ephemeral_ = assigned.owned;
  Call& issued = work->call_.call();
  issued.timeout = assigned.timeout;
  issued.wait_follows = work->options_.wait_follows;
  if (issued.wait_follows) {
    Status status = communicator.run(issued);
    work->contributors_ = communicator.last_contributors();
    work->settle(std::move(status));
    return work;
  }
  work->op_ = communicator.issue(issued);
  // The action holds the Work, and with it the tensors, until the op is done.
  work->op_->when_done([work] { work->settle(work->op_->status()); });
  return work;
}

void CloseranksWork::settle(Status status) {
  std::exception_ptr error;
  status_ = std::move(status);
  if (status_.ok()) {
    try {
      call_.copy_back();
      if (options_.after_success) {
        options_.after_success(op_ ? op_->contributors() : contributors_);
      }
    } catch (...) {
      error = std::current_exception();  // out of memory in a copy, for one
    }
  } else {
    error = std::make_exception_ptr(Failure(status_));
  }
  timeouts_->finished(ephemeral_);
  finish(error);
  if (error == nullptr) {
    hooks_->completed(completion_key_);
  }
  std::unique_lock lock(future_mutex_);
  settled_.store(true, std::memory_order_release);
  const auto future = future_;
  lock.unlock();
  settled_.notify_all();
  if (future) {
    complete(future);
  }
}

void CloseranksWork::complete(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  const std::exception_ptr error = exception();
  if (error) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(options_.results));
  }
}

bool CloseranksWork::wait(milliseconds timeout) {
  if (op_) {
    const Status status = op_->wait(timeout);
    if (!op_->done()) {
      throw_unless_ok(status);
    }
    // An op's wait returns after what waits for it has run, so this Work is settled, future and all; unless that is
    // where we are called from.
    settled_.wait(false, std::memory_order_acquire);
  }
  if (const std::exception_ptr error = exception()) {
    std::rethrow_exception(error);
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CloseranksWork::getFuture() {
  std::unique_lock lock(future_mutex_);
  if (future_) {
    return future_;
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const auto future = future_;
  const bool settled = settled_.load(std::memory_order_acquire);
  lock.unlock();
  if (settled) {
    complete(future);
  }
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> CloseranksWork::getFutureResult() {
  return getFuture()->then(
      [](c10::ivalue::Future& future) -> c10::IValue {
        return static_cast<std::int64_t>(future.hasError() ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS);
      },
      c10::IntType::get());
}

int CloseranksWork::sourceRank() const {
  if (!op_ || !op_->done()) {
    throw_invalid_call("the source of a receive is known once it is done: call wait() first");
  }
  return static_cast<int>(op_->source().value());
}

std::uint64_t CloseranksWork::getSequencenumber() const { return op_ ? op_->sequence() : 0; }

Contributors CloseranksWork::contributors() {
  if (!isCompleted()) {
    throw_invalid_call("contributors are known once the op is done: call wait() first");
  }
  throw_unless_ok(status_);
  return op_ ? op_->contributors() : contributors_;
}

}  // namespace closeranks::torch_binding
