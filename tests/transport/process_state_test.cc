#include "base/process_state.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "child_process.h"

namespace closeranks::transport {
namespace {

using namespace std::chrono_literals;

int sleep_for_ever(const Channel& parent) {
  parent.say('r');
  for (;;) {
    ::pause();
  }
}

TEST(ProcessState, FollowsAProcessFromRunningToReaped) {
  ChildProcess child(sleep_for_ever);
  ASSERT_EQ(child.channel().hear(), 'r');
  auto handle = open_process(child.pid());
  ASSERT_TRUE(handle.ok()) << handle.status().message();
  EXPECT_FALSE(has_ended(handle.value()));
  EXPECT_FALSE(all_threads_without_memory(child.pid()));
  EXPECT_FALSE(is_unkillable(child.pid()));
  EXPECT_TRUE(eventually([&] { return process_state(child.pid())->letter == 'S'; }, 5s));
  EXPECT_EQ(process_state(child.pid())->parent, ::getpid());
  EXPECT_GT(process_state(child.pid())->start_ticks, 0u);

  EXPECT_TRUE(send_signal(handle.value(), SIGSTOP).ok());
  EXPECT_TRUE(eventually([&] { return process_state(child.pid())->letter == 'T'; }, 5s));
  EXPECT_FALSE(all_threads_without_memory(child.pid()));

  EXPECT_TRUE(send_signal(handle.value(), SIGKILL).ok());
  EXPECT_TRUE(eventually([&] { return all_threads_without_memory(child.pid()); }, 5s));
  EXPECT_TRUE(eventually([&] { return has_ended(handle.value()); }, 5s));
  EXPECT_EQ(process_state(child.pid())->letter, 'Z');
  EXPECT_EQ(describe_wait_status(child.wait()), "killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(all_threads_without_memory(child.pid()));
  EXPECT_FALSE(process_state(child.pid()).has_value());
  EXPECT_TRUE(send_signal(handle.value(), SIGKILL).ok());  // gone already: as wished
  EXPECT_EQ(open_process(child.pid()).status().fault(), Fault::peer_lost);
}

TEST(ProcessState, NamesExitStatuses) {
  ChildProcess child([](const Channel&) { return 3; });
  EXPECT_EQ(describe_wait_status(child.wait()), "exited with status 3");
}

TEST(ProcessState, FindsTheWholeTree) {
  ChildProcess child([](const Channel& parent) {
    const pid_t middle = ::fork();
    if (middle == 0) {
      if (::fork() == 0) {
        return sleep_for_ever(parent);
      }
      return sleep_for_ever(parent);
    }
    return sleep_for_ever(parent);
  });
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(child.channel().hear(), 'r');
  }
  const std::vector<pid_t> tree = descendants_of(child.pid());
  ASSERT_EQ(tree.size(), 2u);
  EXPECT_EQ(process_state(tree[0])->parent, child.pid());
  EXPECT_EQ(process_state(tree[1])->parent, tree[0]);
  EXPECT_TRUE(descendants_of(tree[1]).empty());
  for (const pid_t pid : tree) {
    ::kill(pid, SIGKILL);
  }
  EXPECT_TRUE(eventually([&] { return descendants_of(child.pid()).empty(); }, 5s));
}

}  // namespace
}  // namespace closeranks::transport
