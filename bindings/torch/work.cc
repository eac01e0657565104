#include "work.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "failure.h"

namespace closeranks::torch_binding {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Never reused in this process, as the flight recorder asks.
std::uint64_t next_completion_key() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// The union over several ops; uniform when all agree.
Contributors contributors_of(const std::vector<std::shared_ptr<Op>>& ops) {
  Contributors united;
  if (ops.empty()) {
    return united;
  }
  united = ops.front()->contributors();
  std::set<Slot> slots(united.slots.begin(), united.slots.end());
  std::vector<Slot>& in_all = united.slots_in_all;
  for (const std::shared_ptr<Op>& op : ops) {
    const Contributors one = op->contributors();
    united.uniform = united.uniform && one.uniform && one.slots == united.slots;
    slots.insert(one.slots.begin(), one.slots.end());
    std::erase_if(in_all, [&one](Slot slot) {
      return std::find(one.slots_in_all.begin(), one.slots_in_all.end(), slot) == one.slots_in_all.end();
    });
  }
  united.slots.assign(slots.begin(), slots.end());
  return united;
}

std::vector<at::Tensor> inputs_of(const std::vector<TensorCall>& calls) {
  std::vector<at::Tensor> inputs;
  for (const TensorCall& call : calls) {
    inputs.insert(inputs.end(), call.inputs().begin(), call.inputs().end());
  }
  return inputs;
}

}  // namespace

CloseranksWork::CloseranksWork(int rank, std::vector<TensorCall> calls, WorkOptions options,
                               std::shared_ptr<CompletionHooks> hooks, std::shared_ptr<Timeouts> timeouts)
    : Work(rank, options.type, options.title, inputs_of(calls)),
      options_(std::move(options)),
      calls_(std::move(calls)),
      hooks_(std::move(hooks)),
      timeouts_(std::move(timeouts)),
      completion_key_(next_completion_key()),
      open_ops_(calls_.size()) {}

c10::intrusive_ptr<CloseranksWork> CloseranksWork::start(Communicator& communicator, std::vector<TensorCall> calls,
                                                         WorkOptions options, std::shared_ptr<CompletionHooks> hooks,
                                                         std::shared_ptr<Timeouts> timeouts) {
  auto work = c10::make_intrusive<CloseranksWork>(static_cast<int>(communicator.rank().value()), std::move(calls),
                                                  std::move(options), std::move(hooks), std::move(timeouts));
  const Timeouts::Assigned assigned = work->timeouts_->assign(work->options_.timeout);
  work->options_.timeout = assigned.timeout;
  work->ephemeral_ = assigned.owned;
  work->ops_.reserve(work->calls_.size());
  for (TensorCall& call : work->calls_) {
    call.call().timeout = assigned.timeout;
    call.call().wait_follows = work->options_.wait_follows;
    work->ops_.push_back(communicator.issue(call.call()));
  }
  // Each action holds the Work, and with it the tensors, until its op is done.
  for (const std::shared_ptr<Op>& op : work->ops_) {
    op->when_done([work] { work->op_done(); });
  }
  if (work->ops_.empty()) {
    work->settle();
  }
  return work;
}

void CloseranksWork::op_done() {
  if (open_ops_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    settle();
  }
}

Status CloseranksWork::outcome() const {
  for (const std::shared_ptr<Op>& op : ops_) {
    Status status = op->status();
    if (!status.ok()) {
      return status;
    }
  }
  return {};
}

void CloseranksWork::settle() {
  std::exception_ptr error;
  status_ = outcome();
  if (status_.ok()) {
    try {
      for (TensorCall& call : calls_) {
        call.copy_back();
      }
      if (options_.after_success) {
        options_.after_success(contributors_of(ops_));
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
  const auto deadline = steady_clock::now() + timeout;
  for (const std::shared_ptr<Op>& op : ops_) {
    milliseconds left{0};
    if (timeout > milliseconds{0}) {
      left = std::max(std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()), milliseconds{1});
    }
    const Status status = op->wait(left);
    if (!op->done()) {
      throw_unless_ok(status);
    }
  }
  // An op's wait returns after what waits for it has run, so the last one has settled this Work, future and all.
  settled_.wait(false, std::memory_order_acquire);
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
  if (ops_.size() != 1 || !ops_.front()->done()) {
    throw_invalid_call("the source of a receive is known once it is done: call wait() first");
  }
  return static_cast<int>(ops_.front()->source().value());
}

std::uint64_t CloseranksWork::getSequencenumber() const { return ops_.empty() ? 0 : ops_.front()->sequence(); }

Contributors CloseranksWork::contributors() {
  if (!isCompleted()) {
    throw_invalid_call("contributors are known once the op is done: call wait() first");
  }
  throw_unless_ok(status_);
  return contributors_of(ops_);
}

}  // namespace closeranks::torch_binding
