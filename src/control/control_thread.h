// The control thread of a process: one thread that runs one io_context. The control connection, and in a worker the
// segment server too, live on it, so their handlers need no locks among themselves.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "closeranks/status.h"

namespace asio {
class io_context;
}

namespace closeranks::control {

// Handlers on the control thread take microseconds; one that has not come to an end by now never will.
inline constexpr std::chrono::milliseconds run_deadline{30'000};

class ControlThread {
 public:
  // Starts the thread with all signals blocked (they belong to the process's own handlers). `name` is what the
  // kernel shows for it, at most 15 characters.
  explicit ControlThread(const std::string& name);
  // stop().
  ~ControlThread();
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  // Any thread. Runs `action` on the control thread, after everything posted before it. After stop() it never runs.
  void post(std::function<void()> action);
  // Any thread. As post, and returns when `action` has run; at once, on the spot, when called on the control thread.
  // Do not hold a lock that the control thread takes (the drive lock). Fault::closed when the thread was stopped before
  // the action ran; Fault::timeout after run_deadline: the action may still run later, so it must own what it uses.
  Status run(std::function<void()> action);
  // For Asio objects that live on this thread. Objects made on it must be gone before this object is.
  [[nodiscard]] asio::io_context& context();
  [[nodiscard]] bool is_current() const;
  // Any thread but the control thread itself; idempotent. Returns when the thread has ended.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace closeranks::control
