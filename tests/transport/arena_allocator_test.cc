#include "transport/arena_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace closeranks::transport {
namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t first = 2 * mib;

TEST(ArenaRanges, NeighboursAreOneRange) {
  ArenaRanges ranges;
  ranges.insert({100, 10});
  ranges.insert({120, 10});
  EXPECT_EQ(ranges.count(), 2u);
  ranges.insert({110, 10});
  EXPECT_EQ(ranges.count(), 1u);
  EXPECT_EQ(ranges.largest(), (ArenaRange{100, 30}));
  EXPECT_EQ(ranges.bytes(), 30u);
}

TEST(ArenaRanges, ErasesAcrossRanges) {
  ArenaRanges ranges;
  ranges.insert({0, 10});
  ranges.insert({20, 10});
  ranges.insert({40, 10});
  EXPECT_EQ(ranges.parts_in({5, 40}), (std::vector<ArenaRange>{{5, 5}, {20, 10}, {40, 5}}));
  EXPECT_EQ(ranges.gaps_in({5, 40}), (std::vector<ArenaRange>{{10, 10}, {30, 10}}));
  EXPECT_EQ(ranges.gaps_in({60, 5}), (std::vector<ArenaRange>{{60, 5}}));
  EXPECT_TRUE(ranges.parts_in({10, 10}).empty());
  EXPECT_EQ(ranges.erase({5, 40}), 20u);
  EXPECT_EQ(ranges.parts_in({0, 100}), (std::vector<ArenaRange>{{0, 5}, {45, 5}}));
  EXPECT_EQ(ranges.erase({1, 2}), 2u);  // the middle of one
  EXPECT_EQ(ranges.parts_in({0, 100}), (std::vector<ArenaRange>{{0, 1}, {3, 2}, {45, 5}}));
  EXPECT_EQ(ranges.bytes(), 8u);
}

TEST(ArenaRanges, TheSmallestThatFits) {
  ArenaRanges ranges;
  EXPECT_FALSE(ranges.best_fit(1, 1).has_value());
  ranges.insert({0, 100});
  ranges.insert({200, 30});
  ranges.insert({310, 40});
  EXPECT_EQ(ranges.best_fit(30, 1), 200u);
  EXPECT_EQ(ranges.best_fit(31, 1), 310u);
  EXPECT_EQ(ranges.best_fit(30, 128), 0u);
  EXPECT_EQ(ranges.best_fit(25, 16), 320u) << "208 leaves 22 of the 30 bytes";
  EXPECT_FALSE(ranges.best_fit(101, 1).has_value());
}

TEST(ArenaAllocator, WholePagesWithinItsRange) {
  ArenaAllocator allocator(first, 16 * mib);
  const auto one = allocator.allocate(1);
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(*one, first);
  EXPECT_EQ(allocator.block_bytes(*one), 4096u);
  EXPECT_EQ(allocator.block_bytes(*one + 4096), 0u);
  EXPECT_EQ(allocator.in_use_bytes(), 4096u);
  EXPECT_EQ(allocator.blocks(), 1u);
  EXPECT_FALSE(allocator.allocate(0).has_value());
  EXPECT_FALSE(allocator.allocate(16 * mib).has_value());
  EXPECT_FALSE(allocator.allocate(~std::uint64_t{0}).has_value());
  const auto rest = allocator.allocate(16 * mib - 4096);
  EXPECT_EQ(rest, first + 4096);
  EXPECT_FALSE(allocator.allocate(1).has_value());
  allocator.release(*rest);
  allocator.release(*one);
  EXPECT_EQ(allocator.in_use_bytes(), 0u);
  EXPECT_EQ(allocator.allocate(16 * mib), first) << "all of it is one range again";
}

TEST(ArenaAllocator, NoneOfNothing) {
  ArenaAllocator allocator(first, 0);
  EXPECT_FALSE(allocator.allocate(1).has_value());
  EXPECT_FALSE(allocator.take_surplus().has_value());
}

TEST(ArenaAllocator, LargeBlocksBeginAtHugePages) {
  ArenaAllocator allocator(first, 64 * mib);
  const auto small = allocator.allocate(1 * mib);
  const auto large = allocator.allocate(5 * mib);
  const auto other = allocator.allocate(1 * mib);
  EXPECT_EQ(small, first);
  EXPECT_EQ(large, first + 2 * mib);
  EXPECT_EQ(other, first + 1 * mib) << "the hole before an aligned block is used";
  // Where no aligned place is left, any place does.
  ArenaAllocator narrow(first + 4096, 3 * mib);
  EXPECT_EQ(narrow.allocate(2 * mib), first + 4096);
}

TEST(ArenaAllocator, WarmMemoryFirst) {
  ArenaAllocator allocator(first, 64 * mib);
  const auto a = allocator.allocate(4 * mib);
  const auto b = allocator.allocate(8 * mib);
  const auto c = allocator.allocate(4 * mib);
  allocator.release(*b);
  EXPECT_EQ(allocator.idle_bytes(), 8 * mib);
  EXPECT_EQ(allocator.allocate(3 * mib), b);
  // 5 MiB are left there, not at a huge page's beginning: warm all the same.
  EXPECT_EQ(allocator.allocate(5 * mib), *b + 3 * mib);
  EXPECT_EQ(allocator.idle_bytes(), 0u);
  allocator.release(*a);
  allocator.release(*c);
  EXPECT_EQ(allocator.allocate(8 * mib), *c) << "c is warm and its neighbour free; a is too short";
}

