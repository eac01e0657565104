// The futex calls that transport uses, on words shared between processes. Thin: the kernel's words, our types.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>

namespace closeranks::transport {

// Address and value of a wait that ends when the word differs from the value.
struct FutexWord {
  const std::atomic<std::uint32_t>* address = nullptr;
  std::uint32_t expected = 0;
};

// Wakes every thread that waits on `word`.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

// Waits until the word differs, somebody wakes it, a signal arrives or `until` has passed.
void futex_wait(const FutexWord& word, std::chrono::steady_clock::time_point until);

// The same for up to 128 words at once. False, at once: this kernel or sandbox has no futex_waitv.
bool futex_wait_any(std::span<const FutexWord> words, std::chrono::steady_clock::time_point until);

}  // namespace closeranks::transport
