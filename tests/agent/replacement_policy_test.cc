#include "agent/replacement_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace closeranks::agent {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;
using Out = ReplacementPolicy::Out;

const ReplacementPolicy::Time start{};
const ReplacementLimits limits{.most = 3, .window = 10min, .first_backoff = 1s, .longest_backoff = 4s};

ReplacementPolicy in_session(std::uint32_t slots) {
  ReplacementPolicy policy(slots, limits);
  policy.takes_newcomers();
  return policy;
}

TEST(ReplacementPolicy, ALostWorkerIsReplacedAtOnce) {
  ReplacementPolicy policy = in_session(3);
  EXPECT_THAT(policy.act(start).start, IsEmpty());
  EXPECT_EQ(policy.next(), std::nullopt);
  policy.worker_out(Slot(1), Out::lost, "killed by signal 9 (SIGKILL)", start);
  EXPECT_EQ(policy.next(), start);
  EXPECT_THAT(policy.act(start).start, ElementsAre(Slot(1)));
  EXPECT_THAT(policy.act(start + 1h).start, IsEmpty()) << "it counts as filled";
  EXPECT_EQ(policy.wanted(), 3u);
}

TEST(ReplacementPolicy, NobodyIsStartedBeforeTheScriptCanTakeNewcomers) {
  ReplacementPolicy policy(2, limits);
  policy.worker_out(Slot(0), Out::lost, "", start);
  EXPECT_THAT(policy.act(start).start, IsEmpty());
  EXPECT_EQ(policy.next(), std::nullopt);
  policy.takes_newcomers();
  EXPECT_THAT(policy.act(start + 1min).start, ElementsAre(Slot(0)));
}

TEST(ReplacementPolicy, EarlyEndsDelayTheNextTryAndThenTheSlotIsGivenUp) {
  ReplacementPolicy policy = in_session(2);
  policy.worker_out(Slot(1), Out::lost, "", start);
  EXPECT_THAT(policy.act(start).start, ElementsAre(Slot(1)));
  policy.worker_out(Slot(1), Out::early, "exited with status 1", start);
  EXPECT_THAT(policy.act(start + 999ms).start, IsEmpty());
  EXPECT_THAT(policy.act(start + 1s).start, ElementsAre(Slot(1)));
  policy.worker_out(Slot(1), Out::early, "exited with status 1", start + 1s);
  EXPECT_EQ(policy.next(), start + 3s);
  EXPECT_THAT(policy.act(start + 3s).start, ElementsAre(Slot(1)));
  policy.worker_out(Slot(1), Out::early, "exited with status 7", start + 4s);
  const auto actions = policy.act(start + 4s);
  EXPECT_THAT(actions.start, IsEmpty());
  ASSERT_EQ(actions.given_up.size(), 1u);
  EXPECT_EQ(actions.given_up[0].slot, Slot(1));
  EXPECT_EQ(actions.given_up[0].tries, 3u);
  EXPECT_EQ(actions.given_up[0].last_error, "exited with status 7");
  EXPECT_THAT(policy.act(start + 1h).given_up, IsEmpty()) << "said once";
  EXPECT_EQ(policy.next(), std::nullopt);
  EXPECT_EQ(policy.wanted(), 1u);
}

TEST(ReplacementPolicy, WorkersThatTrainedDoNotCount) {
  ReplacementPolicy policy = in_session(1);
  for (int time = 0; time < 20; ++time) {
    policy.first_step(Slot(0));
    policy.worker_out(Slot(0), Out::lost, "", start);
    EXPECT_THAT(policy.act(start).start, ElementsAre(Slot(0)));
  }
}

TEST(ReplacementPolicy, EarlyEndsAreForgottenAfterTheWindow) {
  ReplacementPolicy policy = in_session(1);
  auto now = start;
  for (int time = 0; time < 9; ++time) {
    policy.worker_out(Slot(0), Out::early, "", now);
    EXPECT_THAT(policy.act(now + 5s).start, ElementsAre(Slot(0))) << time;
    now += 301s;  // two of them in any ten minutes
  }
}

