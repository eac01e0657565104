#include "algorithm/seats.h"

#include <gtest/gtest.h>

#include <vector>

#include "algorithm/plan.h"
#include "algorithm/roster.h"

namespace closeranks::algorithm {
namespace {

TEST(Seats, StartInTurn) {
  const Seats seats(4);
  EXPECT_EQ(seats.count(), 4 * seats_per_member);
  for (std::uint32_t seat = 0; seat < seats.count(); ++seat) {
    EXPECT_EQ(seats.owner(seat), Rank{seat % 4});
  }
}

TEST(Seats, OfTheDeadAreSpreadOverTheLiving) {
  Seats seats(4);
  RankSet present(4, true);
  present[1] = false;
  seats.exclude(Rank{1}, present);
  std::vector<std::uint32_t> inherited(4, 0);
  for (std::uint32_t seat = 0; seat < seats.count(); ++seat) {
    if (seat % 4 == 1) {
      ++inherited[seats.owner(seat).value()];
    } else {
      EXPECT_EQ(seats.owner(seat), Rank{seat % 4});  // the living keep theirs
    }
  }
  EXPECT_EQ(inherited, (std::vector<std::uint32_t>{4, 0, 4, 4}));
}

TEST(Seats, ABlockOfTheDeadIsItsHeirs) {
  Seats seats(3);
  EXPECT_EQ(seats.heir(Rank{0}, 7), Rank{0});
  RankSet present(3, true);
  present[0] = false;
  seats.exclude(Rank{0}, present);
  const Rank heir = seats.heir(Rank{0}, 7);
  EXPECT_NE(heir, Rank{0});
  EXPECT_EQ(seats.heir(heir, 7), heir) << "and what the heir has finished is its own";
  EXPECT_NE(seats.heir(Rank{0}, 3), seats.heir(Rank{0}, 6)) << "the next row has another heir";
  present[heir.value()] = false;
  seats.exclude(heir, present);
  const Rank last{3 - heir.value()};
  EXPECT_EQ(seats.heir(Rank{0}, 7), last);
  EXPECT_EQ(seats.heir(heir, 7), last);
}

TEST(Seats, StayWithTheLastOne) {
  Seats seats(1);
  seats.exclude(Rank{0}, RankSet(1, false));
  EXPECT_EQ(seats.owner(0), Rank{0});
}

membership::Departure departure(std::uint32_t slot, std::uint64_t last_op) {
  return {WorkerId{slot}, Slot{slot}, {1, 1}, last_op};
}

membership::GroupResolution resolution(std::vector<membership::Departure> departures) {
  return {GroupKey{1}, {1, 1}, std::move(departures)};
}

// Two views with one exclusion each, or one view with both: the same owners, the same contributors.
TEST(Roster, DoesNotDependOnTheBatches) {
  const std::vector<Slot> slots = {Slot{0}, Slot{1}, Slot{2}, Slot{3}, Slot{4}};
  Roster at_once(slots);
  EXPECT_EQ(at_once.apply(resolution({departure(3, 7), departure(0, 5)}), {}), (std::vector{Rank{3}, Rank{0}}));
  Roster in_turn(slots);
  EXPECT_EQ(in_turn.apply(resolution({departure(3, 7)}), {}), (std::vector{Rank{3}}));
  EXPECT_EQ(in_turn.apply(resolution({departure(3, 7), departure(0, 5)}), {}), (std::vector{Rank{0}}));
  for (std::uint32_t seat = 0; seat < at_once.seats().count(); ++seat) {
    EXPECT_EQ(at_once.seats().owner(seat), in_turn.seats().owner(seat));
  }
  for (std::uint64_t sequence = 0; sequence < 10; ++sequence) {
    for (std::uint32_t member = 0; member < 5; ++member) {
      EXPECT_EQ(at_once.contributes(Rank{member}, sequence), in_turn.contributes(Rank{member}, sequence));
    }
  }
  EXPECT_TRUE(at_once.contributes(Rank{0}, 4));
  EXPECT_FALSE(at_once.contributes(Rank{0}, 5));
  EXPECT_EQ(at_once.lowest_contributor(4), Rank{0});
  EXPECT_EQ(at_once.lowest_contributor(5), Rank{1});
}

TEST(Roster, DecidesALastOpOnce) {
  Roster roster({Slot{0}, Slot{1}, Slot{2}});
  (void)roster.apply(resolution({departure(1, 3)}), {});
  EXPECT_TRUE(roster.apply(resolution({departure(1, 9)}), {}).empty());
  EXPECT_EQ(roster.departed_at(Slot{1}), 3U);
}

TEST(Roster, IgnoresSlotsOutsideTheGroup) {
  Roster roster({Slot{4}, Slot{6}});
  EXPECT_TRUE(roster.apply(resolution({departure(1, 3)}), {}).empty());
  EXPECT_TRUE(roster.all_present());
  EXPECT_EQ(roster.apply(resolution({departure(1, 3), departure(6, 0)}), {}), (std::vector{Rank{1}}));
}

// Whoever comes to a rooted op, at whatever time, finds the same: it follows from the departures alone.
TEST(Roster, KnowsWhichEntriesAreLost) {
  Roster roster({Slot{0}, Slot{1}, Slot{2}});
  (void)roster.apply(resolution({departure(0, 5)}), {});
  const auto plan = [](OpKind kind, Rank root) {
    return make_plan(kind, DType::float32, ReduceOp::sum, root, 1 << 16, 3);
  };
  const auto lost = [&](OpKind kind, Rank root, std::uint64_t sequence, bool lowest = false) {
    return roster.lost(plan(kind, root), sequence, lowest);
  };
  for (const OpKind kind : {OpKind::broadcast, OpKind::gather, OpKind::scatter, OpKind::reduce}) {
    EXPECT_EQ(lost(kind, Rank{0}, 4), std::nullopt) << name_of(kind) << ": it had entered";
    EXPECT_EQ(lost(kind, Rank{0}, 5), Rank{0}) << name_of(kind);
    EXPECT_EQ(lost(kind, Rank{1}, 9), std::nullopt) << name_of(kind) << ": its root is there";
  }
  EXPECT_EQ(lost(OpKind::broadcast, Rank{0}, 5, true), std::nullopt) << "the lowest member is root";
  EXPECT_EQ(lost(OpKind::gather, Rank{0}, 5, true), Rank{0}) << "of broadcasts only";
  for (const OpKind kind :
       {OpKind::all_reduce, OpKind::all_gather, OpKind::reduce_scatter, OpKind::all_to_all, OpKind::barrier}) {
    EXPECT_EQ(lost(kind, Rank{0}, 9), std::nullopt) << name_of(kind);
  }
}

}  // namespace
}  // namespace closeranks::algorithm
