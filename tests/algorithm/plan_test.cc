#include "algorithm/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace closeranks::algorithm {
namespace {

constexpr OpKind block_kinds[] = {OpKind::all_reduce,     OpKind::broadcast, OpKind::all_gather,
                                  OpKind::reduce_scatter, OpKind::gather,    OpKind::scatter};

EntryPlan plan_for(OpKind kind, std::uint64_t unit_bytes, std::uint32_t members, Rank root = Rank{0}) {
  return make_plan(kind, DType::float32, ReduceOp::sum, root, unit_bytes, members);
}

TEST(Plan, SmallPayloadsTravelInTheDescriptor) {
  EXPECT_TRUE(plan_for(OpKind::all_reduce, inline_bytes, 4).inlined);
  EXPECT_FALSE(plan_for(OpKind::all_reduce, inline_bytes + 4, 4).inlined);
  EXPECT_TRUE(plan_for(OpKind::all_gather, inline_bytes, 4).inlined);
  // Here a member, or the root, brings a unit for everyone.
  EXPECT_TRUE(plan_for(OpKind::reduce_scatter, inline_bytes / 4, 4).inlined);
  EXPECT_FALSE(plan_for(OpKind::reduce_scatter, inline_bytes / 4 + 4, 4).inlined);
  EXPECT_FALSE(plan_for(OpKind::scatter, inline_bytes / 4 + 4, 4).inlined);
  EXPECT_TRUE(plan_for(OpKind::barrier, 0, 4).inlined);
  EXPECT_TRUE(plan_for(OpKind::all_reduce, 0, 4).inlined);
  EXPECT_EQ(plan_for(OpKind::all_reduce, 0, 4).blocks(), 0U);
}

TEST(Plan, BlockSizesStayInTheirBounds) {
  EXPECT_EQ(plan_for(OpKind::all_reduce, 2052, 4).block_bytes, min_block_bytes);
  EXPECT_EQ(plan_for(OpKind::all_reduce, 16 << 20, 4).block_bytes, max_block_bytes);
  EXPECT_EQ(plan_for(OpKind::all_reduce, 64 << 10, 4).block_bytes, 16U << 10);
  EXPECT_EQ(plan_for(OpKind::all_reduce, 100'004, 3).block_bytes % 64, 0U);
}

// Every byte of every output region is written by exactly one block, from a place inside the source's input.
TEST(Plan, BlocksTileTheOutputs) {
  for (const OpKind kind : block_kinds) {
    for (const std::uint32_t members : {1U, 2U, 3U, 5U, 8U}) {
      for (const std::uint64_t unit : {2'052U, 9'000U, 70'004U, 1'000'000U}) {
        const Rank root{members - 1};
        const EntryPlan plan = plan_for(kind, unit, members, root);
        if (plan.inlined) {
          continue;
        }
        for (std::uint32_t member = 0; member < members; ++member) {
          std::vector<Range> written;
          for (std::uint32_t block = 0; block < plan.blocks(); ++block) {
            const BlockPlan planned = block_plan(plan, members, block);
            EXPECT_EQ(planned.seat, block_seat(plan, members, block));
            EXPECT_LT(planned.seat, members * seats_per_member);
            EXPECT_EQ(planned.input.bytes, planned.output.bytes);
            EXPECT_LE(planned.input.bytes, max_block_bytes);
            EXPECT_EQ(planned.input.bytes % size_of(plan.dtype), 0U);
            const Rank source = planned.all_sources ? Rank{0} : planned.source;
            EXPECT_LE(planned.input.offset + planned.input.bytes, region_bytes(plan, members, source).input);
            if (planned.all_destinations || planned.destination == Rank{member}) {
              written.push_back(planned.output);
            }
          }
          std::sort(written.begin(), written.end(), [](Range a, Range b) { return a.offset < b.offset; });
          std::uint64_t next = 0;
          for (const Range& range : written) {
            EXPECT_EQ(range.offset, next);
            next += range.bytes;
          }
          EXPECT_EQ(next, region_bytes(plan, members, Rank{member}).output) << name_of(kind) << " of " << unit;
        }
      }
    }
  }
}

TEST(Plan, ConsecutiveBlocksBelongToDifferentMembers) {
  const EntryPlan plan = plan_for(OpKind::all_reduce, 4 << 20, 4);
  ASSERT_EQ(plan.blocks(), 32U);
  for (std::uint32_t block = 0; block < plan.blocks(); ++block) {
    EXPECT_EQ(block_plan(plan, 4, block).seat % 4, block % 4);
  }
}

TEST(Plan, SeatsFollowTheData) {
  const std::uint32_t members = 3;
  const auto owner = [&](OpKind kind, std::uint32_t block) {
    return block_seat(plan_for(kind, 1 << 20, members, Rank{2}), members, block) % members;
  };
  const std::uint32_t per_unit = plan_for(OpKind::all_gather, 1 << 20, members).blocks_per_unit;
  for (std::uint32_t block = 0; block < members * per_unit; ++block) {
    EXPECT_EQ(owner(OpKind::all_gather, block), block / per_unit);
    EXPECT_EQ(owner(OpKind::reduce_scatter, block), block / per_unit);
    EXPECT_EQ(owner(OpKind::scatter, block), block / per_unit);
    EXPECT_EQ(owner(OpKind::gather, block), 2U);
  }
}

TEST(Plan, PiecesFitTheBudget) {
  for (const OpKind kind : block_kinds) {
    for (const std::uint32_t members : {1U, 2U, 4U, 64U}) {
      const std::uint64_t budget = 1 << 20;
      const std::uint64_t unit = piece_unit_bytes(kind, DType::complex128, members, budget);
      const EntryPlan plan = make_plan(kind, DType::complex128, ReduceOp::sum, Rank{0}, unit, members);
      EXPECT_EQ(unit % size_of(DType::complex128), 0U);
      EXPECT_LE(plan.blocks(), max_blocks(members, budget));
      for (std::uint32_t member = 0; member < members; ++member) {
        const RegionBytes bytes = region_bytes(plan, members, Rank{member});
        EXPECT_LE(bytes.shared ? bytes.input : bytes.input + bytes.output, budget);
      }
    }
  }
}

TEST(PlanDeathTest, RefusesHalfElements) {
  EXPECT_DEATH(make_plan(OpKind::all_reduce, DType::float32, ReduceOp::sum, Rank{0}, 6, 2), "invariant");
}

}  // namespace
}  // namespace closeranks::algorithm