TEST(ReplacementPolicy, TheBackoffIsBoundedAndEndsWithAFirstStep) {
  ReplacementPolicy policy(1, {.most = 100, .window = 1h, .first_backoff = 1s, .longest_backoff = 4s});
  policy.takes_newcomers();
  for (const auto backoff : {1s, 2s, 4s, 4s}) {
    policy.worker_out(Slot(0), Out::early, "", start);
    EXPECT_EQ(policy.next(), start + backoff);
    policy.act(start + backoff);
  }
  policy.first_step(Slot(0));
  policy.worker_out(Slot(0), Out::early, "", start);
  EXPECT_EQ(policy.next(), start + 1s);
}

TEST(ReplacementPolicy, ZeroReplacesNobody) {
  ReplacementPolicy policy(2, {.most = 0});
  policy.takes_newcomers();
  policy.worker_out(Slot(1), Out::lost, "", start);
  EXPECT_THAT(policy.act(start).start, IsEmpty());
  EXPECT_EQ(policy.next(), std::nullopt);
}

TEST(ReplacementPolicy, WhoLeavesForGoodIsNotReplaced) {
  ReplacementPolicy policy = in_session(2);
  policy.worker_out(Slot(0), Out::left, "", start);
  EXPECT_THAT(policy.act(start).start, IsEmpty());
  EXPECT_EQ(policy.wanted(), 1u);
}

TEST(ReplacementPolicy, ResizeGrowsIntoTheLowestVacantSlotsGivenUpOnesToo) {
  ReplacementPolicy policy = in_session(4);
  policy.worker_out(Slot(3), Out::left, "", start);
  policy.worker_out(Slot(2), Out::left, "", start);
  for (int time = 0; time < 3; ++time) {
    policy.worker_out(Slot(1), Out::early, "", start);
    policy.act(start + 10s);
  }
  EXPECT_EQ(policy.wanted(), 1u);
  policy.resize(3, start);
  EXPECT_THAT(policy.act(start).start, ElementsAre(Slot(1), Slot(2)));
  EXPECT_EQ(policy.wanted(), 3u);
}

TEST(ReplacementPolicy, ResizeShrinksByNotFillingTheHighestVacantSlots) {
  ReplacementPolicy policy = in_session(4);
  policy.worker_out(Slot(0), Out::early, "", start);
  policy.worker_out(Slot(2), Out::early, "", start);
  policy.resize(3, start);
  EXPECT_THAT(policy.act(start + 1s).start, ElementsAre(Slot(0)));
}

TEST(ReplacementPolicy, OneThatWasToLeaveAndDiedOnTheWayIsNotReplaced) {
  ReplacementPolicy policy = in_session(4);
  policy.resize(3, start);
  policy.worker_out(Slot(3), Out::lost, "killed by signal 9 (SIGKILL)", start);
  EXPECT_THAT(policy.act(start).start, IsEmpty());
  policy.worker_out(Slot(1), Out::lost, "killed by signal 9 (SIGKILL)", start);
  EXPECT_THAT(policy.act(start).start, ElementsAre(Slot(1)));
}

TEST(ReplacementPolicy, WhatIsPutOffDoesNotCount) {
  ReplacementPolicy policy = in_session(1);
  policy.worker_out(Slot(0), Out::lost, "", start);
  for (int time = 0; time < 10; ++time) {
    EXPECT_THAT(policy.act(start + 1s).start, ElementsAre(Slot(0)));
    policy.put_off(Slot(0), start + 1s);
    EXPECT_THAT(policy.act(start).start, IsEmpty());
  }
}

TEST(ReplacementPolicy, AStoppedPolicyStartsNobody) {
  ReplacementPolicy policy = in_session(1);
  policy.worker_out(Slot(0), Out::lost, "", start);
  policy.stop();
  EXPECT_THAT(policy.act(start).start, IsEmpty());
}

}  // namespace
}  // namespace closeranks::agent
