// The gate between two steps, a worker's part in a round of joining, and what a resolution makes of a group's epoch.
#include <gtest/gtest.h>

#include "membership/boundary_gate.h"
#include "membership/worker.h"

namespace closeranks::membership {
namespace {

constexpr ViewNumber first{1, 2};
constexpr ViewNumber round{1, 3};
constexpr ViewNumber next{1, 4};
using Answer = BoundaryGate::Answer;

TEST(BoundaryGate, PassesUntilItIsHeld) {
  BoundaryGate gate;
  EXPECT_EQ(gate.pass(1), Answer::passed);
  EXPECT_EQ(gate.pass(2), Answer::passed);
  EXPECT_EQ(gate.hold(round), 2U);
  EXPECT_EQ(gate.pass(3), Answer::wait);
  EXPECT_EQ(gate.step(), 2U);
}

TEST(BoundaryGate, BoundariesBelowTheAdmittedOneAreFree) {
  BoundaryGate gate;
  EXPECT_EQ(gate.pass(1), Answer::passed);
  EXPECT_EQ(gate.hold(round), 1U);
  EXPECT_TRUE(gate.admit(round, 4));
  EXPECT_EQ(gate.pass(2), Answer::passed);
  EXPECT_EQ(gate.pass(3), Answer::passed);
  EXPECT_EQ(gate.pass(4), Answer::freeze);
  EXPECT_EQ(gate.pass(4), Answer::wait);  // told once
  EXPECT_TRUE(gate.release(round));
  EXPECT_EQ(gate.pass(4), Answer::passed);
}

TEST(BoundaryGate, AWorkerWithoutAStepHoldsAtItsFirst) {
  BoundaryGate gate;
  EXPECT_EQ(gate.hold(round), 0U);
  EXPECT_TRUE(gate.admit(round, 1));
  EXPECT_EQ(gate.pass(1), Answer::freeze);
}

TEST(BoundaryGate, WordsOfAnotherRoundChangeNothing) {
  BoundaryGate gate;
  EXPECT_FALSE(gate.admit(round, 1));
  EXPECT_EQ(gate.hold(next), 0U);
  EXPECT_FALSE(gate.admit(round, 1));
  EXPECT_FALSE(gate.release(round));
  EXPECT_EQ(gate.pass(1), Answer::wait);
}

TEST(BoundaryGate, WhatIsFrozenIsNotHeldAnew) {
  BoundaryGate gate;
  (void)gate.hold(round);
  (void)gate.admit(round, 1);
  EXPECT_EQ(gate.pass(1), Answer::freeze);
  (void)gate.hold(next);
  EXPECT_EQ(gate.round(), round);
  EXPECT_TRUE(gate.frozen());
}

class Joining : public testing::Test {
 protected:
  Joining() { (void)member_.handle(Welcome{1, first, {}, {}, false, {{Slot(0), WorkerId(1)}}}); }

  // Up to prepared.
  void freeze() {
    EXPECT_TRUE(member_.handle(Hold{round, {newcomer_}}).hold);
    EXPECT_EQ(member_.holding(round, 4).send.size(), 1U);
    EXPECT_TRUE(member_.handle(Admit{round, 5}).admit);
    EXPECT_EQ(member_.frozen(round, {}).send.size(), 1U);
    EXPECT_EQ(member_.state(), Worker::State::frozen);
  }
  Install install(ViewNumber view, bool with_newcomer) const {
    Install install{view, {}, {}, {{Slot(0), WorkerId(1)}}, {}};
    if (with_newcomer) install.members.push_back({Slot(1), WorkerId(5)});
    return install;
  }
  ViewNumber says_prepared() { return std::get<Hello>(member_.connected().send.front()).prepared; }

