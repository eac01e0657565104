#include "agent/spare_policy.h"

#include <gtest/gtest.h>

namespace closeranks::agent {
namespace {

using namespace std::chrono_literals;

const SparePolicy::Time start{};

TEST(SparePolicy, NoneBeforeTheJobCanUseOne) {
  SparePolicy policy(2);
  EXPECT_EQ(policy.act(start + 1h), 0u);
  policy.enable(start);
  EXPECT_EQ(policy.act(start), 2u);
  EXPECT_EQ(policy.act(start + 1h), 0u);
  EXPECT_EQ(policy.next(), std::nullopt);
}

TEST(SparePolicy, ZeroIsNone) {
  SparePolicy policy(0);
  policy.enable(start);
  EXPECT_EQ(policy.act(start), 0u);
}

TEST(SparePolicy, TheNextOneWaitsForTheNewcomerToTrain) {
  SparePolicy policy(1);
  policy.enable(start);
  policy.act(start);
  policy.ready();
  policy.taken(start + 10s, false);
  EXPECT_EQ(policy.act(start + 11s), 0u);
  policy.newcomer_trains(start + 12s);
  EXPECT_EQ(policy.act(start + 12s), 1u);
  policy.taken(start + 13s, false);
  EXPECT_EQ(policy.act(start + 13s + deadlines::spare_after_newcomer), 1u) << "or not so long";
}

TEST(SparePolicy, ASuccessorIsThereAtOnce) {
  SparePolicy policy(1);
  policy.enable(start);
  policy.act(start);
  policy.ready();
  policy.taken(start + 10s, true);
  policy.newcomer_trains(start + 11s);
  EXPECT_EQ(policy.act(start + 1h), 0u);
  // It ended before it was heard of.
  policy.died(start + 1h);
  EXPECT_EQ(policy.act(start + 1h + deadlines::spare_backoff), 1u);
}

TEST(SparePolicy, DeathsDelayTheNextTryMoreAndMore) {
  SparePolicy policy(1);
  policy.enable(start);
  policy.act(start);
  policy.died(start);
  EXPECT_EQ(policy.next(), start + deadlines::spare_backoff);
  policy.newcomer_trains(start);
  EXPECT_EQ(policy.next(), start + deadlines::spare_backoff);
  EXPECT_EQ(policy.act(start + deadlines::spare_backoff), 1u);
  policy.died(start);
  EXPECT_EQ(policy.next(), start + 2 * deadlines::spare_backoff);
  for (int time = 0; time < 40; ++time) policy.died(start);
  EXPECT_EQ(policy.next(), start + deadlines::spare_backoff_longest);
  policy.act(start + 1h);
  policy.ready();
  policy.died(start);
  EXPECT_EQ(policy.next(), start + deadlines::spare_backoff);
}

TEST(SparePolicy, StoppedIsForGood) {
  SparePolicy policy(1);
  policy.enable(start);
  policy.stop();
  EXPECT_EQ(policy.act(start + 1h), 0u);
  EXPECT_EQ(policy.next(), std::nullopt);
}

}  // namespace
}  // namespace closeranks::agent
