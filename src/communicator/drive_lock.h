// The drive lock: held for one action of the engine at a time, by whoever drives. Everybody else (a caller that issues,
// the control thread that freezes or installs) says that he wants it, and the driver lets him in between two actions.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace closeranks::communicator {

class DriveLock {
 public:
  // For everybody but drivers. Waits for at most the action in progress: a reduction or a copy of one piece.
  void lock() {
    wanted_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
    wanted_.fetch_sub(1, std::memory_order_relaxed);
  }
  void unlock() { mutex_.unlock(); }

  // For drivers: false when somebody holds or wants it. Two drivers do not queue for each other: one drives for both.
  [[nodiscard]] bool try_lock() { return wanted_.load(std::memory_order_relaxed) == 0 && mutex_.try_lock(); }
  // For the driver that holds it, between two actions: true when it should let go and come back.
  [[nodiscard]] bool wanted() const { return wanted_.load(std::memory_order_relaxed) != 0; }

 private:
  std::atomic<std::uint32_t> wanted_{0};
  std::mutex mutex_;
};

}  // namespace closeranks::communicator
