#include "agent/process_tree.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "transport/shared_arena.h"

namespace closeranks::agent {
namespace {

TEST(HoldsSegments, CountsSharedMappingsOnly) {
  EXPECT_FALSE(holds_segments(::getpid()));
  {
    const auto arena = transport::OwnArena::create({"job", WorkerId(1), Slot(0)}, 64 << 20);
    ASSERT_TRUE(arena.ok()) << arena.status().message();
    EXPECT_TRUE(holds_segments(::getpid()));
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const char sign = 'f';
      if (::write(ends[1], &sign, 1) != 1) ::_exit(1);
      ::pause();
    }
    char sign = 0;
    EXPECT_EQ(::read(ends[0], &sign, 1), 1);  // the handlers of fork have run
    EXPECT_FALSE(holds_segments(child)) << "it has the arena's pages as a private mapping";
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  EXPECT_FALSE(holds_segments(::getpid()));
}

TEST(HoldsSegments, IsFalseForAProcessThatIsGone) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(holds_segments(child));
}

}  // namespace
}  // namespace closeranks::agent
