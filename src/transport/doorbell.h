// A doorbell wakes the sleeping threads of a process after somebody stored into shared memory. It costs a fence and a
// load while nobody sleeps. Both sides order store and look like Dekker's: the ringer stores, fences, looks for
// sleepers; the sleeper says it sleeps, fences, looks for the store. So one of the two sees the other.
#pragma once

#include <atomic>
#include <cstdint>

namespace closeranks::transport {

// In the life memfd of the process that sleeps.
struct DoorbellWords {
  alignas(64) std::atomic<std::uint32_t> sleepers{0};
  alignas(64) std::atomic<std::uint32_t> bell{0};
};
static_assert(sizeof(DoorbellWords) == 128);

// A view of the words; copyable, does not own them. Any thread, any process that maps them.
class Doorbell {
 public:
  Doorbell() = default;
  explicit Doorbell(DoorbellWords* words) : words_(words) {}

  // After one's own stores (release or relaxed): wakes whoever sleeps. Contains the full fence.
  void ring() const {
    fence();
    ring_fenced();
  }
  // For many bells after one store: fence() once, then ring_fenced() on each.
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  void ring_fenced() const {
    if (words_->sleepers.load(std::memory_order_relaxed) != 0) {
      wake();
    }
  }

  // The sleeper's side; Waiter (waiter.h) uses it. arm() announces a sleeper and returns the value to wait on; the
  // caller then looks for work once more and sleeps only if there is none. disarm() ends it, slept or not.
  [[nodiscard]] std::uint32_t arm() const;
  void disarm() const;
  [[nodiscard]] const std::atomic<std::uint32_t>& bell() const { return words_->bell; }

 private:
  void wake() const;
  DoorbellWords* words_ = nullptr;
};

}  // namespace closeranks::transport
