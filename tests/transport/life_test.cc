#include "transport/life.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "child_process.h"
#include "transport/waiter.h"

namespace closeranks::transport {
namespace {

using namespace std::chrono_literals;

const LifeIdentity identity{"job", WorkerId(7), Slot(2)};
constexpr std::uint32_t slots = 4;

// A child that holds its life words and tells its parent; then does `rest`.
int live(const Channel& parent, const std::function<int(OwnLife&)>& rest) {
  auto life = OwnLife::create(identity, watchers_of(slots));
  if (!life.ok() || !parent.say('l', &life.value()->descriptor())) {
    return 99;
  }
  return rest(*life.value());
}

int sleep_for_ever(OwnLife&) {
  for (;;) {
    ::pause();
  }
}

PeerLife attach(const ChildProcess& child, std::uint32_t watcher, Access access = Access::read_write) {
  FileDescriptor descriptor;
  EXPECT_EQ(child.channel().hear(&descriptor), 'l');
  auto peer = PeerLife::attach(std::move(descriptor), identity, watcher, access);
  EXPECT_TRUE(peer.ok()) << peer.status().message();
  return std::move(peer.value());
}

// Sleeps (without spinning) until the peer is gone.
Wake sleep_on(const OwnLife& own, const PeerLife& peer, bool with_waitv, std::chrono::milliseconds bound) {
  Waiter waiter(own.doorbell(), sleep_at_once);
  if (!with_waitv) {
    waiter.forbid_waitv();
  }
  const std::array<const PeerLife*, 1> peers{&peer};
  return waiter.wait([] { return false; }, [&] { return std::span(peers); }, Waiter::Clock::now() + bound);
}

std::unique_ptr<OwnLife> own_life() {
  return std::move(OwnLife::create({"job", WorkerId(1), Slot(0)}, watchers_of(slots)).value());
}

std::string mappings_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/maps");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Life, KilledProcessIsSeenDead) {
  ChildProcess child([](const Channel& parent) { return live(parent, sleep_for_ever); });
  const PeerLife peer = attach(child, 0);
  EXPECT_EQ(peer.state(), LifeState::alive);
  EXPECT_EQ(peer.pid(), static_cast<std::uint32_t>(child.pid()));
  child.kill(SIGKILL);
  EXPECT_TRUE(eventually([&] { return peer.died(); }, 5s));
}

TEST(Life, EveryWatcherIsMarked) {
  ChildProcess child([](const Channel& parent) { return live(parent, sleep_for_ever); });
  FileDescriptor descriptor;
  ASSERT_EQ(child.channel().hear(&descriptor), 'l');
  std::vector<PeerLife> peers;
  for (std::uint32_t watcher = 0; watcher < watchers_of(slots); ++watcher) {
    auto peer = PeerLife::attach(descriptor.duplicate(), identity, watcher);
    ASSERT_TRUE(peer.ok());
    peers.push_back(std::move(peer.value()));
  }
  child.kill(SIGKILL);
  for (const PeerLife& peer : peers) {
    EXPECT_TRUE(eventually([&] { return peer.died(); }, 5s));
  }
}

// Kills a process whose death somebody sleeps on. True when that was woken, not merely looking at the end of the
// longest single sleep.
bool woken_by_death(std::uint32_t watcher, Access access, bool with_waitv) {
  ChildProcess child([](const Channel& parent) { return live(parent, sleep_for_ever); });
  const PeerLife peer = attach(child, watcher, access);
  const auto own = own_life();
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    child.kill(SIGKILL);
  });
  const auto start = Waiter::Clock::now();
  EXPECT_EQ(sleep_on(*own, peer, with_waitv, 10s), Wake::death);
  const bool woken = Waiter::Clock::now() - start < 900ms;
  killer.join();
  return woken;
}

class LifeSleep : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutWaitv, LifeSleep, ::testing::Bool());

TEST_P(LifeSleep, DeathWakesASleeper) {
  EXPECT_TRUE(once_in_three([] { return woken_by_death(0, Access::read_write, GetParam()); }));
}

TEST_P(LifeSleep, OrderlyLeaveWakesASleeperAsDeparted) {
  ChildProcess child([](const Channel& parent) {
    return live(parent, [&](OwnLife& life) {
      parent.hear();
      life.depart();
      return sleep_for_ever(life);
    });
  });
  const PeerLife peer = attach(child, 0);
  const auto own = own_life();
  std::thread teller([&] {
    std::this_thread::sleep_for(50ms);
    child.channel().say('g');
  });
  EXPECT_EQ(sleep_on(*own, peer, GetParam(), 10s), Wake::death);
  teller.join();
  EXPECT_EQ(peer.state(), LifeState::departed);
  child.kill(SIGKILL);
  child.wait();
  EXPECT_EQ(peer.state(), LifeState::departed);  // the death of one that has left changes nothing
}

TEST(Life, ObserverWithoutWriteAccessIsWokenToo) {
  EXPECT_TRUE(once_in_three([] { return woken_by_death(observer_watcher(slots, 0), Access::read_only, true); }));
}

