#include "transport/waiter.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

#include "child_process.h"

namespace closeranks::transport {
namespace {

using namespace std::chrono_literals;

// Memory shared with forked children (segments are left out of them on purpose).
struct Shared {
  DoorbellWords bells[2];
  alignas(64) std::atomic<std::uint32_t> turn{0};
};

Shared* make_shared_words() {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Shared;
}

std::span<const PeerLife* const> nobody() { return {}; }

TEST(Waiter, ReturnsAtOnceWhenReady) {
  Shared* shared = make_shared_words();
  Waiter waiter(Doorbell(&shared->bells[0]));
  EXPECT_EQ(waiter.wait([] { return true; }, nobody, Waiter::Clock::now()), Wake::ready);
}

TEST(Waiter, KeepsItsDeadline) {
  Shared* shared = make_shared_words();
  Waiter waiter(Doorbell(&shared->bells[0]));
  const auto start = Waiter::Clock::now();
  EXPECT_EQ(waiter.wait([] { return false; }, nobody, start + 30ms), Wake::deadline);
  EXPECT_GE(Waiter::Clock::now() - start, 30ms);
  EXPECT_LT(Waiter::Clock::now() - start, 5s);
  EXPECT_EQ(shared->bells[0].sleepers, 0u);
}

// Two processes take turns; each sleeps until the other rings. One lost wake costs a whole second.
class PingPong : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutWaitv, PingPong, ::testing::Bool());

TEST_P(PingPong, NoWakeIsLost) {
  constexpr std::uint32_t rounds = 4000;
  Shared* shared = make_shared_words();
  const bool with_waitv = GetParam();
  const auto play = [shared, with_waitv](std::uint32_t side) {
    Waiter waiter(Doorbell(&shared->bells[side]), sleep_at_once);
    if (!with_waitv) {
      waiter.forbid_waitv();
    }
    for (std::uint32_t round = side; round < rounds; round += 2) {
      const auto mine = [&] { return shared->turn.load(std::memory_order_acquire) >= round; };
      if (waiter.wait(mine, nobody, Waiter::Clock::now() + 10s) != Wake::ready) {
        return 1;
      }
      shared->turn.store(round + 1, std::memory_order_release);
      Doorbell(&shared->bells[1 - side]).ring();
    }
    return 0;
  };
  const auto start = Waiter::Clock::now();
  ChildProcess child([&](const Channel&) { return play(1); });
  EXPECT_EQ(play(0), 0);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(shared->turn, rounds);
  // 4000 turns of about 10 us; many lost wakes would take minutes.
  EXPECT_LT(Waiter::Clock::now() - start, 20s);
}

TEST(Waiter, ARingWakesEverySleeperOfTheProcess) {
  EXPECT_TRUE(once_in_three([] {
    Shared* shared = make_shared_words();
    std::atomic<int> woken{0};
    std::vector<std::thread> sleepers;
    for (int i = 0; i < 3; ++i) {
      sleepers.emplace_back([&] {
        Waiter waiter(Doorbell(&shared->bells[0]), sleep_at_once);
        const auto start = Waiter::Clock::now();
        const auto ready = [&] { return shared->turn.load(std::memory_order_acquire) == 1; };
        EXPECT_EQ(waiter.wait(ready, nobody, start + 10s), Wake::ready);
        woken += Waiter::Clock::now() - start < 900ms ? 1 : 0;
      });
    }
    std::this_thread::sleep_for(100ms);
    shared->turn.store(1, std::memory_order_release);
    Doorbell(&shared->bells[0]).ring();
    for (std::thread& sleeper : sleepers) {
      sleeper.join();
    }
    EXPECT_EQ(shared->bells[0].sleepers, 0u);
    return woken == 3;
  }));
}

TEST(Waiter, MorePeersThanTheKernelTakesAtOnce) {
  const auto own = OwnLife::create({"job", WorkerId(1), Slot(0)}, 1);
  ASSERT_TRUE(own.ok());
  ChildProcess child([](const Channel& parent) {
    auto life = OwnLife::create({"job", WorkerId(2), Slot(1)}, 1);
    parent.say('l', &life.value()->descriptor());
    parent.hear();
    return 0;
  });
  FileDescriptor descriptor;
  ASSERT_EQ(child.channel().hear(&descriptor), 'l');
  const auto healthy = PeerLife::attach(own.value()->descriptor().duplicate(), own.value()->identity(), 0);
  const auto mortal = PeerLife::attach(std::move(descriptor), {"job", WorkerId(2), Slot(1)}, 0);
  ASSERT_TRUE(healthy.ok() && mortal.ok());
  std::vector<const PeerLife*> peers(300, &healthy.value());
  peers.push_back(&mortal.value());
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    child.kill(SIGKILL);
  });
  Waiter waiter(own.value()->doorbell(), sleep_at_once);
  const auto start = Waiter::Clock::now();
  EXPECT_EQ(waiter.wait([] { return false; }, [&] { return std::span<const PeerLife* const>(peers); }, start + 10s),
            Wake::death);
  EXPECT_LT(Waiter::Clock::now() - start, 5s);
  killer.join();
}

}  // namespace
}  // namespace closeranks::transport
