#include "control/control_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace closeranks::control {
namespace {

TEST(ControlThread, RunsWhatIsPostedInOrder) {
  ControlThread thread("test");
  std::vector<int> seen;
  for (int i = 0; i < 100; ++i) thread.post([&seen, i] { seen.push_back(i); });
  ASSERT_TRUE(thread.run([] {}).ok());
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(ControlThread, RunOnItselfRunsAtOnce) {
  ControlThread thread("test");
  bool inner = false;
  EXPECT_TRUE(thread
                  .run([&] {
                    EXPECT_TRUE(thread.is_current());
                    EXPECT_TRUE(thread.run([&] { inner = true; }).ok());
                    EXPECT_TRUE(inner);
                  })
                  .ok());
  EXPECT_FALSE(thread.is_current());
}

TEST(ControlThread, RunAfterStopIsClosed) {
  ControlThread thread("test");
  thread.stop();
  thread.stop();
  EXPECT_EQ(thread.run([] { FAIL(); }).fault(), Fault::closed);
}

TEST(ControlThread, StopWhileOthersWaitLetsThemGo) {
  ControlThread thread("test");
  std::atomic<bool> entered{false};
  std::atomic<bool> release{false};
  thread.post([&] {
    entered = true;
    while (!release) std::this_thread::yield();
  });
  while (!entered) std::this_thread::yield();
  Status late;
  std::thread waiter([&] { late = thread.run([] { FAIL(); }); });
  std::thread stopper([&] { thread.stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  release = true;
  stopper.join();
  waiter.join();
  EXPECT_FALSE(late.ok());
}

}  // namespace
}  // namespace closeranks::control