TEST(ArenaAllocator, RetiredRangesAreNeverUsedAgain) {
  ArenaAllocator allocator(first, 8 * mib);
  const auto block = allocator.allocate(8 * mib);
  allocator.release(*block);
  allocator.retire({first + 2 * mib, 4096});
  EXPECT_EQ(allocator.retired_bytes(), 4096u);
  std::uint64_t total = 0;
  while (const auto offset = allocator.allocate(4096)) {
    EXPECT_NE(*offset, first + 2 * mib);
    total += 4096;
  }
  EXPECT_EQ(total, 8 * mib - 4096);
}

TEST(ArenaAllocator, KeepsWhatRecentUseWouldTakeAgain) {
  ArenaAllocator allocator(first, 64ull << 30);
  std::vector<std::uint64_t> blocks;
  for (int i = 0; i < 64; ++i) {
    blocks.push_back(*allocator.allocate(32 * mib));
  }
  const std::uint64_t peak = allocator.in_use_bytes();
  for (const std::uint64_t block : blocks) {
    allocator.release(block);
    EXPECT_FALSE(allocator.take_surplus().has_value());
  }
  EXPECT_EQ(allocator.idle_bytes(), peak);
  // Much smaller use for two periods: the rest goes.
  for (std::uint64_t i = 0; i < 2 * ArenaAllocator::recent_allocations; ++i) {
    allocator.release(*allocator.allocate(1 * mib));
  }
  EXPECT_EQ(allocator.idle_limit(), ArenaAllocator::idle_slack_bytes + 1 * mib);
  std::uint64_t given = 0;
  std::vector<ArenaRange> ranges;
  while (const auto range = allocator.take_surplus()) {
    EXPECT_EQ(range->offset % (2 * mib), 0u);
    EXPECT_EQ(range->bytes % (2 * mib), 0u);
    given += range->bytes;
    ranges.push_back(*range);
  }
  EXPECT_GE(given, peak - allocator.idle_limit());
  EXPECT_EQ(allocator.idle_bytes(), peak - given);
  EXPECT_GE(allocator.idle_bytes(), allocator.idle_limit() - ArenaAllocator::idle_slack_bytes / 4 - 2 * mib);
  // Nobody gets a range on its way out.
  EXPECT_FALSE(allocator.allocate((64ull << 30) - given + 4096).has_value());
  for (const ArenaRange range : ranges) {
    allocator.given_back(range);
  }
  EXPECT_EQ(allocator.allocate(64ull << 30), first);
}

TEST(ArenaAllocator, GivesSmallPiecesBackToo) {
  ArenaAllocator allocator(first, 64ull << 30);
  // Idle pieces of 1 MiB between blocks of 1 MiB: none holds a whole huge page.
  std::vector<std::uint64_t> blocks;
  for (int i = 0; i < 2048; ++i) {
    blocks.push_back(*allocator.allocate(1 * mib));
  }
  for (int i = 0; i < 2048; i += 2) {
    allocator.release(blocks[static_cast<std::size_t>(i)]);
  }
  EXPECT_FALSE(allocator.take_surplus().has_value());
  // From another size: the peak is forgotten, the pieces do not fit.
  for (std::uint64_t i = 0; i < 2 * ArenaAllocator::recent_allocations; ++i) {
    allocator.release(*allocator.allocate(2 * mib));
  }
  int pieces = 0;
  while (const auto range = allocator.take_surplus()) {
    EXPECT_GE(range->bytes, 1 * mib);
    allocator.given_back(*range);
    ++pieces;
  }
  EXPECT_GT(pieces, 700);
  EXPECT_LE(allocator.idle_bytes(), allocator.idle_limit());
}

// Against a model that knows only who owns which bytes.
TEST(ArenaAllocator, RandomUseNeverOverlapsAndIsBounded) {
  constexpr std::uint64_t capacity = 4ull << 30;
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    ArenaAllocator allocator(first, capacity);
    std::map<std::uint64_t, std::uint64_t> live;
    std::uint64_t in_use = 0;
    std::uint64_t peak = 0;
    for (int step = 0; step < 20'000; ++step) {
      if (live.empty() || (random() % 5 < 3 && in_use < capacity / 2)) {
        const std::uint64_t bytes = 1 + random() % (random() % 4 == 0 ? 64 * mib : 4 * mib);
        const auto offset = allocator.allocate(bytes);
        if (!offset.has_value()) continue;
        const std::uint64_t whole = allocator.block_bytes(*offset);
        ASSERT_GE(whole, bytes);
        ASSERT_EQ(*offset % 4096, 0u);
        ASSERT_GE(*offset, first);
        ASSERT_LE(*offset + whole, first + capacity);
        const auto next = live.lower_bound(*offset);
        ASSERT_TRUE(next == live.end() || next->first >= *offset + whole) << "seed " << seed << " step " << step;
        if (next != live.begin()) {
          ASSERT_LE(std::prev(next)->first + std::prev(next)->second, *offset) << "seed " << seed << " step " << step;
        }
        live.emplace(*offset, whole);
        in_use += whole;
        peak = std::max(peak, in_use);
      } else {
        auto victim = live.lower_bound(first + random() % capacity);
        if (victim == live.end()) victim = live.begin();
        allocator.release(victim->first);
        in_use -= victim->second;
        live.erase(victim);
        while (const auto range = allocator.take_surplus()) {
          allocator.given_back(*range);
        }
        ASSERT_LE(allocator.idle_bytes() + in_use, peak + ArenaAllocator::idle_slack_bytes);
      }
      ASSERT_EQ(allocator.in_use_bytes(), in_use);
      ASSERT_EQ(allocator.blocks(), live.size());
    }
    for (const auto& [offset, bytes] : live) {
      allocator.release(offset);
    }
    EXPECT_EQ(allocator.allocate(capacity), first) << "seed " << seed;
  }
}

}  // namespace
}  // namespace closeranks::transport