  WorkerAddress newcomer_{WorkerId(5), Slot(1), 7, "here", "endpoint"};
  Worker member_{WorkerAddress{WorkerId(1), Slot(0), 6, "here", "endpoint"}};
};

TEST_F(Joining, ARoundThatEndsWithItsInstall) {
  freeze();
  EXPECT_TRUE(member_.handle(Transfer{round, 5, {newcomer_}, {}}).transfer);
  EXPECT_EQ(member_.state_served(round).send.size(), 1U);
  const WorkerEffects effects = member_.handle(install(round, true));
  EXPECT_TRUE(effects.install);
  ASSERT_TRUE(effects.round_over);
  EXPECT_TRUE(effects.round_over->joined);
  EXPECT_EQ(member_.members().size(), 2U);
}

TEST_F(Joining, ALostConnectionVoidsAHold) {
  (void)member_.handle(Hold{round, {newcomer_}});
  const WorkerEffects effects = member_.connection_lost();
  ASSERT_TRUE(effects.round_over);
  EXPECT_FALSE(effects.round_over->joined);
  EXPECT_TRUE(member_.holding(round, 4).send.empty());
  EXPECT_FALSE(member_.handle(Admit{round, 5}).admit);
  EXPECT_FALSE(member_.handle(Hold{round, {newcomer_}}).hold);  // out of the broken connection
  EXPECT_TRUE(member_.handle(Hold{next, {newcomer_}}).hold);
}

// The training thread had frozen, and its word comes after the hold was voided.
TEST_F(Joining, AFreezeForAVoidRoundIsUndone) {
  (void)member_.handle(Hold{round, {newcomer_}});
  (void)member_.handle(Admit{round, 5});
  (void)member_.connection_lost();
  const WorkerEffects effects = member_.frozen(round, {});
  EXPECT_TRUE(effects.send.empty());
  ASSERT_TRUE(effects.round_over);
  EXPECT_EQ(effects.round_over->round, round);
}

TEST_F(Joining, PreparedWaitsForWord) {
  freeze();
  EXPECT_FALSE(member_.connection_lost().round_over);
  EXPECT_EQ(says_prepared(), round);
  EXPECT_FALSE(member_.handle(Cancel{{1, 2}, "another"}).round_over);
  EXPECT_TRUE(member_.handle(Cancel{round, "a death"}).round_over);
  EXPECT_EQ(says_prepared(), ViewNumber{});
}

// Others may have the round's install: the next one tells, and until then nothing moves.
TEST_F(Joining, PreparedStaysFrozenThroughAHigherProposal) {
  freeze();
  const WorkerEffects proposed = member_.handle(Propose{next, {}});
  EXPECT_TRUE(proposed.freeze);
  EXPECT_FALSE(proposed.round_over);
  EXPECT_FALSE(member_.handle(Cancel{round, "too late"}).round_over);
  (void)member_.frozen(next, {});
  const WorkerEffects effects = member_.handle(install(next, true));
  ASSERT_TRUE(effects.round_over);
  EXPECT_TRUE(effects.round_over->joined);
}

TEST_F(Joining, AProposalVoidsAHold) {
  (void)member_.handle(Hold{round, {newcomer_}});
  const WorkerEffects effects = member_.handle(Propose{next, {}});
  EXPECT_TRUE(effects.freeze);
  EXPECT_TRUE(effects.round_over);
}

TEST_F(Joining, AHoldThatComesAfterItsCancelIsRefused) {
  (void)member_.handle(Cancel{round, "a death"});
  EXPECT_FALSE(member_.handle(Hold{round, {newcomer_}}).hold);
}

TEST(Newcomer, AsksUntilItIsIn) {
  Worker newcomer(WorkerAddress{WorkerId(5), Slot(1), 7, "here", "endpoint"});
  (void)newcomer.handle(Welcome{1, first, {}, {}, true, {{Slot(0), WorkerId(1)}}});
  EXPECT_TRUE(newcomer.is_newcomer());
  EXPECT_EQ(newcomer.request_join({}).send.size(), 1U);
  EXPECT_EQ(newcomer.connected().send.size(), 2U);  // hello, and the request again
  EXPECT_TRUE(newcomer.handle(Admit{round, 5}).admit);
  EXPECT_EQ(newcomer.frozen(round, {}).send.size(), 1U);
  const WorkerEffects effects =
      newcomer.handle(Install{round, {}, {}, {{Slot(0), WorkerId(1)}, {Slot(1), WorkerId(5)}}, {}});
  ASSERT_TRUE(effects.round_over);
  EXPECT_TRUE(effects.round_over->joined);
  EXPECT_FALSE(newcomer.is_newcomer());
  EXPECT_EQ(newcomer.connected().send.size(), 1U);
}

TEST(Newcomer, ARoundOfAnEarlierCoordinatorIsVoid) {
  Worker newcomer(WorkerAddress{WorkerId(5), Slot(1), 7, "here", "endpoint"});
  (void)newcomer.handle(Welcome{1, first, {}, {}, true, {}});
  (void)newcomer.request_join({});
  (void)newcomer.handle(Admit{round, 5});
  (void)newcomer.frozen(round, {});
  EXPECT_TRUE(newcomer.handle(Welcome{2, first, {}, {}, true, {}}).round_over);
  EXPECT_TRUE(newcomer.handle(Admit{{2, 3}, 6}).admit);
}

TEST(Newcomer, EndsWithTheJob) {
  Worker newcomer(WorkerAddress{WorkerId(5), Slot(1), 7, "here", "endpoint"});
  (void)newcomer.handle(Welcome{1, first, {}, {}, true, {}});
  EXPECT_TRUE(newcomer.handle(JobFinished{}).job_finished);
}

// ---- epochs ------------------------------------------------------------------------------------------------------

GroupStatus status(std::uint64_t count, ViewNumber epoch = {}, std::uint64_t base = 0) {
  GroupStatus status;
  status.group = GroupKey(7);
  status.members = {Slot(0), Slot(1), Slot(2)};
  status.policy = Policy::repair;
  status.entered = status.completed = count;
  status.epoch = epoch;
  status.base = base;
  return status;
}

TEST(Epoch, BeginsWhereTheSurvivorsAre) {
  GroupStatus survivor = status(9);
  survivor.departures = {{WorkerId(3), Slot(2), {1, 2}, 5}};
  GroupStatus newcomer = status(40);
  newcomer.alone = true;
  const GroupResolution resolution =
      resolve_group({newcomer, survivor}, round, {{WorkerId(3), Slot(2), {1, 2}, ""}}, {}, {{Slot(2), round}});
  EXPECT_EQ(resolution.epoch, round);
  EXPECT_EQ(resolution.base, 9U);
  EXPECT_TRUE(resolution.departures.empty());
}

TEST(Epoch, KeepsTheDeparturesOfVacantSlots) {
  GroupStatus survivor = status(9);
  survivor.departures = {{WorkerId(2), Slot(1), {1, 1}, 4}, {WorkerId(3), Slot(2), {1, 2}, 5}};
  const GroupResolution resolution = resolve_group({survivor}, round, {}, {}, {{Slot(2), round}});
  ASSERT_EQ(resolution.departures.size(), 1U);
  EXPECT_EQ(resolution.departures[0].worker, WorkerId(2));
}

// One survivor has installed the join and goes on, another missed it, the newcomer too; then somebody dies.
TEST(Epoch, AMissedInstallComesWithTheNextResolution) {
  GroupStatus ahead = status(11, round, 9);
  ahead.entered = 12;
  ahead.observed = {{WorkerId(2), 12}};
  GroupStatus behind = status(9);
  behind.departures = {{WorkerId(3), Slot(2), {1, 2}, 5}};
  GroupStatus newcomer = status(40);
  newcomer.alone = true;
  const GroupResolution resolution =
      resolve_group({behind, newcomer, ahead}, next,
                    {{WorkerId(3), Slot(2), {1, 2}, ""}, {WorkerId(2), Slot(1), next, ""}}, {}, {{Slot(2), round}});
  EXPECT_EQ(resolution.epoch, round);
  EXPECT_EQ(resolution.base, 9U);
  ASSERT_EQ(resolution.departures.size(), 1U);
  EXPECT_EQ(resolution.departures[0].worker, WorkerId(2));
  EXPECT_EQ(resolution.departures[0].last_op, 12U);
}

// Whoever had installed it is dead: all others still stand at its boundary.
TEST(Epoch, AnInstallThatOnlyTheDeadHadIsDecidedFromTheBoundary) {
  const GroupResolution resolution =
      resolve_group({status(9)}, next, {{WorkerId(2), Slot(1), next, ""}}, {}, {{Slot(2), round}});
  EXPECT_EQ(resolution.epoch, round);
  EXPECT_EQ(resolution.base, 9U);
}

TEST(Epoch, AGroupOfNewcomersAloneBeginsAtZero) {
  GroupStatus newcomer = status(40);
  newcomer.alone = true;
  const std::vector<ExcludedMember> excluded{{WorkerId(1), Slot(0), {1, 2}, ""}, {WorkerId(3), Slot(2), {1, 2}, ""}};
  const GroupResolution resolution =
      resolve_group({newcomer}, round, excluded, {}, {{Slot(1), round}, {Slot(2), round}});
  EXPECT_EQ(resolution.base, 0U);
  ASSERT_EQ(resolution.departures.size(), 1U);  // slot 0 is vacant
  EXPECT_EQ(resolution.departures[0].last_op, 0U);
}

TEST(Epoch, AGroupMadeInAViewKnowsWhoFillsItsSlots) {
  const std::vector<ExcludedMember> excluded{{WorkerId(3), Slot(2), {1, 2}, ""}, {WorkerId(2), Slot(1), next, ""}};
  const auto departures =
      departures_of_new_group(excluded, {Slot(0), Slot(1), Slot(2)}, {{Slot(0), WorkerId(1)}, {Slot(2), WorkerId(5)}});
  ASSERT_EQ(departures.size(), 1U);
  EXPECT_EQ(departures[0].worker, WorkerId(2));
}

}  // namespace
}  // namespace closeranks::membership
