#include "agent/stop_timer.h"

#include <gtest/gtest.h>

namespace closeranks::agent {
namespace {

using std::chrono::milliseconds;

class StopTimerTest : public testing::Test {
 protected:
  // Looks every 100 ms for `time`; true if the limit was passed on the way.
  bool watch(milliseconds time, bool stopped) {
    bool passed = false;
    for (milliseconds at{0}; at < time; at += milliseconds(100)) {
      now += milliseconds(100);
      passed = timer.look(now, stopped, false).has_value() || passed;
    }
    return passed;
  }
  StopTimer timer{milliseconds(5000)};
  StopTimer::Time now{};
};

TEST_F(StopTimerTest, ASecondIsNothing) {
  EXPECT_FALSE(watch(milliseconds(1000), true));
  EXPECT_FALSE(watch(milliseconds(60000), false));
}

TEST_F(StopTimerTest, ForGoodIsToldOnce) {
  EXPECT_FALSE(watch(milliseconds(5000), true));
  EXPECT_TRUE(watch(milliseconds(200), true));
  EXPECT_FALSE(watch(milliseconds(20000), true));
}

TEST_F(StopTimerTest, StopsDoNotAddUp) {
  for (int again = 0; again < 5; ++again) {
    EXPECT_FALSE(watch(milliseconds(3000), true));
    EXPECT_FALSE(watch(milliseconds(100), false));
  }
}

TEST_F(StopTimerTest, AThrottleThatIsAlwaysCaughtStoppedIsNoStop) {
  for (int look = 0; look < 200; ++look) {
    now += milliseconds(100);
    EXPECT_FALSE(timer.look(now, true, true).has_value());
  }
}

TEST_F(StopTimerTest, ALookerThatWasAwayStartsAnew) {
  EXPECT_FALSE(watch(milliseconds(4000), true));
  now += milliseconds(30000);
  EXPECT_FALSE(timer.look(now, true, false).has_value());
  EXPECT_FALSE(watch(milliseconds(4900), true));
  EXPECT_TRUE(watch(milliseconds(200), true));
}

}  // namespace
}  // namespace closeranks::agent
