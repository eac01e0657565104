#include "control/control_thread.h"

#include <pthread.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/blocked_signals.h"

namespace closeranks::control {

struct ControlThread::State {
  asio::io_context context{1};  // one thread: Asio may leave out locks between its own
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::atomic<std::thread::id> id{};
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;   // under mutex: no handler runs any more
  bool joined = false;  // under mutex
  std::thread thread;
};

ControlThread::ControlThread(const std::string& name) : state_(std::make_unique<State>()) {
  const BlockedSignals blocked;
  state_->thread = std::thread([state = state_.get(), short_name = name.substr(0, 15)] {
    pthread_setname_np(pthread_self(), short_name.c_str());
    state->id = std::this_thread::get_id();
    state->context.run();
    const std::lock_guard lock(state->mutex);
    state->ended = true;
    state->changed.notify_all();
  });
}

ControlThread::~ControlThread() { stop(); }

void ControlThread::post(std::function<void()> action) { asio::post(state_->context, std::move(action)); }

Status ControlThread::run(std::function<void()> action) {
  if (is_current()) {
    action();
    return {};
  }
  auto done = std::make_shared<bool>(false);
  asio::post(state_->context, [state = state_.get(), done, action = std::move(action)] {
    action();
    const std::lock_guard lock(state->mutex);
    *done = true;
    state->changed.notify_all();
  });
  std::unique_lock lock(state_->mutex);
  const bool over = state_->changed.wait_for(lock, run_deadline, [&] { return *done || state_->ended; });
  if (*done) return {};
  if (over) return Status(Fault::closed, Move::none, "the control thread was stopped");
  return Status(Fault::timeout, Move::give_up,
                "the control thread has been busy for " + std::to_string(run_deadline.count() / 1000) +
                    " s; a handler on it waits for something that does not come");
}

asio::io_context& ControlThread::context() { return state_->context; }

bool ControlThread::is_current() const { return state_->id.load() == std::this_thread::get_id(); }

void ControlThread::stop() {
  CR_ASSERT(!is_current());
  state_->context.stop();
  {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->joined, true)) return;
  }
  state_->thread.join();
}

}  // namespace closeranks::control
