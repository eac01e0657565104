#include "transport/shared_arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "child_process.h"

namespace closeranks::transport {
namespace {

constexpr std::uint64_t mib = 1024 * 1024;
const ArenaIdentity identity{"job", WorkerId(3), Slot(2)};

std::shared_ptr<OwnArena> small_arena(std::uint64_t capacity = 256 * mib) {
  auto arena = OwnArena::create(identity, capacity);
  EXPECT_TRUE(arena.ok()) << arena.status().message();
  return arena.value();
}

std::uint64_t offset_of(const OwnArena& arena, const std::byte* block) { return arena.offset_of(block, 1).value(); }

// Runs `body` in a child, whose exit status is 0 when no expectation of it failed.
void in_child(const std::function<void()>& body) {
  ChildProcess child([&body](const Channel&) {
    body();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(SharedArena, PeersSeeTheSameBytes) {
  const auto own = small_arena();
  auto peer = PeerArena::attach(own->descriptor().duplicate(), identity);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  EXPECT_EQ(peer.value().capacity(), 256 * mib);
  EXPECT_EQ(peer.value().pid(), static_cast<std::uint32_t>(::getpid()));
  std::byte* block = own->allocate(3 * mib);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 4096, 0u);
  std::memset(block, 7, 3 * mib);
  std::byte* theirs = peer.value().range(offset_of(*own, block), 3 * mib);
  ASSERT_NE(theirs, nullptr);
  EXPECT_NE(theirs, block);
  EXPECT_EQ(std::memcmp(theirs, block, 3 * mib), 0);
  std::memset(theirs + mib, 8, mib);
  EXPECT_EQ(block[2 * mib - 1], std::byte{8});
  EXPECT_EQ(own->range(offset_of(*own, block), 3 * mib), block);
  own->release(block);
}

TEST(SharedArena, LargeBlocksAreAlignedToHugePages) {
  const auto own = small_arena();
  own->allocate(mib);
  for (const std::uint64_t bytes : {2 * mib, 5 * mib, 32 * mib}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(own->allocate(bytes)) % (2 * mib), 0u);
  }
}

TEST(SharedArena, OffsetsOnlyOfWhatLiesInside) {
  const auto own = small_arena(64 * mib);
  auto peer = PeerArena::attach(own->descriptor().duplicate(), identity);
  ASSERT_TRUE(peer.ok());
  std::byte* block = own->allocate(64 * mib);
  const std::uint64_t first = offset_of(*own, block);
  EXPECT_EQ(first, 2 * mib);
  EXPECT_TRUE(own->contains(block, 64 * mib));
  EXPECT_FALSE(own->contains(block, 64 * mib + 1));
  EXPECT_FALSE(own->contains(block - 1, 1));
  EXPECT_FALSE(own->contains(nullptr, 1));
  EXPECT_FALSE(own->contains(&first, sizeof(first)));
  for (const auto& range : {std::pair<std::uint64_t, std::uint64_t>{first, 64 * mib}, {first + 64 * mib, 0}}) {
    EXPECT_NE(own->range(range.first, range.second), nullptr);
    EXPECT_NE(peer.value().range(range.first, range.second), nullptr);
  }
  constexpr std::uint64_t all = ~std::uint64_t{0};
  for (const auto& range : {std::pair<std::uint64_t, std::uint64_t>{0, 1},
                            {first - 1, 1},
                            {first, 64 * mib + 1},
                            {first + 64 * mib, 1},
                            {first + 64 * mib + 1, 0},
                            {first, all},
                            {all, 1},
                            {all, all}}) {
    EXPECT_EQ(own->range(range.first, range.second), nullptr) << range.first << " " << range.second;
    EXPECT_EQ(peer.value().range(range.first, range.second), nullptr) << range.first << " " << range.second;
  }
  own->release(block);
}

TEST(SharedArena, FullItHasNoRoom) {
  const auto own = small_arena(64 * mib);
  std::byte* half = own->allocate(32 * mib);
  std::byte* other = own->allocate(32 * mib);
  ASSERT_TRUE(half != nullptr && other != nullptr);
  EXPECT_EQ(own->allocate(1), nullptr);
  own->release(half);
  EXPECT_EQ(own->allocate(32 * mib), half);
  own->release(nullptr);
  EXPECT_EQ(own->usage().in_use_bytes, 64 * mib);
  EXPECT_EQ(own->usage().blocks, 2u);
}

TEST(SharedArena, ClosedItGivesNothingAndTakesBack) {
  const auto own = small_arena();
  std::byte* block = own->allocate(mib);
  own->close();
  EXPECT_EQ(own->allocate(mib), nullptr);
  std::memset(block, 1, mib);
  own->release(block);
  EXPECT_EQ(own->usage().blocks, 0u);
}

TEST(SharedArena, WithoutRoom) {
  const auto own = small_arena(0);
  EXPECT_EQ(own->allocate(1), nullptr);
  EXPECT_EQ(own->usage().capacity_bytes, 0u);
  EXPECT_EQ(own->range(2 * mib, 1), nullptr);
  EXPECT_FALSE(own->contains(&own, 1));
  auto peer = PeerArena::attach(own->descriptor().duplicate(), identity);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  EXPECT_EQ(peer.value().capacity(), 0u);
  EXPECT_EQ(peer.value().range(2 * mib, 1), nullptr);
}

TEST(SharedArena, TakesMemoryOnlyAsPagesAreTouched) {
  const auto own = small_arena(1ull << 40);
  EXPECT_LT(own->usage().resident_bytes, 4 * mib);
  std::byte* block = own->allocate(1ull << 39);
  ASSERT_NE(block, nullptr);
  block[12345] = std::byte{1};
  EXPECT_LT(own->usage().resident_bytes, 8 * mib);
  own->release(block);
}

TEST(SharedArena, ReleasedMemoryIsUsedAgainAndTheSurplusGivenBack) {
  const auto own = small_arena(8ull << 30);
  // 768 MiB at once, once; then little: what was idle beyond the bound goes back.
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 24; ++i) {
    blocks.push_back(own->allocate(32 * mib));
    for (std::uint64_t at = 0; at < 32 * mib; at += 4096) blocks.back()[at] = std::byte{1};
  }
  const std::uint64_t resident = own->usage().resident_bytes;
  EXPECT_GE(resident, 768 * mib);
  for (std::byte* block : blocks) own->release(block);
  EXPECT_EQ(own->usage().resident_bytes, resident) << "kept for the next step";
  EXPECT_EQ(own->usage().idle_bytes, 768 * mib);
  for (std::uint64_t i = 0; i <= 2 * ArenaAllocator::recent_allocations; ++i) {
    std::byte* block = own->allocate(mib);
    block[0] = std::byte{1};
    own->release(block);
  }
  const auto usage = own->usage();
  EXPECT_LE(usage.idle_bytes, ArenaAllocator::idle_slack_bytes + mib);
  EXPECT_LE(usage.resident_bytes, usage.idle_bytes + 8 * mib);
  EXPECT_EQ(usage.given_back_bytes, 768 * mib - usage.idle_bytes);
  // What went back reads as zeros, and works.
  std::byte* block = own->allocate(768 * mib);
  std::memset(block, 3, 768 * mib);
  EXPECT_EQ(block[768 * mib - 1], std::byte{3});
  own->release(block);
}

TEST(SharedArena, ALoopOfManySizesIsBounded) {
  const auto own = small_arena(8ull << 30);
  std::mt19937_64 random(1);
  std::vector<std::pair<std::byte*, std::uint64_t>> live;
  std::uint64_t in_use = 0;
  std::uint64_t peak = 0;
  for (int step = 0; step < 3000; ++step) {
    if (live.size() < 12) {
      const std::uint64_t bytes = mib + random() % (9 * mib);
      std::byte* block = own->allocate(bytes);
      ASSERT_NE(block, nullptr);
      block[0] = block[bytes - 1] = std::byte(step);
      live.emplace_back(block, bytes);
      in_use += bytes;
      peak = std::max(peak, in_use);
    } else {
      std::swap(live[random() % live.size()], live.back());
      own->release(live.back().first);
      in_use -= live.back().second;
      live.pop_back();
    }
    const auto usage = own->usage();
    ASSERT_LE(usage.in_use_bytes + usage.idle_bytes, peak + ArenaAllocator::idle_slack_bytes + 12 * 4096);
  }
}

TEST(SharedArena, ManyThreads) {
  const auto own = small_arena(4ull << 30);
  std::vector<std::thread> threads;
  std::atomic<bool> torn{false};
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937_64 random(static_cast<std::uint64_t>(id));
      std::vector<std::pair<std::byte*, std::uint64_t>> live;
      for (int step = 0; step < 1500; ++step) {
        if (live.size() < 8 && random() % 3 != 0) {
          const std::uint64_t bytes = 4096 + random() % (64 * mib);
          std::byte* block = own->allocate(bytes);
          if (block == nullptr) continue;
          block[0] = block[bytes - 1] = std::byte(id);
          live.emplace_back(block, bytes);
        } else if (!live.empty()) {
          const auto [block, bytes] = live.back();
          live.pop_back();
          if (block[0] != std::byte(id) || block[bytes - 1] != std::byte(id)) torn = true;
          own->release(block);
        }
        static_cast<void>(own->usage());
      }
      for (const auto& [block, bytes] : live) own->release(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(torn);
  EXPECT_EQ(own->usage().blocks, 0u);
  EXPECT_EQ(own->usage().in_use_bytes, 0u);
}

// -- what a peer sends ------------------------------------------------------------------------------------------------

TEST(PeerArena, RefusesAnotherIdentity) {
  const auto own = small_arena();
  const auto attach = [&](const ArenaIdentity& expected) {
    return PeerArena::attach(own->descriptor().duplicate(), expected).status();
  };
  EXPECT_TRUE(attach(identity).ok());
  for (const ArenaIdentity& other :
       {ArenaIdentity{"other", WorkerId(3), Slot(2)}, {"job", WorkerId(4), Slot(2)}, {"job", WorkerId(3), Slot(1)}}) {
    const Status status = attach(other);
    EXPECT_EQ(status.fault(), Fault::refused);
    EXPECT_EQ(status.slot, other.slot);
    EXPECT_EQ(status.worker, other.worker);
  }
}

TEST(PeerArena, RefusesWhatIsNoArena) {
  const auto refused = [](FileDescriptor descriptor) {
    return PeerArena::attach(std::move(descriptor), identity).status().fault() == Fault::refused;
  };
  EXPECT_TRUE(refused(std::move(make_memfd("short", 4096).value())));
  EXPECT_TRUE(refused(std::move(make_memfd("odd", 2 * mib + 4096).value())));
  EXPECT_TRUE(refused(std::move(make_memfd("huge", 33ull << 40).value())));
  EXPECT_TRUE(refused(std::move(make_memfd("zeros", 4 * mib).value())));
  FileDescriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4 * mib), 0);
  EXPECT_TRUE(refused(std::move(unsealed)));
  EXPECT_TRUE(refused(FileDescriptor(::open("/dev/null", O_RDWR | O_CLOEXEC))));
  EXPECT_FALSE(PeerArena::attach(FileDescriptor(), identity).ok());
}

TEST(PeerArena, RefusesEachWrongHeaderField) {
  const std::uint64_t total = 4 * mib;
  const auto status_of = [&](const ArenaHeader& header) {
    auto descriptor = make_memfd("header", total);
    EXPECT_EQ(::pwrite(descriptor.value().get(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
    return PeerArena::attach(std::move(descriptor.value()), identity).status();
  };
  const ArenaHeader good = make_arena_header(identity, total);
  EXPECT_TRUE(status_of(good).ok());
  const auto wrong = [&](const std::function<void(ArenaHeader&)>& change) {
    ArenaHeader header = good;
    change(header);
    return status_of(header).fault() == Fault::refused;
  };
  EXPECT_TRUE(wrong([](ArenaHeader& h) { h.magic ^= 1; }));
  EXPECT_TRUE(wrong([](ArenaHeader& h) { h.version = 2; }));
  EXPECT_TRUE(wrong([](ArenaHeader& h) { h.header_bytes = 64; }));
  EXPECT_TRUE(wrong([](ArenaHeader& h) { h.total_bytes = 6 * mib; }));
  EXPECT_TRUE(wrong([](ArenaHeader& h) { h.data_offset = 0; }));
  EXPECT_TRUE(wrong([](ArenaHeader& h) { h.worker = 9; }));
  EXPECT_TRUE(wrong([](ArenaHeader& h) { h.slot = 9; }));
  EXPECT_TRUE(wrong([](ArenaHeader& h) { h.job.fill('x'); }));  // not terminated
  ArenaHeader future = good;
  future.version = 7;
  EXPECT_NE(status_of(future).message().find("layout version is 7, expected 1"), std::string::npos);
}

TEST(PeerArena, SurvivesItsOwner) {
  ChildProcess child([](const Channel& parent) {
    const auto own = small_arena();
    std::byte* block = own->allocate(mib);
    std::memset(block, 42, mib);
    parent.say('a', &own->descriptor());
    parent.hear();
    return 0;
  });
  FileDescriptor descriptor;
  ASSERT_EQ(child.channel().hear(&descriptor), 'a');
  auto peer = PeerArena::attach(std::move(descriptor), identity);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  child.kill(SIGKILL);
  child.wait();
  EXPECT_EQ(peer.value().range(2 * mib, mib)[mib - 1], std::byte{42});
}

TEST(PeerArena, IsNotInForkChildren) {
  const auto own = small_arena();
  auto peer = PeerArena::attach(own->descriptor().duplicate(), identity);
  std::byte* theirs = peer.value().range(2 * mib, 4096);
  ChildProcess child([&](const Channel&) {
    unsigned char present = 0;
    return ::mincore(theirs, 4096, &present) == -1 && errno == ENOMEM ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
}

// -- detach -----------------------------------------------------------------------------------------------------------

TEST(Detach, APeerThatStillWritesChangesNothing) {
  const auto own = small_arena();
  std::byte* block = own->allocate(4 * mib);
  std::memset(block, 1, 4 * mib);
  const std::uint64_t offset = offset_of(*own, block);
  // A second process that writes into the second half of the block without pause.
  ChildProcess writer([](const Channel& parent) {
    FileDescriptor descriptor;
    if (parent.hear(&descriptor) != 'a') return 1;
    auto peer = PeerArena::attach(std::move(descriptor), identity);
    if (!peer.ok()) return 2;
    std::byte* at = peer.value().range(4 * mib, 2 * mib);
    for (unsigned round = 2;; ++round) {
      std::memset(at, static_cast<int>(round), 2 * mib);
      if (round == 3) parent.say('w');
    }
  });
  writer.channel().say('a', &own->descriptor());
  ASSERT_EQ(writer.channel().hear(), 'w');
  ASSERT_EQ(offset, 2 * mib);
  const Status status = own->detach(4 * mib, 2 * mib);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<std::byte> seen(block + 2 * mib, block + 4 * mib);
  EXPECT_TRUE(eventually([&] { return std::memcmp(own->range(4 * mib, 2 * mib), seen.data(), 2 * mib) != 0; },
                         std::chrono::seconds(20)))
      << "the writer goes on";
  for (int i = 0; i < 50; ++i) {
    ::usleep(1000);
    ASSERT_EQ(std::memcmp(block + 2 * mib, seen.data(), 2 * mib), 0);
  }
  // The same at the same address, private, and writable.
  std::memset(block + 2 * mib, 9, 2 * mib);
  ::usleep(5000);
  EXPECT_EQ(block[3 * mib], std::byte{9});
  EXPECT_EQ(block[mib], std::byte{1});
  EXPECT_EQ(*own->range(offset, 1), std::byte{1}) << "the rest is shared as before";
  EXPECT_TRUE(own->contains(block, 2 * mib));
  EXPECT_FALSE(own->contains(block + 2 * mib, 1));
  EXPECT_FALSE(own->contains(block, 2 * mib + 1));
  EXPECT_FALSE(own->contains(block, 4 * mib));
  own->release(block);
}

TEST(Detach, IsRoundedToPagesAndMayRepeat) {
  const auto own = small_arena();
  std::byte* block = own->allocate(mib);
  for (std::uint64_t i = 0; i < mib; ++i) block[i] = std::byte(i * 7);
  const std::uint64_t offset = offset_of(*own, block);
  ASSERT_TRUE(own->detach(offset + 5000, 100).ok());
  EXPECT_TRUE(own->contains(block, 4096));
  EXPECT_FALSE(own->contains(block + 4096, 1));
  EXPECT_TRUE(own->contains(block + 8192, 1));
  block[5000] = std::byte{99};
  // What is private already stays as it is; around it more becomes private.
  ASSERT_TRUE(own->detach(offset + 4095, 8192).ok());
  EXPECT_EQ(block[5000], std::byte{99});
  EXPECT_EQ(own->range(offset + 5000, 1)[0], std::byte(5000 * 7 % 256));
  block[5000] = std::byte(5000 * 7 % 256);
  EXPECT_FALSE(own->contains(block, 1));
  for (std::uint64_t i = 0; i < mib; ++i) ASSERT_EQ(block[i], std::byte(i * 7)) << i;
  own->release(block);
  EXPECT_EQ(own->usage().retired_bytes, 3 * 4096u);
}

TEST(Detach, KeepsWhatOtherThreadsStoreMeanwhile) {
  const auto own = small_arena();
  constexpr std::uint64_t bytes = 2 * mib;
  std::byte* block = own->allocate(bytes);
  const std::uint64_t offset = offset_of(*own, block);
  std::memset(block, 0, bytes);
  // A thread counts up in every page; a store lost at the exchange of the pages would be seen as an old count.
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> mistakes{0};
  std::atomic<std::uint64_t> rounds{0};
  std::thread writer([&] {
    std::uint64_t count = 0;
    while (!stop) {
      for (std::uint64_t at = 0; at < bytes; at += 4096) {
        auto& word = reinterpret_cast<std::atomic<std::uint64_t>&>(block[at]);
        if (word.load(std::memory_order_relaxed) != count) ++mistakes;
        word.store(count + 1, std::memory_order_relaxed);
      }
      ++count;
      ++rounds;
    }
  });
  while (rounds < 3) std::this_thread::yield();
  for (std::uint64_t at = 0; at < bytes; at += 64 * 4096) {
    ASSERT_TRUE(own->detach(offset + at, 64 * 4096).ok());
    std::this_thread::yield();
  }
  const std::uint64_t then = rounds;
  while (rounds < then + 3) std::this_thread::yield();
  stop = true;
  writer.join();
  EXPECT_EQ(mistakes, 0u);
  own->release(block);
}

TEST(Detach, FetchBringsTheResultsOfAnotherOp) {
  const auto own = small_arena();
  auto peer = PeerArena::attach(own->descriptor().duplicate(), identity);
  std::byte* block = own->allocate(mib);
  std::memset(block, 1, mib);
  const std::uint64_t offset = offset_of(*own, block);
  EXPECT_FALSE(own->fetch(offset, mib)) << "nothing is detached";
  ASSERT_TRUE(own->detach(offset + 4096, 4096).ok());
  // Another op, its output in the same page and the next: its peers write to the pages they know.
  std::memset(peer.value().range(offset + 6000, 4000), 2, 4000);
  EXPECT_EQ(own->range(offset + 6000, 1)[0], std::byte{2});
  EXPECT_EQ(block[6000], std::byte{1});
  EXPECT_EQ(block[9000], std::byte{2});
  EXPECT_TRUE(own->fetch(offset + 6000, 4000));
  EXPECT_EQ(block[5999], std::byte{1});
  EXPECT_EQ(block[6000], std::byte{2});
  EXPECT_EQ(block[9999], std::byte{2});
  EXPECT_FALSE(own->fetch(offset + 8192, 4096));
  own->release(block);
}

TEST(Detach, OffsetsAreNeverHandedOutAgainAndTheirMemoryGoesBack) {
  const auto own = small_arena(64 * mib);
  std::byte* block = own->allocate(32 * mib);
  std::memset(block, 1, 32 * mib);
  const std::uint64_t offset = offset_of(*own, block);
  const std::uint64_t resident = own->usage().resident_bytes;
  ASSERT_TRUE(own->detach(offset + 8 * mib, 16 * mib, OldPages::given_back).ok());
  own->release(block);
  const auto usage = own->usage();
  EXPECT_EQ(usage.retired_bytes, 16 * mib);
  EXPECT_EQ(usage.idle_bytes, 16 * mib);
  EXPECT_EQ(usage.in_use_bytes, 0u);
  EXPECT_EQ(usage.resident_bytes, resident - 16 * mib);
  std::vector<std::byte*> blocks;
  while (std::byte* next = own->allocate(mib)) {
    EXPECT_TRUE(next + mib <= block + 8 * mib || next >= block + 24 * mib);
    next[0] = std::byte{5};
    blocks.push_back(next);
  }
  EXPECT_EQ(blocks.size(), 48u);
  for (std::byte* next : blocks) own->release(next);
}

TEST(Detach, APeerThatStillReadsFindsWhatWasThere) {
  const auto own = small_arena(64 * mib);
  auto peer = PeerArena::attach(own->descriptor().duplicate(), identity);
  std::byte* block = own->allocate(8 * mib);
  std::memset(block, 1, 8 * mib);
  const std::uint64_t offset = offset_of(*own, block);
  ASSERT_TRUE(own->detach(offset, 4 * mib, OldPages::given_back).ok());
  ASSERT_TRUE(own->detach(offset + 2 * mib, 4 * mib, OldPages::kept).ok());
  std::memset(block, 2, 8 * mib);
  own->release(block);
  while (std::byte* next = own->allocate(mib)) std::memset(next, 3, mib);
  const std::byte* theirs = peer.value().range(offset, 8 * mib);
  EXPECT_EQ(theirs[0], std::byte{0}) << "given back";
  for (std::uint64_t at = 2 * mib; at < 6 * mib; at += 4096) ASSERT_EQ(theirs[at], std::byte{1}) << at;
  EXPECT_EQ(theirs[6 * mib], std::byte{3}) << "used again";
}

// -- fork -------------------------------------------------------------------------------------------------------------

TEST(ForkedChild, ReadsWhatItInheritsAndWritesForItself) {
  const auto own = small_arena();
  auto peer = PeerArena::attach(own->descriptor().duplicate(), identity);
  std::byte* block = own->allocate(2 * mib);
  std::memset(block, 5, 2 * mib);
  in_child([&] {
    EXPECT_EQ(block[2 * mib - 1], std::byte{5});
    std::memset(block, 6, mib);
    EXPECT_EQ(block[0], std::byte{6});
    EXPECT_EQ(block[mib], std::byte{5});
    // A child of the child has what its parent has written.
    in_child([&] {
      EXPECT_EQ(block[0], std::byte{6});
      EXPECT_EQ(block[mib], std::byte{5});
      block[0] = std::byte{7};
    });
    EXPECT_EQ(block[0], std::byte{6});
  });
  EXPECT_EQ(block[0], std::byte{5});
  EXPECT_EQ(*peer.value().range(offset_of(*own, block), 1), std::byte{5});
  own->release(block);
}

TEST(ForkedChild, KeepsDetachedPagesToo) {
  const auto own = small_arena();
  std::byte* block = own->allocate(mib);
  std::memset(block, 1, mib);
  ASSERT_TRUE(own->detach(offset_of(*own, block) + 8192, 4096).ok());
  block[8192] = std::byte{2};
  in_child([&] {
    EXPECT_EQ(block[8192], std::byte{2});
    EXPECT_EQ(block[8193], std::byte{1});
    EXPECT_EQ(block[12288], std::byte{1});
    block[8192] = block[12288] = std::byte{3};
  });
  EXPECT_EQ(block[8192], std::byte{2});
  EXPECT_EQ(block[12288], std::byte{1});
  own->release(block);
}

TEST(ForkedChild, ReadsABlockAfterItsParentHasReleasedIt) {
  const auto own = small_arena();
  std::byte* block = own->allocate(4 * mib);
  std::memset(block, 5, 4 * mib);
  ChildProcess child([&](const Channel& parent) {
    parent.say('r');
    if (parent.hear() != 'c') return 1;
    // The parent has released the block and used as much memory again since.
    for (std::uint64_t at = 0; at < 4 * mib; ++at) {
      if (block[at] != std::byte{5}) return 2;
    }
    return 0;
  });
  ASSERT_EQ(child.channel().hear(), 'r');
  own->release(block);
  EXPECT_EQ(own->usage().blocks, 0u);
  EXPECT_EQ(own->usage().held_bytes, 4 * mib);
  // Blocks from after the fork come and go as ever.
  for (int i = 0; i < 100; ++i) {
    std::byte* other = own->allocate(4 * mib);
    ASSERT_NE(other, block);
    std::memset(other, 6, 4 * mib);
    own->release(other);
  }
  EXPECT_EQ(own->usage().in_use_bytes, 4 * mib);
  EXPECT_EQ(own->usage().idle_bytes, 4 * mib);
  child.channel().say('c');
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(own->allocate(8 * mib), block) << "both pieces, now that the child is gone";
  EXPECT_EQ(own->usage().held_bytes, 0u);
}

TEST(ForkedChild, IsWaitedForByNumber) {
  const auto own = small_arena();
  std::byte* before = own->allocate(mib);
  ChildProcess first([](const Channel& parent) { return parent.hear() == 'c' ? 0 : 1; });
  std::byte* between = own->allocate(mib);
  ChildProcess second([](const Channel& parent) { return parent.hear() == 'c' ? 0 : 1; });
  own->release(before);
  own->release(between);
  EXPECT_EQ(own->usage().held_bytes, 2 * mib);
  second.channel().say('c');
  EXPECT_EQ(second.wait(), 0);
  own->release(own->allocate(4096));
  EXPECT_EQ(own->usage().held_bytes, mib) << "the first child has the first block only";
  first.channel().say('c');
  EXPECT_EQ(first.wait(), 0);
  own->release(own->allocate(4096));
  EXPECT_EQ(own->usage().held_bytes, 0u);
}

TEST(ForkedChild, ThatCallsExecNeedsNothing) {
  const auto own = small_arena();
  std::byte* block = own->allocate(mib);
  ChildProcess child([](const Channel&) {
    ::execl("/bin/sleep", "sleep", "20", nullptr);
    return 1;
  });
  own->release(block);
  EXPECT_TRUE(eventually(
      [&] {
        own->release(own->allocate(4096));
        return own->usage().held_bytes == 0;
      },
      std::chrono::seconds(20)));
}

TEST(ForkedChild, TakesNothingAndGivesNothingBack) {
  const auto own = small_arena();
  std::byte* block = own->allocate(2 * mib);
  std::memset(block, 5, 2 * mib);
  in_child([&] {
    EXPECT_EQ(own->allocate(mib), nullptr);
    own->release(block);
    EXPECT_EQ(block[0], std::byte{5});
    own->close();
    EXPECT_EQ(own->usage().blocks, 0u);
  });
  EXPECT_EQ(own->usage().blocks, 1u);
  std::byte* other = own->allocate(2 * mib);
  EXPECT_NE(other, block);
  own->release(block);
  own->release(other);
}

TEST(ForkedChild, HasNotTheDescriptor) {
  const auto own = small_arena();
  const int number = own->descriptor().get();
  in_child([&] { EXPECT_EQ(::fcntl(number, F_GETFD), -1); });
}

TEST(ForkedChild, DestroysItsCopyWithoutHarm) {
  auto own = small_arena();
  std::byte* block = own->allocate(mib);
  const int number = own->descriptor().get();
  in_child([&] {
    // The number is another file's by now.
    const int other = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(::dup2(other, number), number);
    own.reset();
    EXPECT_NE(::fcntl(number, F_GETFD), -1);
    block[0] = std::byte{1};  // tensors that the child holds stay usable
  });
  own->release(block);
}

TEST(ForkedChild, OfAProcessWhoseThreadsAllocate) {
  const auto own = small_arena();
  std::byte* block = own->allocate(mib);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) own->release(own->allocate(mib));
  });
  for (int i = 0; i < 30; ++i) {
    in_child([&] {
      ::alarm(20);  // a lock that the other thread held would never be free
      EXPECT_EQ(own->allocate(mib), nullptr);
      own->release(block);
    });
  }
  stop = true;
  busy.join();
  own->release(block);
}

// -- limits -----------------------------------------------------------------------------------------------------------

TEST(ArenaCapacity, IsTheMachinesMemoryUnlessLimited) {
  const auto physical =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t capacity = arena_capacity(4);
  EXPECT_GE(capacity, physical);
  EXPECT_LT(capacity, physical + 2 * mib);
  EXPECT_EQ(capacity % (2 * mib), 0u);
  // So many processes that all arenas together would not fit into one address space.
  EXPECT_LE(arena_capacity(1u << 14), (32ull << 40) >> 14);
  EXPECT_EQ(arena_capacity(1u << 20), 0u);
}

TEST(ArenaCapacity, IsLessWhereTheAddressSpaceIsLimited) {
  in_child([] {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const std::uint64_t room = 4ull << 30;
    const rlimit limit{pages * 4096 + room, pages * 4096 + room};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    const std::uint64_t capacity = arena_capacity(3);
    EXPECT_LE(capacity, room / 8);
    EXPECT_GE(capacity, room / 8 - 32 * mib);
    EXPECT_TRUE(OwnArena::create(identity, capacity).ok());
    EXPECT_EQ(arena_capacity(1000), 0u);
  });
}

TEST(ArenaCapacity, ShrinksUntilTheSystemAgrees) {
  in_child([] {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * 4096 + 1024 * mib, pages * 4096 + 1024 * mib};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    auto own = OwnArena::create(identity, 16ull << 30);
    ASSERT_TRUE(own.ok()) << own.status().message();
    EXPECT_EQ(own.value()->usage().capacity_bytes, 512 * mib);
    EXPECT_NE(own.value()->allocate(256 * mib), nullptr);
    // Nothing is left for a peer's: an error with its cause, no crash.
    auto peer = PeerArena::attach(own.value()->descriptor().duplicate(), identity);
    auto second = PeerArena::attach(own.value()->descriptor().duplicate(), identity);
    EXPECT_EQ(second.status().fault(), Fault::system);
  });
}

TEST(ArenaCapacity, NoneWhereNothingIsLeft) {
  in_child([] {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlimit limit{pages * 4096 + 32 * mib, pages * 4096 + 32 * mib};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    EXPECT_EQ(arena_capacity(2), 0u);
    auto own = OwnArena::create(identity, 16ull << 30);
    ASSERT_TRUE(own.ok()) << own.status().message();
    EXPECT_EQ(own.value()->usage().capacity_bytes, 0u);
    EXPECT_EQ(own.value()->allocate(4096), nullptr);
  });
}

TEST(ArenaCapacity, HeedsTheLimitOnFileSizes) {
  in_child([] {
    // Beyond it the kernel would not only refuse but send SIGXFSZ.
    const rlimit limit{512 * mib, 512 * mib};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_EQ(arena_capacity(2), 510 * mib);
    EXPECT_TRUE(OwnArena::create(identity, arena_capacity(2)).ok());
  });
}

TEST(SharedArena, LeavesNoDescriptorBehind) {
  const std::size_t before = open_descriptors();
  {
    const auto own = small_arena();
    auto peer = PeerArena::attach(own->descriptor().duplicate(), identity);
    auto refused = PeerArena::attach(own->descriptor().duplicate(), {});
    std::byte* block = own->allocate(mib);
    EXPECT_TRUE(own->detach(2 * mib, mib).ok());
    own->release(block);
    in_child([] {});
    own->release(own->allocate(mib));
    EXPECT_EQ(open_descriptors(), before + 1);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace closeranks::transport
