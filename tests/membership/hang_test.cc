// Who is named, and who is not: chains, circles, pauses, start-up, silence, and the timeout that follows the job.
#include "membership/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace closeranks::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class Hang : public testing::Test {
 protected:
  struct State {
    std::uint64_t step = 1;
    std::uint64_t completed = 1;
    bool waiting = false;
    std::vector<Slot> waits_for;
    bool silent = false;
  };

  explicit Hang(std::uint32_t workers = 4) : states_(workers) {
    for (std::uint32_t slot = 0; slot < workers; ++slot) present_.push_back({Slot(slot), WorkerId(slot + 10)});
  }

  void waits(std::uint32_t slot, std::vector<std::uint32_t> slots) {
    states_[slot].waiting = true;
    states_[slot].waits_for.clear();
    for (const std::uint32_t other : slots) states_[slot].waits_for.emplace_back(other);
  }

  // Everybody tells how far it is, four times a second; the first verdict that says something ends it.
  HangDetector::Verdict run(Time duration) {
    for (const Time until = now_ + duration; now_ < until; now_ += milliseconds(250)) {
      for (std::uint32_t slot = 0; slot < states_.size(); ++slot) {
        if (!states_[slot].silent) detector_.progress(progress_of(slot), now_);
      }
      HangDetector::Verdict verdict = detector_.judge(present_, boundary_, now_);
      if (!verdict.hung.empty() || verdict.circle) return verdict;
    }
    return {};
  }

  // Everybody finishes ops for a while: from here on nobody is starting up.
  void work(Time duration, Time gap = milliseconds(250)) {
    for (const Time until = now_ + duration; now_ < until; now_ += gap) {
      for (State& state : states_) ++state.completed;
      EXPECT_TRUE(run(milliseconds(250)).hung.empty());
      now_ -= milliseconds(250);
    }
  }

  Progress progress_of(std::uint32_t slot) const {
    const State& state = states_[slot];
    GroupProgress group;
    group.group = GroupKey(7);
    group.name = "world";
    group.completed = state.completed;
    group.entered = state.completed + (state.waiting ? 1 : 0);
    group.waiting = state.waiting;
    group.waited_ms = 5'000;
    group.op = "all_reduce #12";
    group.waits_for = state.waits_for;
    return {WorkerId(slot + 10), state.step, true, {group}};
  }

  HangConfig config_{seconds(5), false, seconds(1)};
  HangDetector detector_{config_};
  std::vector<State> states_;
  std::vector<Filled> present_;
  std::optional<HangDetector::Boundary> boundary_;
  Time now_ = seconds(100);
};

TEST_F(Hang, TheOneThatAllOthersWaitForIsNamedAfterTheTimeout) {
  work(seconds(2));
  for (const std::uint32_t slot : {0U, 1U, 3U}) waits(slot, {2});
  states_[2].step = 7;
  const Time began = now_;
  const HangDetector::Verdict verdict = run(seconds(20));
  ASSERT_EQ(verdict.hung.size(), 1U);
  EXPECT_EQ(verdict.hung[0].worker, WorkerId(12));
  EXPECT_EQ(verdict.hung[0].reason,
            "has not entered all_reduce #12 of group 'world', in which slots 0, 1, 3 have waited for 5.0 s; it is in "
            "step 7, inside no op");
  EXPECT_GE(now_ - began, seconds(5));
  EXPECT_LE(now_ - began, seconds(6));
}

// Rule 22: slot 0 is waited for too, but it waits itself.
TEST_F(Hang, AChainIsFollowedToItsEnd) {
  work(seconds(2));
  waits(0, {1});
  waits(1, {2});
  waits(3, {0, 1});
  const HangDetector::Verdict verdict = run(seconds(20));
  ASSERT_EQ(verdict.hung.size(), 1U);
  EXPECT_EQ(verdict.hung[0].worker, WorkerId(12));
  EXPECT_THAT(verdict.hung[0].reason, HasSubstr("in which slot 1 has waited"));
}

TEST_F(Hang, TwoThatHangAtOnceAreBothNamed) {
  work(seconds(2));
  waits(0, {2});
  waits(1, {3});
  EXPECT_EQ(run(seconds(20)).hung.size(), 2U);
}

TEST_F(Hang, ACircleIsToldOnceAndNamesNobody) {
  work(seconds(2));
  for (const std::uint32_t slot : {0U, 1U, 2U, 3U}) waits(slot, {(slot + 1) % 4});
  const HangDetector::Verdict verdict = run(seconds(20));
  EXPECT_TRUE(verdict.hung.empty());
  ASSERT_TRUE(verdict.circle);
  EXPECT_THAT(*verdict.circle, HasSubstr("slot 3 in all_reduce #12 of group 'world' for slot 0"));
  EXPECT_FALSE(run(seconds(20)).circle);
}

TEST_F(Hang, WhenNobodyWaitsNobodyHangs) {
  work(seconds(2));
  const HangDetector::Verdict verdict = run(seconds(60));  // all compute, or write a checkpoint
  EXPECT_TRUE(verdict.hung.empty());
  EXPECT_FALSE(verdict.circle);
}

