#include "agent/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace closeranks::agent {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int exited_with(int status) { return status << 8; }
constexpr int killed_by(int signal) { return signal; }

TEST(Verdict, AllFinished) {
  Verdict verdict(2, false);
  verdict.exited(WorkerId(0), 0, "exited with status 0");
  EXPECT_FALSE(verdict.all_exited());
  verdict.exited(WorkerId(1), 0, "exited with status 0");
  EXPECT_TRUE(verdict.all_exited());
  EXPECT_TRUE(verdict.settled());
  EXPECT_FALSE(verdict.must_end());
  EXPECT_EQ(verdict.exit_status(), 0);
  EXPECT_THAT(verdict.causes(), IsEmpty());
}

TEST(Verdict, WithShrinkAnExcludedWorkerIsNoFailureOfTheJob) {
  Verdict verdict(3, true);
  verdict.suspected(WorkerId(2), "killed by signal 9 (SIGKILL)");
  verdict.exited(WorkerId(2), killed_by(9), "killed by signal 9 (SIGKILL)");
  EXPECT_FALSE(verdict.settled()) << "the coordinator has not excluded it yet";
  verdict.excluded(WorkerId(2), "killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(verdict.settled());
  EXPECT_FALSE(verdict.must_end());
  verdict.exited(WorkerId(0), 0, "");
  verdict.exited(WorkerId(1), 0, "");
  EXPECT_EQ(verdict.exit_status(), 0);
  EXPECT_THAT(verdict.finished(), ElementsAre(Slot(0), Slot(1)));
  EXPECT_THAT(verdict.causes(), ElementsAre("slot 2 was killed by signal 9 (SIGKILL)"));
}

TEST(Verdict, TheFirstSignIsTheRootCauseWhoeverIsReapedFirst) {
  Verdict verdict(3, false);
  verdict.suspected(WorkerId(1), "killed by signal 11 (SIGSEGV)");
  verdict.exited(WorkerId(0), exited_with(1), "exited with status 1");
  verdict.exited(WorkerId(2), exited_with(1), "exited with status 1");
  verdict.exited(WorkerId(1), killed_by(11), "killed by signal 11 (SIGSEGV)");
  EXPECT_TRUE(verdict.must_end());
  EXPECT_EQ(verdict.root_cause(), WorkerId(1));
  EXPECT_EQ(verdict.exit_status(), 139);
  EXPECT_THAT(verdict.causes(),
              ElementsAre("slot 1 was killed by signal 11 (SIGSEGV)", "slots 0 and 2 exited with status 1"));
}

TEST(Verdict, AStoppedWorkersReasonOutlivesItsKill) {
  Verdict verdict(2, true);
  verdict.suspected(WorkerId(1), "stopped for 5.0 s");
  verdict.exited(WorkerId(1), killed_by(9), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(verdict.reason_of(WorkerId(1)), "stopped for 5.0 s");
}

TEST(Verdict, WhatItDiedOfSaysMoreThanWhatAPeerSawFirst) {
  Verdict verdict(2, true);
  verdict.suspected(WorkerId(1), "slot 0 (worker 0) waits for it: its process has ended");
  verdict.exited(WorkerId(1), killed_by(9), "killed by signal 9 (SIGKILL)", false);
  EXPECT_EQ(verdict.reason_of(WorkerId(1)), "killed by signal 9 (SIGKILL)");
}

TEST(Verdict, OneThatLeftWhileOthersNeededItIsAFailureOfStatusOne) {
  Verdict verdict(2, false);
  verdict.exited(WorkerId(1), 0, "exited with status 0");
  verdict.excluded(WorkerId(1), "exited with status 0");
  verdict.exited(WorkerId(0), exited_with(3), "exited with status 3");
  EXPECT_TRUE(verdict.must_end());
  EXPECT_EQ(verdict.exit_status(), 1);
}

TEST(Verdict, EveryWorkerDies) {
  Verdict verdict(2, true);
  verdict.exited(WorkerId(0), killed_by(9), "killed by signal 9 (SIGKILL)");
  verdict.exited(WorkerId(1), exited_with(2), "exited with status 2");
  verdict.gave_up("nobody is left");
  EXPECT_TRUE(verdict.must_end());
  EXPECT_EQ(verdict.exit_status(), 137);
  EXPECT_THAT(verdict.causes(), ElementsAre("slot 0 was killed by signal 9 (SIGKILL)", "slot 1 exited with status 2"));
}

TEST(Verdict, BelowMinPresentTheJobFailsAlthoughTheRestFinished) {
  Verdict verdict(3, true);
  verdict.excluded(WorkerId(0), "killed by signal 9 (SIGKILL)");
  verdict.gave_up("2 present workers would be left");
  verdict.exited(WorkerId(0), killed_by(9), "killed by signal 9 (SIGKILL)");
  verdict.exited(WorkerId(1), 0, "");
  verdict.exited(WorkerId(2), 0, "");
  EXPECT_EQ(verdict.exit_status(), 137);
}

TEST(Verdict, ASuspicionThatCameToNothingIsNoFailure) {
  Verdict verdict(1, false);
  verdict.suspected(WorkerId(0), "slot 1 waits for it");
  verdict.exited(WorkerId(0), 0, "exited with status 0");
  EXPECT_FALSE(verdict.must_end());
  EXPECT_EQ(verdict.exit_status(), 0);
  EXPECT_THAT(verdict.causes(), IsEmpty());
}

TEST(Verdict, InterruptedSaysSo) {
  Verdict verdict(1, false);
  verdict.interrupted(15);
  verdict.interrupted(2);
  verdict.exited(WorkerId(0), killed_by(15), "killed by signal 15 (SIGTERM)");
  EXPECT_TRUE(verdict.settled());
  EXPECT_EQ(verdict.exit_status(), 143);
}

TEST(Verdict, AReplacementThatJoinedIsPartOfTheLastView) {
  Verdict verdict(2, true);
  verdict.suspected(WorkerId(1), "killed by signal 9 (SIGKILL)");
  verdict.exited(WorkerId(1), killed_by(9), "killed by signal 9 (SIGKILL)");
  verdict.excluded(WorkerId(1), "killed by signal 9 (SIGKILL)");
  verdict.started(WorkerId(2), Slot(1));
  EXPECT_THAT(verdict.present(), ElementsAre(Slot(0)));
  verdict.joined(WorkerId(2));
  EXPECT_THAT(verdict.present(), ElementsAre(Slot(0), Slot(1)));
  verdict.exited(WorkerId(0), 0, "");
  EXPECT_FALSE(verdict.all_exited());
  verdict.exited(WorkerId(2), exited_with(4), "exited with status 4");
  EXPECT_TRUE(verdict.all_exited());
  EXPECT_EQ(verdict.exit_status(), 137) << "the first cause is the one of the job";
  EXPECT_THAT(verdict.causes(),
              ElementsAre("slot 1 was killed by signal 9 (SIGKILL)", "worker 2 in slot 1 exited with status 4"));
}

TEST(Verdict, ANewcomerThatNeverJoinedIsNothingToTheJob) {
  Verdict verdict(2, true);
  verdict.exited(WorkerId(1), killed_by(9), "killed by signal 9 (SIGKILL)");
  verdict.excluded(WorkerId(1), "killed by signal 9 (SIGKILL)");
  verdict.started(WorkerId(2), Slot(1));
  verdict.exited(WorkerId(2), exited_with(4), "exited with status 4");
  verdict.started(WorkerId(3), Slot(1));
  EXPECT_TRUE(verdict.settled());
  verdict.exited(WorkerId(0), 0, "");
  EXPECT_TRUE(verdict.all_exited()) << "worker 3 still runs, and is ended with the job";
  EXPECT_TRUE(verdict.finishing());
  EXPECT_EQ(verdict.exit_status(), 0);
  EXPECT_THAT(verdict.finished(), ElementsAre(Slot(0)));
}

TEST(Verdict, LeavingForGoodIsNoFailure) {
  Verdict verdict(2, true);
  verdict.left_for_good(WorkerId(1));
  verdict.excluded(WorkerId(1), "it left the job");
  verdict.exited(WorkerId(1), 0, "exited with status 0");
  EXPECT_FALSE(verdict.must_end());
  verdict.exited(WorkerId(0), 0, "");
  EXPECT_EQ(verdict.exit_status(), 0);
  EXPECT_THAT(verdict.causes(), IsEmpty());
}

TEST(Predicate, IsGrammar) {
  EXPECT_EQ(as_predicate("killed by signal 9 (SIGKILL)"), "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(as_predicate("exited with status 1"), "exited with status 1");
  EXPECT_EQ(as_predicate("stopped for 5.0 s"), "is lost: stopped for 5.0 s");
  EXPECT_EQ(as_predicate(""), "is lost");
  EXPECT_EQ(as_predicate("killed by signal 9 (SIGKILL)", true), "were killed by signal 9 (SIGKILL)");
  EXPECT_EQ(as_predicate("stopped for 5.0 s", true), "are lost: stopped for 5.0 s");
}

}  // namespace
}  // namespace closeranks::agent
