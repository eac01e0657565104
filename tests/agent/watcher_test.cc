// Real processes: what the watcher notices, kills and proves.
#include "agent/watcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/process_tree.h"
#include "agent/worker_process.h"
#include "base/process_state.h"

namespace closeranks::agent {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

const std::vector<std::string> environment{"PATH=/usr/bin:/bin", "CLOSERANKS_WORKER=3"};

bool eventually(const std::function<bool()>& condition) {
  for (int turn = 0; turn < 1000; ++turn) {
    if (condition()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

std::string read_line(const FileDescriptor& pipe) {
  std::string line;
  EXPECT_TRUE(eventually([&] {
    char byte = 0;
    while (::read(pipe.get(), &byte, 1) == 1) {
      if (byte == '\n') return true;
      line.push_back(byte);
    }
    return false;
  }));
  return line;
}

class WatcherTest : public testing::Test {
 protected:
  static constexpr WorkerId id{3};

  static void SetUpTestSuite() { become_subreaper(); }

  // A worker that runs a shell script; the watcher follows it.
  WorkerProcess start(const std::string& script) {
    auto worker = start_worker(std::vector<std::string>{"sh", "-c", script}, environment);
    EXPECT_TRUE(worker.ok()) << worker.status().message();
    watcher.follow(id, worker.value().pid, worker.value().process);
    return std::move(worker.value());
  }
  std::optional<int> reap() {
    std::optional<int> status;
    eventually([&] { return (status = watcher.reap(id)).has_value(); });
    return status;
  }
  bool told(std::size_t messages) {
    return eventually([&] {
      const std::scoped_lock lock(mutex);
      return story.size() >= messages;
    });
  }
  void note(const std::string& what) {
    const std::scoped_lock lock(mutex);
    story.push_back(what);
  }
  // Orphans of the worker come to this process; reap them as the agent does.
  bool tree_is_gone(pid_t pid) {
    return eventually([pid] {
      ::waitpid(pid, nullptr, WNOHANG);
      const auto state = process_state(pid);
      return !state.has_value() || state->letter == 'Z';
    });
  }

  std::mutex mutex;
  std::vector<std::string> story;
  Watcher watcher{WatcherHandlers{
      .suspected = [this](const auto& message) { note("suspected: " + message.reason); },
      .fenced =
          [this](const auto& message) {
            note("fenced: " + message.reason + (message.by_itself ? ", by itself" : ", killed") + ", status " +
                 std::to_string(message.wait_status));
          },
      .exited = [this](const auto& message) { note("exited: " + message.reason); },
  }};
};

TEST_F(WatcherTest, AnOrderlyEndIsNoLoss) {
  start("exit 0");
  EXPECT_EQ(reap(), 0);
  ASSERT_TRUE(told(1));
  EXPECT_THAT(story, testing::ElementsAre("exited: exited with status 0"));
}

TEST_F(WatcherTest, AFailureIsSuspectedFencedAndToldInOrder) {
  start("exit 7");
  EXPECT_EQ(reap(), 7 << 8);
  ASSERT_TRUE(told(3));
  EXPECT_THAT(story, testing::ElementsAre("suspected: exited with status 7",
                                          "fenced: exited with status 7, by itself, status 1792",
                                          "exited: exited with status 7"));
}

TEST_F(WatcherTest, AFenceKillsAStoppedWorkerAndProvesIt) {
  const WorkerProcess worker = start("echo up; sleep 100");
  read_line(worker.output);
  ::kill(worker.pid, SIGSTOP);
  watcher.fence(id, "stopped for 5.0 s");
  ASSERT_TRUE(told(1));
  EXPECT_EQ(story[0], "fenced: stopped for 5.0 s, killed, status 9");
  EXPECT_EQ(reap(), SIGKILL);
  ASSERT_TRUE(told(2));
  EXPECT_EQ(story[1], "exited: stopped for 5.0 s");
}

TEST_F(WatcherTest, AFenceIsAnsweredAgainWhenAskedAgain) {
  start("sleep 100");
  watcher.fence(id, "why");
  ASSERT_TRUE(told(1));
  watcher.fence(id, "why");
  ASSERT_TRUE(told(2));
  EXPECT_EQ(story[0], story[1]);
  reap();
}

TEST_F(WatcherTest, ChildrenThatChangedTheirSessionAreFoundAndKilled) {
  const WorkerProcess worker = start("setsid sh -c 'echo $$; exec sleep 100' & wait");
  const pid_t child = std::stoi(read_line(worker.output));
  EXPECT_NE(::getpgid(child), worker.pid);
  watcher.fence(id, "why");
  EXPECT_TRUE(reap().has_value());
  EXPECT_GE(watcher.kill_leftovers(0ms), 1u);
  EXPECT_TRUE(tree_is_gone(child));
  EXPECT_TRUE(eventually([&] { return watcher.kill_leftovers(0ms) == 0; }));
}

TEST_F(WatcherTest, ADaemonIsFoundByItsEnvironment) {
  const WorkerProcess worker = start("(setsid sh -c 'echo $$; exec sleep 100' &) ; sleep 100");
  const pid_t child = std::stoi(read_line(worker.output));
  EXPECT_TRUE(eventually([&] { return process_state(child)->parent == ::getpid(); }));
  bool found = false;
  for (const TreeMember& member : tree_members({{worker.pid, id}})) {
    if (member.pid == child) found = member.known && member.worker == id;
  }
  EXPECT_TRUE(found);
  watcher.fence(id, "why");
  reap();
  watcher.kill_leftovers(0ms);
  EXPECT_TRUE(tree_is_gone(child));
}

TEST_F(WatcherTest, LeftoversHaveTheirGrace) {
  const WorkerProcess worker = start("sleep 100 & echo $!");
  const pid_t child = std::stoi(read_line(worker.output));
  EXPECT_EQ(reap(), 0);
  EXPECT_EQ(watcher.kill_leftovers(60s), 1u);
  EXPECT_NE(process_state(child)->letter, 'Z');
  EXPECT_EQ(watcher.kill_leftovers(0ms), 1u);
  EXPECT_TRUE(tree_is_gone(child));
}

TEST(WorkerProcess, SaysWhyAProgramCannotBeStarted) {
  const auto missing = start_worker(std::vector<std::string>{"no-such-program"}, environment);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(), HasSubstr("cannot start 'no-such-program'"));
  EXPECT_THAT(missing.status().message(), HasSubstr("PATH"));
}

TEST(WorkerProcess, StartsWithAnEmptyStdinDefaultSignalsAndItsOwnGroup) {
  ::signal(SIGPIPE, SIG_IGN);
  auto worker =
      start_worker(std::vector<std::string>{"sh", "-c", "cat; grep SigIgn /proc/self/status; echo end"}, environment);
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ(::getpgid(worker.value().pid), worker.value().pid);
  // Signals 32 and 33 are glibc's own: its posix_spawn leaves them ignored until threads need them.
  const std::string ignored = read_line(worker.value().output);
  EXPECT_EQ(std::stoull(ignored.substr(ignored.find('\t')), nullptr, 16) & ~0x180000000ull, 0u) << ignored;
  EXPECT_EQ(read_line(worker.value().output), "end");
  ::waitpid(worker.value().pid, nullptr, 0);
}

TEST(WorkerProcess, TheStatusOfAZombieIsKnownBeforeItIsReaped) {
  auto worker = start_worker(std::vector<std::string>{"sh", "-c", "exit 3"}, environment);
  ASSERT_TRUE(worker.ok());
  EXPECT_TRUE(eventually([&] { return has_ended(worker.value().process); }));
  EXPECT_EQ(status_of_ending(worker.value().pid), 3 << 8);
  ::waitpid(worker.value().pid, nullptr, 0);
  EXPECT_EQ(status_of_ending(worker.value().pid), -1);
}

}  // namespace
}  // namespace closeranks::agent