TEST(Life, AllSleepersOfAProcessWake) {
  EXPECT_TRUE(once_in_three([] {
    ChildProcess child([](const Channel& parent) { return live(parent, sleep_for_ever); });
    const PeerLife peer = attach(child, 0);
    const auto own = own_life();
    std::atomic<int> woken{0};
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 3; ++i) {
      sleepers.emplace_back([&] {
        const auto start = Waiter::Clock::now();
        EXPECT_EQ(sleep_on(*own, peer, true, 10s), Wake::death);
        woken += Waiter::Clock::now() - start < 900ms ? 1 : 0;
      });
    }
    std::this_thread::sleep_for(100ms);
    child.kill(SIGKILL);
    for (std::thread& sleeper : sleepers) {
      sleeper.join();
    }
    return woken == 3;
  }));
}

TEST(Life, ExitAndExecCountAsDeath) {
  ChildProcess exits([](const Channel& parent) {
    return live(parent, [&](OwnLife&) -> int {
      parent.hear();
      ::_exit(0);
    });
  });
  ChildProcess execs([](const Channel& parent) {
    return live(parent, [&](OwnLife&) {
      parent.hear();
      ::execl("/bin/sleep", "sleep", "20", nullptr);
      return 98;
    });
  });
  const PeerLife exiting = attach(exits, 0);
  const PeerLife executing = attach(execs, 0);
  EXPECT_EQ(exiting.state(), LifeState::alive);
  EXPECT_EQ(executing.state(), LifeState::alive);
  exits.channel().say('g');
  execs.channel().say('g');
  EXPECT_TRUE(eventually([&] { return exiting.died(); }, 5s));
  EXPECT_TRUE(eventually([&] { return executing.died(); }, 5s));
}

// A stopped process is not dead (and a forked child of a worker neither keeps its life nor ends it).
TEST(Life, StopAndForkChildrenAreNoDeath) {
  ChildProcess child([](const Channel& parent) {
    return live(parent, [&](OwnLife& life) {
      const pid_t loader = ::fork();
      if (loader == 0) {
        parent.say('f');
        parent.hear();
        life.~OwnLife();  // what an interpreter that tidies up in its children would do
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(loader, &status, 0);
      parent.say(status == 0 ? 'w' : 'x');
      return sleep_for_ever(life);
    });
  });
  const PeerLife peer = attach(child, 0);
  ASSERT_EQ(child.channel().hear(), 'f');
  EXPECT_NE(mappings_of(child.pid()).find("closeranks-life"), std::string::npos);
  std::ifstream children("/proc/" + std::to_string(child.pid()) + "/task/" + std::to_string(child.pid()) + "/children");
  pid_t loader = 0;
  children >> loader;
  ASSERT_GT(loader, 0);
  EXPECT_EQ(mappings_of(loader).find("closeranks-life"), std::string::npos);
  child.channel().say('e');
  ASSERT_EQ(child.channel().hear(), 'w');
  EXPECT_EQ(peer.state(), LifeState::alive);
  child.kill(SIGSTOP);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(peer.state(), LifeState::alive);
  child.kill(SIGKILL);
  EXPECT_TRUE(eventually([&] { return peer.died(); }, 5s));
}

TEST(Life, RefusesWhatIsNoLifeMemory) {
  const auto own = own_life();
  const LifeIdentity right{"job", WorkerId(1), Slot(0)};
  const auto refused = [&](const FileDescriptor& descriptor, const LifeIdentity& expected, std::uint32_t watcher) {
    return PeerLife::attach(descriptor.duplicate(), expected, watcher).status();
  };
  EXPECT_TRUE(refused(own->descriptor(), right, 0).ok());
  EXPECT_EQ(refused(own->descriptor(), {"other", WorkerId(1), Slot(0)}, 0).fault(), Fault::refused);
  EXPECT_EQ(refused(own->descriptor(), {"job", WorkerId(2), Slot(0)}, 0).fault(), Fault::refused);
  EXPECT_EQ(refused(own->descriptor(), {"job", WorkerId(1), Slot(1)}, 0).fault(), Fault::refused);
  EXPECT_EQ(refused(own->descriptor(), right, watchers_of(slots)).fault(), Fault::refused);
  const auto tiny = make_memfd("tiny", 64);
  ASSERT_TRUE(tiny.ok());
  EXPECT_EQ(refused(tiny.value(), right, 0).fault(), Fault::refused);
  const auto zeros = make_memfd("zeros", 4096);
  ASSERT_TRUE(zeros.ok());
  EXPECT_EQ(refused(zeros.value(), right, 0).fault(), Fault::refused);
  const FileDescriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(refused(unsealed, right, 0).fault(), Fault::refused);
  EXPECT_EQ(OwnLife::create(right, max_watchers + 1).status().fault(), Fault::invalid_argument);
}

TEST(Life, ManyWatchersAreWithinTheKernelsWalk) {
  ChildProcess child([](const Channel& parent) {
    auto life = OwnLife::create(identity, max_watchers);
    parent.say('l', &life.value()->descriptor());
    return sleep_for_ever(*life.value());
  });
  const PeerLife last = attach(child, max_watchers - 1);
  child.kill(SIGKILL);
  EXPECT_TRUE(eventually([&] { return last.died(); }, 5s));
}

TEST(Life, LeavesNoDescriptorAndNoMappingBehind) {
  const std::size_t before = open_descriptors();
  {
    const auto own = own_life();
    auto peer = PeerLife::attach(own->descriptor().duplicate(), own->identity(), 0);
    ASSERT_TRUE(peer.ok());
    EXPECT_EQ(peer.value().state(), LifeState::alive);
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(mappings_of(::getpid()).find("closeranks"), std::string::npos);
}

}  // namespace
}  // namespace closeranks::transport
