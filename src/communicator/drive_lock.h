// The drive lock: held by whoever drives, from one action to the next as long as nobody else wants it. Everybody else
// (a caller that issues, the control thread that freezes or installs) says that he wants it, and the driver lets him in
// between two actions. Two drivers do not queue for each other: one drives for both. Who is turned away and goes to
// sleep is rung for when the lock is free: he may have to do what the holder has left.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace closeranks::communicator {

class DriveLock {
 public:
  // `ring`: wakes this process's sleepers. Before the lock is used by a second thread.
  void rings(std::function<void()> ring) { ring_ = std::move(ring); }

  // For everybody but drivers. Waits for at most the action in progress: a reduction or a copy of one piece.
  void lock() {
    if (!take()) lock_slowly();
  }
  void unlock() {
    const std::uint32_t before = state_.exchange(0, std::memory_order_acq_rel);
    if (before != held) wake(before);
  }

  // For drivers: false when somebody holds or wants it; then the sleepers are rung for once it is free.
  [[nodiscard]] bool try_lock() {
    if (wanted_.load(std::memory_order_relaxed) == 0 && take()) return true;
    return try_lock_slowly();
  }
  // For the driver that holds it, between two actions: true when it should let go and come back.
  [[nodiscard]] bool wanted() const { return wanted_.load(std::memory_order_relaxed) != 0; }
  // For the driver that lets go with work left.
  void leave_work() { state_.fetch_or(turned_away, std::memory_order_relaxed); }

 private:
  static constexpr std::uint32_t held = 1;
  static constexpr std::uint32_t waited_for = 2;   // by sleepers in lock()
  static constexpr std::uint32_t turned_away = 4;  // somebody must be rung for

  // Bits of others stay.
  bool take() {
    std::uint32_t current = state_.load(std::memory_order_relaxed);
    return (current & held) == 0 && state_.compare_exchange_strong(current, current | held, std::memory_order_acquire,
                                                                   std::memory_order_relaxed);
  }
  void lock_slowly();
  bool try_lock_slowly();
  void wake(std::uint32_t before);

  std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> wanted_{0};
  std::function<void()> ring_;
};

}  // namespace closeranks::communicator