TEST_F(Hang, WhileSomebodyComputesBesideItNobodyIsNamed) {
  work(seconds(2));
  for (const std::uint32_t slot : {0U, 1U}) waits(slot, {2});  // 3 waits for nobody, and gets on
  for (int turn = 0; turn < 30; ++turn) {
    ++states_[3].completed;
    EXPECT_TRUE(run(seconds(1)).hung.empty());
  }
}

TEST_F(Hang, AnAnnouncedPauseIsNoHang) {
  work(seconds(2));
  for (const std::uint32_t slot : {0U, 1U, 3U}) waits(slot, {2});
  detector_.paused({WorkerId(12), "checkpoint", 30'000}, now_);
  EXPECT_TRUE(run(seconds(29)).hung.empty());
  EXPECT_EQ(run(seconds(8)).hung.size(), 1U);
}

TEST_F(Hang, APauseThatIsOverBeginsTheCountAnew) {
  work(seconds(2));
  for (const std::uint32_t slot : {0U, 1U, 3U}) waits(slot, {2});
  detector_.paused({WorkerId(12), "checkpoint", 30'000}, now_);
  EXPECT_TRUE(run(seconds(10)).hung.empty());
  detector_.paused({WorkerId(12), "checkpoint", 0}, now_);
  EXPECT_TRUE(run(seconds(4)).hung.empty());
  EXPECT_EQ(run(seconds(3)).hung.size(), 1U);
}

TEST_F(Hang, StartUpIsNotJudged) {
  for (const std::uint32_t slot : {0U, 1U, 3U}) waits(slot, {2});
  EXPECT_TRUE(run(seconds(120)).hung.empty());
}

TEST_F(Hang, SilenceIsNotJudgedHere) {
  work(seconds(2));
  for (const std::uint32_t slot : {0U, 1U, 3U}) waits(slot, {2});
  states_[2].silent = true;
  EXPECT_TRUE(run(seconds(120)).hung.empty());
}

TEST_F(Hang, AStepThatMovesIsProgress) {
  work(seconds(2));
  for (const std::uint32_t slot : {0U, 1U, 3U}) waits(slot, {2});
  for (int turn = 0; turn < 30; ++turn) {
    ++states_[2].step;
    EXPECT_TRUE(run(seconds(1)).hung.empty());
  }
}

// They have computed for a minute, and now some are a moment ahead of another.
TEST_F(Hang, LongComputingBeforeTheWaitDoesNotCount) {
  work(seconds(2));
  EXPECT_TRUE(run(seconds(60)).hung.empty());
  for (const std::uint32_t slot : {0U, 1U, 3U}) waits(slot, {2});
  EXPECT_TRUE(run(seconds(4)).hung.empty());
  EXPECT_EQ(run(seconds(3)).hung.size(), 1U);
}

TEST_F(Hang, AViewChangeBeginsTheCountAnew) {
  work(seconds(2));
  for (const std::uint32_t slot : {0U, 1U, 3U}) waits(slot, {2});
  EXPECT_TRUE(run(seconds(4)).hung.empty());
  detector_.disturbed();
  EXPECT_TRUE(run(seconds(4)).hung.empty());
  EXPECT_EQ(run(seconds(3)).hung.size(), 1U);
}

TEST_F(Hang, WhoDoesNotComeToTheBoundaryIsNamed) {
  work(seconds(2));
  boundary_ = HangDetector::Boundary{8, {Slot(0), Slot(1), Slot(3)}, {Slot(2)}};
  const HangDetector::Verdict verdict = run(seconds(20));
  ASSERT_EQ(verdict.hung.size(), 1U);
  EXPECT_THAT(verdict.hung[0].reason,
              HasSubstr("has not come to the boundary before step 8, where slots 0, 1, 3 wait"));
}

class AdaptiveHang : public Hang {
 protected:
  AdaptiveHang() { detector_ = HangDetector(HangConfig{}); }
};

TEST_F(AdaptiveHang, TheTimeoutFollowsTheLongestGap) {
  EXPECT_EQ(detector_.timeout(), seconds(60));
  work(seconds(30));
  EXPECT_EQ(detector_.timeout(), seconds(60));  // too early to say
  work(seconds(40));
  EXPECT_EQ(detector_.timeout(), seconds(5));  // 20 times 0.25 s
  work(seconds(10), seconds(1));
  EXPECT_EQ(detector_.timeout(), seconds(20));
  work(seconds(40), seconds(10));
  EXPECT_EQ(detector_.timeout(), seconds(60));
}

TEST_F(AdaptiveHang, TheTimeOfAHangIsNoGap) {
  work(seconds(70));
  (void)run(seconds(30));
  detector_.disturbed();
  work(seconds(2));
  EXPECT_EQ(detector_.timeout(), seconds(5));
}

}  // namespace
}  // namespace closeranks::membership
