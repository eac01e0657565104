// Places in the staging region of one's own segment. First fit from the start, so that the same pages are used again
// and again: they are in the caches, and a fresh page costs ten microseconds. Not thread-safe (drive lock).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace closeranks::communicator {

class RegionAllocator {
 public:
  // Two cache lines: neighbours never share one, and the adjacent-line prefetcher does not make them.
  static constexpr std::uint64_t alignment = 128;

  explicit RegionAllocator(std::uint64_t region_bytes);
  // Offset of `bytes` > 0 bytes, or nullopt while there is no room.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes);
  // Gives back what allocate(bytes) returned.
  void release(std::uint64_t offset, std::uint64_t bytes);

 private:
  struct Hole {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  std::vector<Hole> holes_;  // ascending, never touching: at most one more than there are entries in flight
};

}  // namespace closeranks::communicator
