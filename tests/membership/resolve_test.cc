// The decision for one group: last_op of the departed, and that a decision stands.
#include <gtest/gtest.h>

#include "membership/group_status.h"

namespace closeranks::membership {
namespace {

constexpr ViewNumber view{1, 2};

GroupStatus status(std::uint64_t entered, std::uint64_t completed) {
  GroupStatus status;
  status.group = GroupKey(7);
  status.members = {Slot(0), Slot(1), Slot(2), Slot(3)};
  status.policy = Policy::repair;
  status.entered = entered;
  status.completed = completed;
  return status;
}

ExcludedMember excluded(std::uint32_t slot, ViewNumber since = view) {
  return {WorkerId(slot + 1), Slot(slot), since, "killed by signal 9"};
}

TEST(Resolve, TheInputOfTheDeadCountsWhereItAndASurvivorHadEntered) {
  GroupStatus a = status(5, 4);
  a.observed = {{WorkerId(3), 5}};
  GroupStatus b = status(4, 4);
  b.observed = {{WorkerId(3), 5}};
  const GroupResolution resolution = resolve_group({a, b}, view, {excluded(2)});
  ASSERT_EQ(resolution.departures.size(), 1U);
  EXPECT_EQ(resolution.departures[0], (Departure{WorkerId(3), Slot(2), view, 5}));
  EXPECT_EQ(resolution.group, GroupKey(7));
  EXPECT_EQ(resolution.view, view);
}

TEST(Resolve, AnEntryOnlyTheDeadHadEnteredIsVoid) {
  GroupStatus a = status(4, 4);
  a.observed = {{WorkerId(3), 9}};
  const GroupResolution resolution = resolve_group({a}, view, {excluded(2)});
  EXPECT_EQ(resolution.departures.at(0).last_op, 4U);
}

TEST(Resolve, WhatNobodyObservedCountsNowhere) {
  const GroupResolution resolution = resolve_group({status(1, 0)}, view, {excluded(2)});
  EXPECT_EQ(resolution.departures.at(0).last_op, 0U);
}

TEST(Resolve, ADecisionStandsWhoeverTellsIt) {
  GroupStatus a = status(9, 6);  // has installed the earlier view
  a.departures = {{WorkerId(3), Slot(2), {1, 2}, 5}};
  a.observed = {{WorkerId(3), 9}};
  GroupStatus b = status(4, 4);  // has not
  b.observed = {{WorkerId(3), 9}};
  for (const auto& statuses : {std::vector{a, b}, std::vector{b, a}}) {
    const GroupResolution resolution = resolve_group(statuses, {2, 3}, {excluded(2, {1, 2})});
    EXPECT_EQ(resolution.departures, a.departures);
  }
}

TEST(Resolve, ANewDepartureJoinsTheOldOnesInOrder) {
  GroupStatus a = status(9, 8);
  a.departures = {{WorkerId(3), Slot(2), {1, 2}, 5}};
  a.observed = {{WorkerId(2), 8}};
  const GroupResolution resolution = resolve_group({a}, {1, 3}, {excluded(2, {1, 2}), excluded(1, {1, 3})});
  ASSERT_EQ(resolution.departures.size(), 2U);
  EXPECT_EQ(resolution.departures[0].last_op, 5U);
  EXPECT_EQ(resolution.departures[1], (Departure{WorkerId(2), Slot(1), {1, 3}, 8}));
}

TEST(Resolve, DeparturesKeepTheOrderOfExclusion) {
  const GroupResolution resolution = resolve_group({status(2, 1)}, view, {excluded(3), excluded(1)});
  ASSERT_EQ(resolution.departures.size(), 2U);
  EXPECT_EQ(resolution.departures[0].slot, Slot(3));
  EXPECT_EQ(resolution.departures[1].slot, Slot(1));
}

TEST(Resolve, AMemberOfAnotherGroupIsNoneOfItsBusiness) {
  const GroupResolution resolution = resolve_group({status(2, 1)}, view, {excluded(9)});
  EXPECT_TRUE(resolution.departures.empty());
}

TEST(ResolveDeath, StatusesThatContradictEachOtherStopTheProcess) {
  GroupStatus a = status(9, 6);
  a.departures = {{WorkerId(3), Slot(2), {1, 2}, 5}};
  GroupStatus b = status(9, 6);
  b.departures = {{WorkerId(3), Slot(2), {1, 2}, 6}};
  EXPECT_DEATH((void)resolve_group({a, b}, {2, 3}, {}), "same_decision");
}

}  // namespace
}  // namespace closeranks::membership
