// Memory that the peers of this host can read and write in place: tensors that live here take part in collectives
// without a staging copy. docs/arenas.md says what is shared, and what a fork does to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace closeranks {

// The process's shared arena. Any thread. In a fork child of the process that made it, blocks stay readable and
// writable (the child's writes are its own), allocate() has no room, and release() does nothing.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;

  // A block of at least `bytes`, aligned to the page, with pages of its own; its contents are whatever was there.
  // nullptr: no room (no arena on this machine, the arena is full, its engine has stopped, bytes is 0), and the caller
  // takes ordinary memory. Blocks that were released are reused first: their pages are there already.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // Precondition: `block` came from allocate() of this object and was not released yet; nullptr does nothing. Ops on
  // the block must have ended.
  virtual void release(std::byte* block) = 0;
  // True if all of [data, data + bytes) is memory that peers can work on in place.
  [[nodiscard]] virtual bool contains(const void* data, std::size_t bytes) const = 0;

  struct Usage {
    std::uint64_t capacity_bytes = 0;  // address space, 0: no arena; memory is taken as pages are touched
    std::uint64_t in_use_bytes = 0;    // of blocks not yet released, in whole pages
    std::uint64_t blocks = 0;          // not yet released
    std::uint64_t held_bytes = 0;      // part of in_use_bytes: released, kept for fork children that inherited it
    std::uint64_t idle_bytes = 0;      // released and kept for the next blocks
    std::uint64_t resident_bytes =
        0;  // memory that the system has given: at most in use + idle, small deviations apart
    std::uint64_t given_back_bytes = 0;  // returned to the system since the start
    std::uint64_t retired_bytes = 0;     // address space never used again: blocks of ops that failed (docs/arenas.md)
  };
  [[nodiscard]] virtual Usage usage() const = 0;
};

}  // namespace closeranks
