// The group's timeout and torch's ephemeral extensions of it.
#pragma once

#include <chrono>
#include <mutex>

namespace closeranks::torch_binding {

// An extension counts for every op issued after it, until the first of those is done. Thread-safe.
class Timeouts {
 public:
  explicit Timeouts(std::chrono::milliseconds base) : base_(base) {}

  void set_base(std::chrono::milliseconds base) {
    const std::lock_guard lock(mutex_);
    base_ = base;
  }
  void extend(std::chrono::milliseconds by) {
    const std::lock_guard lock(mutex_);
    extension_ += by;
    unclaimed_ += by;
  }

  struct Assigned {
    std::chrono::milliseconds timeout{0};
    std::chrono::milliseconds owned{0};  // the extension that ends with this op: hand it to finished()
  };
  // For a new op; `asked` negative: the group's own.
  Assigned assign(std::chrono::milliseconds asked) {
    const std::lock_guard lock(mutex_);
    const Assigned assigned{(asked.count() < 0 ? base_ : asked) + extension_, unclaimed_};
    unclaimed_ = std::chrono::milliseconds{0};
    return assigned;
  }
  void finished(std::chrono::milliseconds owned) {
    if (owned.count() == 0) {
      return;
    }
    const std::lock_guard lock(mutex_);
    extension_ -= owned;
  }

 private:
  std::mutex mutex_;
  std::chrono::milliseconds base_;
  std::chrono::milliseconds extension_{0};
  std::chrono::milliseconds unclaimed_{0};
};

}  // namespace closeranks::torch_binding
