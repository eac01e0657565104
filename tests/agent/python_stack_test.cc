#include "agent/python_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace closeranks::agent {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr const char* dump =
    "Thread 0x00007f0c2b7fe6c0 (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 1002 in _bootstrap\n"
    "\n"
    "Current thread 0x00007f0c4d5d5740 (most recent call first):\n"
    "  File \"/home/user/data.py\", line 17 in wait_for_data\n"
    "  File \"/home/user/train.py\", line 40 in <module>\n";

TEST(PythonStack, ShowsTheThreadThatTookTheSignal) {
  EXPECT_THAT(recent_frames(dump, 10),
              ElementsAre("/home/user/data.py:17 in wait_for_data", "/home/user/train.py:40 in <module>"));
  EXPECT_THAT(recent_frames(dump, 1), ElementsAre("/home/user/data.py:17 in wait_for_data"));
}

TEST(PythonStack, WithoutACurrentThreadTheFirstOne) {
  const std::string text = dump;
  EXPECT_THAT(recent_frames(text.substr(0, text.find("Current")), 10),
              ElementsAre("/usr/lib/python3.11/threading.py:324 in wait",
                          "/usr/lib/python3.11/threading.py:1002 in _bootstrap"));
}

TEST(PythonStack, AnythingElseGivesNone) {
  EXPECT_THAT(recent_frames("", 10), IsEmpty());
  EXPECT_THAT(recent_frames("  File \"a.py\", line 1 in f\n", 10), IsEmpty());
  EXPECT_THAT(recent_frames("Current thread 0x1 (most recent call first):\n  File \"odd\n  <truncated", 10), SizeIs(1));
}

TEST(PythonStack, OnlyAProcessThatCatchesTheSignalIsAsked) {
  EXPECT_FALSE(answers_stack_signal(::getpid())) << "its default action would kill this test";
  ::signal(stack_signal(), [](int) {});
  EXPECT_TRUE(answers_stack_signal(::getpid()));
  ::signal(stack_signal(), SIG_DFL);
  EXPECT_FALSE(answers_stack_signal(0));
}

}  // namespace
}  // namespace closeranks::agent
