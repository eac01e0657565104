#include "algorithm/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace closeranks::algorithm {
namespace {

constexpr OpKind share_kinds[] = {OpKind::all_reduce, OpKind::reduce};
constexpr OpKind take_kinds[] = {OpKind::broadcast,      OpKind::all_gather, OpKind::gather,
                                 OpKind::reduce_scatter, OpKind::scatter,    OpKind::all_to_all};

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

TEST(Plan, EveryKindHasItsStyle) {
  for (const OpKind kind : share_kinds) {
    EXPECT_EQ(plan_for(kind, 1 << 20, 4).style(), BlockStyle::share) << name_of(kind);
  }
  for (const OpKind kind : take_kinds) {
    EXPECT_EQ(plan_for(kind, 1 << 20, 4).style(), BlockStyle::take) << name_of(kind);
    EXPECT_EQ(plan_for(kind, 1 << 20, 4).blocks(), 4U) << name_of(kind);
  }
}

TEST(Plan, AnAllToAllIsNeverInlined) {
  EXPECT_FALSE(plan_for(OpKind::all_to_all, 4, 2).inlined);
  const EntryPlan empty = plan_for(OpKind::all_to_all, 0, 2);
  EXPECT_FALSE(empty.inlined);
  EXPECT_EQ(empty.blocks(), 2U);
}

// Style share: the blocks tile the unit; one destination or all.
TEST(Plan, BlocksTileTheUnit) {
  for (const OpKind kind : share_kinds) {
    for (const std::uint32_t members : {1U, 2U, 3U, 5U, 8U}) {
      for (const std::uint64_t unit : {2'052U, 9'000U, 70'004U, 1'000'000U}) {
        const Rank root{members - 1};
        const EntryPlan plan = plan_for(kind, unit, members, root);
        std::uint64_t next = 0;
        for (std::uint32_t block = 0; block < plan.blocks(); ++block) {
          const BlockPlan planned = block_plan(plan, block);
          EXPECT_EQ(planned.range.offset, next);
          EXPECT_LE(planned.range.bytes, max_block_bytes);
          EXPECT_EQ(planned.range.bytes % size_of(plan.dtype), 0U);
          EXPECT_EQ(planned.all_destinations, kind == OpKind::all_reduce);
          EXPECT_EQ(planned.destination, root);
          next += planned.range.bytes;
        }
        EXPECT_EQ(next, unit) << name_of(kind);
      }
    }
  }
}

TEST(Plan, TakersReadWhatTheKindSays) {
  const std::uint32_t members = 3;
  const Rank root{1};
  const auto plan = [&](OpKind kind, std::uint32_t taker) {
    return take_plan(plan_for(kind, 1 << 20, members, root), root, Rank{taker});
  };
  for (std::uint32_t taker = 0; taker < members; ++taker) {
    const TakePlan broadcast = plan(OpKind::broadcast, taker);
    EXPECT_EQ(broadcast.nothing, taker == 1) << "the root has it";
    EXPECT_EQ(broadcast.source, root);
    EXPECT_EQ(broadcast.input_unit, 0U);
    EXPECT_FALSE(broadcast.all_sources || broadcast.reduced);

    const TakePlan all_gather = plan(OpKind::all_gather, taker);
    EXPECT_TRUE(all_gather.all_sources && !all_gather.nothing && !all_gather.reduced);
    EXPECT_EQ(all_gather.input_unit, 0U);

    const TakePlan gather = plan(OpKind::gather, taker);
    EXPECT_EQ(gather.nothing, taker != 1) << "only the root gets anything";
    EXPECT_TRUE(gather.all_sources);
    EXPECT_EQ(gather.input_unit, 0U);

    const TakePlan scatter = plan(OpKind::scatter, taker);
    EXPECT_FALSE(scatter.nothing || scatter.all_sources || scatter.reduced);
    EXPECT_EQ(scatter.source, root);
    EXPECT_EQ(scatter.input_unit, taker);

    const TakePlan reduce_scatter = plan(OpKind::reduce_scatter, taker);
    EXPECT_TRUE(reduce_scatter.reduced && !reduce_scatter.nothing && !reduce_scatter.all_sources);
    EXPECT_EQ(reduce_scatter.input_unit, taker);

    const TakePlan all_to_all = plan(OpKind::all_to_all, taker);
    EXPECT_TRUE(all_to_all.all_sources && !all_to_all.nothing && !all_to_all.reduced);
    EXPECT_EQ(all_to_all.input_unit, taker);
  }
}

TEST(Plan, InputsHaveRoomForWhatIsTaken) {
  const std::uint32_t members = 3;
  const std::uint64_t unit = 1 << 20;
  for (const OpKind kind : take_kinds) {
    const EntryPlan plan = plan_for(kind, unit, members, Rank{1});
    for (std::uint32_t taker = 0; taker < members; ++taker) {
      const TakePlan taking = take_plan(plan, Rank{1}, Rank{taker});
      for (std::uint32_t source = 0; !taking.nothing && source < members; ++source) {
        if (!taking.all_sources && !taking.reduced && Rank{source} != taking.source) {
          continue;
        }
        const RegionBytes bytes = region_bytes(plan, members, Rank{source});
        EXPECT_LE((taking.input_unit + 1) * unit, bytes.input) << name_of(kind);
        EXPECT_EQ(bytes.output, 0U) << name_of(kind) << ": takers write to the caller's memory";
      }
    }
  }
  const EntryPlan reduce = plan_for(OpKind::reduce, unit, members, Rank{1});
  EXPECT_TRUE(region_bytes(reduce, members, Rank{0}).shared);
  EXPECT_EQ(region_bytes(reduce, members, Rank{0}).output, 0U);
  EXPECT_EQ(region_bytes(reduce, members, Rank{1}).output, unit);
  EXPECT_EQ(region_bytes(plan_for(OpKind::scatter, unit, members, Rank{1}), members, Rank{0}).input, 0U);
  EXPECT_EQ(region_bytes(plan_for(OpKind::barrier, 0, members), members, Rank{0}).input, 0U);
}

TEST(Plan, AMemberLooksForBlocksInItsOwnShareFirst) {
  const EntryPlan plan = plan_for(OpKind::all_reduce, 10 * max_block_bytes, 4);
  ASSERT_EQ(plan.blocks(), 10U);
  std::vector<std::uint32_t> order;
  for (std::uint32_t place = 0; place < claim_places(plan, 4); ++place) {
    if (const auto block = claim_order(plan, 4, Rank{1}, place)) order.push_back(*block);
  }
  EXPECT_EQ(order, (std::vector<std::uint32_t>{1, 5, 9, 6, 2, 7, 3, 8, 4, 0}));
}

TEST(Plan, EveryMemberLooksAtEveryBlockOnce) {
  for (const std::uint32_t members : {1U, 2U, 3U, 8U}) {
    for (const std::uint64_t unit : {2'052U, 9'000U, 70'004U, 1'000'000U}) {
      const EntryPlan plan = plan_for(OpKind::all_reduce, unit, members);
      for (std::uint32_t self = 0; self < members; ++self) {
        std::vector<int> seen(plan.blocks(), 0);
        for (std::uint32_t place = 0; place < claim_places(plan, members); ++place) {
          if (const auto block = claim_order(plan, members, Rank{self}, place)) ++seen[*block];
        }
        EXPECT_EQ(seen, std::vector<int>(plan.blocks(), 1));
      }
    }
  }
}

TEST(Plan, PiecesFitTheBudget) {
  constexpr OpKind kinds[] = {OpKind::all_reduce,     OpKind::reduce,  OpKind::broadcast, OpKind::all_gather,
                              OpKind::reduce_scatter, OpKind::scatter, OpKind::gather,    OpKind::all_to_all};
  for (const OpKind kind : kinds) {
    for (const std::uint32_t members : {1U, 2U, 4U, 64U, 1024U}) {
      const std::uint64_t budget = 1 << 20;
      const std::uint64_t unit = piece_unit_bytes(kind, DType::complex128, members, budget);
      const EntryPlan plan = make_plan(kind, DType::complex128, ReduceOp::sum, Rank{0}, unit, members);
      EXPECT_EQ(unit % size_of(DType::complex128), 0U);
      EXPECT_LE(plan.blocks(), max_blocks(members, budget)) << name_of(kind);
      std::uint64_t fullest = 0;
      for (std::uint32_t member = 0; member < members; ++member) {
        fullest = std::max(fullest, region_bytes(plan, members, Rank{member}).input);
      }
      EXPECT_LE(fullest, budget) << name_of(kind);
      EXPECT_GT(fullest, budget - std::uint64_t{64} * members) << name_of(kind) << ": the budget is used";
    }
  }
}

TEST(PlanDeathTest, RefusesHalfElements) {
  EXPECT_DEATH(make_plan(OpKind::all_reduce, DType::float32, ReduceOp::sum, Rank{0}, 6, 2), "invariant");
}

}  // namespace
}  // namespace closeranks::algorithm
