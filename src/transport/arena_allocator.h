// Which offsets of an arena are in use: best fit with coalescing, over address space only. Pure: touches no memory and
// reads no clock; OwnArena does what it says. One thread at a time.
//
// Address space is plenty and memory is not, so free space has two temperatures: warm ranges have been used and still
// hold pages, cold ones hold none. Warm ranges are used first: the first touch of a fresh page costs 10 us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace closeranks::transport {

struct ArenaRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  [[nodiscard]] std::uint64_t end() const { return offset + bytes; }
  friend bool operator==(const ArenaRange&, const ArenaRange&) = default;
};

// Disjoint ranges, found by place and by size; neighbours are one range.
class ArenaRanges {
 public:
  // Precondition: overlaps none of the ranges.
  void insert(ArenaRange range);
  // Takes whatever of the ranges lies in `range` out; returns the bytes taken.
  std::uint64_t erase(ArenaRange range);
  // The parts of `range` that are in these ranges, and those that are not; each ascending.
  [[nodiscard]] std::vector<ArenaRange> parts_in(ArenaRange range) const;
  [[nodiscard]] std::vector<ArenaRange> gaps_in(ArenaRange range) const;
  // Where in the smallest range that has room for it a block of `bytes` at a multiple of `alignment` (a power of two)
  // begins.
  [[nodiscard]] std::optional<std::uint64_t> best_fit(std::uint64_t bytes, std::uint64_t alignment) const;
  // The largest range; bytes is 0 when there is none.
  [[nodiscard]] ArenaRange largest() const;
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t count() const { return by_offset_.size(); }

 private:
  void add(std::uint64_t offset, std::uint64_t bytes);
  void remove(std::map<std::uint64_t, std::uint64_t>::iterator at);
  std::map<std::uint64_t, std::uint64_t> by_offset_;           // offset -> bytes
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // (bytes, offset)
  std::uint64_t bytes_ = 0;
};

class ArenaAllocator {
 public:
  // Blocks are whole pages.
  static constexpr std::uint64_t page_bytes = 4096;
  // Blocks of this size begin at a huge page where that takes no fresh memory: their pages are then nobody else's.
  static constexpr std::uint64_t huge_bytes = 2ull << 20;
  // Memory that is kept beyond what recent use would take again. As much as a few large temporaries, and what malloc
  // keeps at most of large blocks is of the same order.
  static constexpr std::uint64_t idle_slack_bytes = 256ull << 20;
  // "Recent" is this many allocations: some tens of training steps, whose activations come and go in each.
  static constexpr std::uint64_t recent_allocations = 4096;

  // Offsets first .. first + bytes, all cold. Precondition: both are multiples of the page.
  ArenaAllocator(std::uint64_t first, std::uint64_t bytes);

  // Offset of a block of at least `bytes`, in whole pages; nullopt: no range is that long, or bytes is 0.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes);
  // Length of the block that begins at `offset`; 0: none does.
  [[nodiscard]] std::uint64_t block_bytes(std::uint64_t offset) const;
  // The block's range becomes warm. Precondition: block_bytes(offset) > 0.
  void release(std::uint64_t offset);
  // `range` is never handed out again. Precondition: all of it is free.
  void retire(ArenaRange range);

  // A range of warm memory to give back, while more is idle than idle_limit(): the largest ones first, whole huge
  // pages. It is in nobody's hands until given_back() says that it holds no page any more, and is then cold.
  std::optional<ArenaRange> take_surplus();
  void given_back(ArenaRange range);

  [[nodiscard]] std::uint64_t in_use_bytes() const { return in_use_; }
  [[nodiscard]] std::uint64_t blocks() const { return blocks_.size(); }
  [[nodiscard]] std::uint64_t idle_bytes() const { return warm_.bytes(); }
  [[nodiscard]] std::uint64_t retired_bytes() const { return retired_; }
  // So much that in use and idle together are the most that was in use of late, and idle_slack_bytes.
  [[nodiscard]] std::uint64_t idle_limit() const;

 private:
  [[nodiscard]] std::optional<std::uint64_t> place(std::uint64_t bytes) const;
  ArenaRanges free_;
  ArenaRanges warm_;                                         // within free_
  std::unordered_map<std::uint64_t, std::uint64_t> blocks_;  // offset -> bytes
  std::uint64_t in_use_ = 0;
  std::uint64_t retired_ = 0;
  // Most in use at once, in the current period of recent_allocations and the one before.
  std::uint64_t peak_ = 0;
  std::uint64_t previous_peak_ = 0;
  std::uint64_t allocations_ = 0;
};

}  // namespace closeranks::transport
