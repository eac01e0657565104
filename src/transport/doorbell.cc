#include "transport/doorbell.h"

#include "transport/futex.h"

namespace closeranks::transport {

void Doorbell::wake() const {
  words_->bell.fetch_add(1, std::memory_order_release);
  futex_wake_all(words_->bell);
}

std::uint32_t Doorbell::arm() const {
  words_->sleepers.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Read before the caller looks for work: a ring after this makes the wait return at once.
  return words_->bell.load(std::memory_order_acquire);
}

void Doorbell::disarm() const { words_->sleepers.fetch_sub(1, std::memory_order_relaxed); }

}  // namespace closeranks::transport
