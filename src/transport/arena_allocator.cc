#include "transport/arena_allocator.h"

#include <algorithm>

#include "base/assert.h"

namespace closeranks::transport {
namespace {

constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) { return value / unit * unit; }
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return round_down(value + unit - 1, unit); }

}  // namespace

void ArenaRanges::add(std::uint64_t offset, std::uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
  bytes_ += bytes;
}

void ArenaRanges::remove(std::map<std::uint64_t, std::uint64_t>::iterator at) {
  by_size_.erase({at->second, at->first});
  bytes_ -= at->second;
  by_offset_.erase(at);
}

void ArenaRanges::insert(ArenaRange range) {
  if (range.bytes == 0) {
    return;
  }
  auto next = by_offset_.lower_bound(range.offset);
  CR_ASSERT(next == by_offset_.end() || next->first >= range.end());
  if (next != by_offset_.begin()) {
    const auto before = std::prev(next);
    CR_ASSERT(before->first + before->second <= range.offset);
    if (before->first + before->second == range.offset) {
      range = {before->first, before->second + range.bytes};
      remove(before);
    }
  }
  if (next != by_offset_.end() && next->first == range.end()) {
    range.bytes += next->second;
    remove(next);
  }
  add(range.offset, range.bytes);
}

std::uint64_t ArenaRanges::erase(ArenaRange range) {
  std::uint64_t taken = 0;
  for (const ArenaRange part : parts_in(range)) {
    const auto at = std::prev(by_offset_.upper_bound(part.offset));
    const ArenaRange found{at->first, at->second};
    remove(at);
    if (found.offset < part.offset) {
      add(found.offset, part.offset - found.offset);
    }
    if (found.end() > part.end()) {
      add(part.end(), found.end() - part.end());
    }
    taken += part.bytes;
  }
  return taken;
}

std::vector<ArenaRange> ArenaRanges::parts_in(ArenaRange range) const {
  std::vector<ArenaRange> parts;
  auto at = by_offset_.upper_bound(range.offset);
  if (at != by_offset_.begin()) {
    --at;
  }
  for (; at != by_offset_.end() && at->first < range.end(); ++at) {
    const std::uint64_t begin = std::max(at->first, range.offset);
    const std::uint64_t end = std::min(at->first + at->second, range.end());
    if (begin < end) {
      parts.push_back({begin, end - begin});
    }
  }
  return parts;
}

std::vector<ArenaRange> ArenaRanges::gaps_in(ArenaRange range) const {
  std::vector<ArenaRange> gaps;
  std::uint64_t from = range.offset;
  for (const ArenaRange part : parts_in(range)) {
    if (from < part.offset) {
      gaps.push_back({from, part.offset - from});
    }
    from = part.end();
  }
  if (from < range.end()) {
    gaps.push_back({from, range.end() - from});
  }
  return gaps;
}

std::optional<std::uint64_t> ArenaRanges::best_fit(std::uint64_t bytes, std::uint64_t alignment) const {
  for (auto at = by_size_.lower_bound({bytes, 0}); at != by_size_.end(); ++at) {
    const std::uint64_t skipped = -at->second % alignment;
    if (skipped <= at->first - bytes) {
      return at->second + skipped;
    }
  }
  return std::nullopt;
}

ArenaRange ArenaRanges::largest() const {
  if (by_size_.empty()) {
    return {};
  }
  const auto& [bytes, offset] = *by_size_.rbegin();
  return {offset, bytes};
}

ArenaAllocator::ArenaAllocator(std::uint64_t first, std::uint64_t bytes) {
  CR_ASSERT(first % page_bytes == 0 && bytes % page_bytes == 0);
  free_.insert({first, bytes});
}

std::optional<std::uint64_t> ArenaAllocator::place(std::uint64_t bytes) const {
  for (const ArenaRanges* ranges : {&warm_, &free_}) {
    if (bytes >= huge_bytes) {
      if (const auto aligned = ranges->best_fit(bytes, huge_bytes); aligned.has_value()) {
        return aligned;
      }
    }
    if (const auto found = ranges->best_fit(bytes, page_bytes); found.has_value()) {
      return found;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> ArenaAllocator::allocate(std::uint64_t bytes) {
  if (bytes == 0 || bytes > free_.bytes()) {
    return std::nullopt;
  }
  bytes = round_up(bytes, page_bytes);
  const auto offset = place(bytes);
  if (!offset.has_value()) {
    return std::nullopt;
  }
  CR_ASSERT(free_.erase({*offset, bytes}) == bytes);
  warm_.erase({*offset, bytes});
  blocks_.emplace(*offset, bytes);
  in_use_ += bytes;
  if (++allocations_ % recent_allocations == 0) {
    previous_peak_ = std::exchange(peak_, 0);
  }
  peak_ = std::max(peak_, in_use_);
  return offset;
}

std::uint64_t ArenaAllocator::block_bytes(std::uint64_t offset) const {
  const auto found = blocks_.find(offset);
  return found == blocks_.end() ? 0 : found->second;
}

void ArenaAllocator::release(std::uint64_t offset) {
  const auto found = blocks_.find(offset);
  CR_ASSERT(found != blocks_.end());
  const ArenaRange range{offset, found->second};
  blocks_.erase(found);
  in_use_ -= range.bytes;
  free_.insert(range);
  warm_.insert(range);
}

void ArenaAllocator::retire(ArenaRange range) {
  CR_ASSERT(free_.erase(range) == range.bytes);
  warm_.erase(range);
  retired_ += range.bytes;
}

std::uint64_t ArenaAllocator::idle_limit() const {
  return std::max(peak_, previous_peak_) - in_use_ + idle_slack_bytes;
}

std::optional<ArenaRange> ArenaAllocator::take_surplus() {
  if (warm_.bytes() <= idle_limit()) {
    return std::nullopt;
  }
  // A quarter of the slack beyond the excess, so that the next small release does not call again.
  const std::uint64_t wanted = round_up(warm_.bytes() - idle_limit() + idle_slack_bytes / 4, huge_bytes);
  ArenaRange taken = warm_.largest();
  const std::uint64_t first_huge = round_up(taken.offset, huge_bytes);
  const std::uint64_t last_huge = round_down(taken.end(), huge_bytes);
  if (first_huge < last_huge) {
    // The end of the range; a part of a huge page would split it. A range without one goes as it is.
    const std::uint64_t begin = last_huge - std::min(wanted, last_huge - first_huge);
    taken = {begin, last_huge - begin};
  }
  free_.erase(taken);
  warm_.erase(taken);
  return taken;
}

void ArenaAllocator::given_back(ArenaRange range) { free_.insert(range); }

}  // namespace closeranks::transport
