#include "transport/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <ctime>

#include "base/assert.h"

namespace closeranks::transport {
namespace {

timespec to_timespec(std::chrono::steady_clock::time_point until) {
  // steady_clock is CLOCK_MONOTONIC on Linux (libstdc++ and libc++).
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch()).count();
  return {static_cast<time_t>(since / 1'000'000'000), static_cast<long>(since % 1'000'000'000)};
}

}  // namespace

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void futex_wait(const FutexWord& word, std::chrono::steady_clock::time_point until) {
  const timespec when = to_timespec(until);
  // WAIT_BITSET takes an absolute time of the monotonic clock.
  ::syscall(SYS_futex, word.address, FUTEX_WAIT_BITSET, word.expected, &when, nullptr, FUTEX_BITSET_MATCH_ANY);
}

bool futex_wait_any(std::span<const FutexWord> words, std::chrono::steady_clock::time_point until) {
  CR_ASSERT(words.size() <= FUTEX_WAITV_MAX);
  std::array<::futex_waitv, FUTEX_WAITV_MAX> list;
  for (std::size_t i = 0; i < words.size(); ++i) {
    list[i] = {.val = words[i].expected,
               .uaddr = reinterpret_cast<std::uintptr_t>(words[i].address),
               .flags = FUTEX_32,
               .__reserved = 0};
  }
  const timespec when = to_timespec(until);
  const long result = ::syscall(SYS_futex_waitv, list.data(), words.size(), 0, &when, CLOCK_MONOTONIC);
  return !(result < 0 && (errno == ENOSYS || errno == EPERM));
}

}  // namespace closeranks::transport
