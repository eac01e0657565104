// The search for circles of blocked threads: against a plain one that tries every set, and look by look.
#include "communicator/order_cycle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

namespace closeranks::communicator {
namespace {

using std::chrono::milliseconds;
using transport::WaitKey;
using transport::WaitRecord;

// Worker w's thread t in its first wait.
WaitKey at(std::uint64_t worker, std::uint32_t thread = 0, std::uint64_t wait = 1) {
  return {WorkerId(worker), wait, thread};
}

WaitRecord waiting(std::vector<WaitKey> awaited, bool any = false) {
  WaitRecord record;
  record.wait = 1;
  record.thread = 1;
  record.any = any;
  record.awaited = std::move(awaited);
  return record;
}

using Keys = std::vector<WaitKey>;

TEST(OrderCycle, TwoThatWaitForEachOther) {
  const Waits waits{{at(0), waiting({at(1)})}, {at(1), waiting({at(0)})}};
  const auto cycle = find_cycle(waits, at(1));
  ASSERT_TRUE(cycle);
  EXPECT_EQ(cycle->circle, (Keys{at(1), at(0)}));
  EXPECT_EQ(cycle->stuck, (Keys{at(0), at(1)}));
  EXPECT_EQ(from_the_lowest(cycle->circle), (Keys{at(0), at(1)}));
}

TEST(OrderCycle, AChainIsNone) {
  const Waits waits{{at(0), waiting({at(1)})}, {at(1), waiting({at(2)})}, {at(2), waiting({})}};
  for (std::uint64_t worker = 0; worker < 3; ++worker) EXPECT_FALSE(find_cycle(waits, at(worker)));
}

TEST(OrderCycle, WhatIsNotBlockedAnyMoreEndsIt) {
  EXPECT_FALSE(find_cycle({{at(0), waiting({at(1)})}}, at(0)));                                   // its record is gone
  EXPECT_FALSE(find_cycle({{at(0), waiting({at(1)})}, {at(1, 0, 2), waiting({at(0)})}}, at(0)));  // another wait
  EXPECT_FALSE(find_cycle({}, at(0)));
}

TEST(OrderCycle, WhoWaitsForACircleIsNotInIt) {
  const Waits waits{{at(0), waiting({at(1)})}, {at(1), waiting({at(0)})}, {at(2), waiting({at(0)})}};
  EXPECT_TRUE(find_cycle(waits, at(0)));
  EXPECT_FALSE(find_cycle(waits, at(2)));
}

TEST(OrderCycle, AMemberIsStuckOnlyWithAllThreadsThatMayCall) {
  Waits waits{{at(0), waiting({at(1, 0), at(1, 1)})}, {at(1, 0), waiting({at(0)})}, {at(1, 1), waiting({})}};
  EXPECT_FALSE(find_cycle(waits, at(0)));
  waits[at(1, 1)] = waiting({at(0)});
  const auto cycle = find_cycle(waits, at(0));
  ASSERT_TRUE(cycle);
  EXPECT_EQ(cycle->circle.size(), 2u);
  EXPECT_EQ(cycle->stuck, (Keys{at(0), at(1, 0), at(1, 1)}));
}

TEST(OrderCycle, OneMemberThatIsStuckIsEnough) {
  const Waits waits{{at(0), waiting({at(1), at(2), at(3)})}, {at(2), waiting({at(0)})}, {at(3), waiting({})}};
  const auto cycle = find_cycle(waits, at(0));
  ASSERT_TRUE(cycle);
  EXPECT_EQ(cycle->circle, (Keys{at(0), at(2)}));
}

TEST(OrderCycle, ARecvFromAnyIsStuckOnlyWithEverySource) {
  Waits waits{{at(0), waiting({at(1), at(2)}, true)}, {at(1), waiting({at(0)})}, {at(2), waiting({})}};
  EXPECT_FALSE(find_cycle(waits, at(0)));
  EXPECT_FALSE(find_cycle(waits, at(1)));
  waits[at(2)] = waiting({at(1)});
  const auto cycle = find_cycle(waits, at(1));
  ASSERT_TRUE(cycle);
  EXPECT_EQ(cycle->circle, (Keys{at(1), at(0)}));
  EXPECT_EQ(cycle->stuck, (Keys{at(0), at(1), at(2)}));
  waits[at(0)] = waiting({}, true);  // its sources are not known to be blocked
  EXPECT_FALSE(find_cycle(waits, at(0)));
}

TEST(OrderCycle, TheShortestCircleIsTold) {
  const Waits waits{{at(0), waiting({at(1), at(3)})},
                    {at(1), waiting({at(2)})},
                    {at(2), waiting({at(0)})},
                    {at(3), waiting({at(0)})}};
  EXPECT_EQ(find_cycle(waits, at(0))->circle, (Keys{at(0), at(3)}));
  EXPECT_EQ(find_cycle(waits, at(1))->circle, (Keys{at(1), at(2), at(0)}));
}

TEST(OrderCycle, ARingOfAThousand) {
  Waits waits;
  constexpr std::uint64_t size = 1000;
  for (std::uint64_t i = 0; i < size; ++i) waits[at(i)] = waiting({at((i + 1) % size)});
  EXPECT_EQ(find_cycle(waits, at(17))->circle.size(), size);
  waits[at(500)] = waiting({});
  EXPECT_FALSE(find_cycle(waits, at(17)));
}

// The plain search: a set of waits is stuck when each of them waits for others of the set only; `self` is in a circle
// when, in the largest such set, it can be reached from itself.
bool set_holds(const Waits& waits, const Keys& keys, unsigned set) {
  const auto in_set = [&](const WaitKey& key) {
    const auto place = std::find(keys.begin(), keys.end(), key);
    return place != keys.end() && (set >> (place - keys.begin()) & 1u) != 0;
  };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if ((set >> i & 1u) == 0) continue;
    const WaitRecord& record = waits.at(keys[i]);
    bool waits_in_set = record.any && !record.awaited.empty();
    if (record.any) {
      for (const WaitKey& key : record.awaited) waits_in_set = waits_in_set && in_set(key);
    } else {
      for (const WaitKey& first : record.awaited) {
        bool all = true;
        for (const WaitKey& key : record.awaited) all = all && (key.worker != first.worker || in_set(key));
        waits_in_set = waits_in_set || all;
      }
    }
    if (!waits_in_set) return false;
  }
  return true;
}

struct Plain {
  unsigned largest = 0;  // set of stuck waits
  std::vector<unsigned> reaches;
};

Plain plain_search(const Waits& waits, const Keys& keys) {
  Plain plain;
  for (unsigned set = 0; set < 1u << keys.size(); ++set) {
    if (set_holds(waits, keys, set)) plain.largest |= set;  // such sets united are one
  }
  const std::size_t n = keys.size();
  plain.reaches.assign(n, 0);
  const auto stuck = [&](const WaitKey& key) {
    const auto place = std::find(keys.begin(), keys.end(), key);
    return place != keys.end() && (plain.largest >> (place - keys.begin()) & 1u) != 0;
  };
  for (std::size_t i = 0; i < n; ++i) {
    if ((plain.largest >> i & 1u) == 0) continue;
    const WaitRecord& record = waits.at(keys[i]);
    for (const WaitKey& to : record.awaited) {
      const bool counts = std::all_of(record.awaited.begin(), record.awaited.end(), [&](const WaitKey& key) {
        return (!record.any && key.worker != to.worker) || stuck(key);
      });
      if (counts) plain.reaches[i] |= 1u << (std::find(keys.begin(), keys.end(), to) - keys.begin());
    }
  }
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      if ((plain.reaches[i] >> k & 1u) != 0) plain.reaches[i] |= plain.reaches[k];
    }
  }
  return plain;
}

TEST(OrderCycle, FindsWhatThePlainSearchFinds) {
  std::mt19937 random(20'26);
  std::uint64_t cycles = 0;
  std::uint64_t with_any = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::uint64_t workers = 1 + random() % 5;
    Keys keys;
    for (std::uint64_t worker = 0; worker < workers; ++worker) {
      for (std::uint32_t thread = 0; thread <= random() % 2; ++thread) keys.push_back(at(worker, thread));
    }
    Waits waits;
    for (const WaitKey& key : keys) {
      std::vector<WaitKey> awaited;
      const std::size_t count = random() % 4;
      for (std::size_t i = 0; i < count; ++i) {
        // Some of them have ended, or never were.
        WaitKey to = keys[random() % keys.size()];
        if (random() % 12 == 0) to.wait = 7;
        if (std::find(awaited.begin(), awaited.end(), to) == awaited.end()) awaited.push_back(to);
      }
      waits[key] = waiting(awaited, random() % 4 == 0);
    }
    const Plain plain = plain_search(waits, keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto cycle = find_cycle(waits, keys[i]);
      ASSERT_EQ(cycle.has_value(), (plain.reaches[i] >> i & 1u) != 0) << "round " << round << ", wait " << i;
      if (!cycle) continue;
      ++cycles;
      with_any += waits.at(keys[i]).any ? 1 : 0;
      EXPECT_TRUE(still_there(*cycle, waits));
      ASSERT_EQ(cycle->circle.front(), keys[i]);
      unsigned named = 0;
      for (const WaitKey& key : cycle->stuck) named |= 1u << (std::find(keys.begin(), keys.end(), key) - keys.begin());
      EXPECT_TRUE(set_holds(waits, keys, named)) << "round " << round;
      for (const WaitKey& key : cycle->circle) {
        EXPECT_TRUE(std::binary_search(cycle->stuck.begin(), cycle->stuck.end(), key));
        EXPECT_EQ(std::count(cycle->circle.begin(), cycle->circle.end(), key), 1);
      }
      // Any of the stuck that goes on ends it.
      for (const WaitKey& key : cycle->stuck) {
        Waits later = waits;
        later.erase(key);
        EXPECT_FALSE(still_there(*cycle, later));
      }
    }
  }
  EXPECT_GT(cycles, 2'000u);
  EXPECT_GT(with_any, 100u);
}

class Watch : public ::testing::Test {
 protected:
  std::optional<OrderCycle> look(const Waits& waits, int ms) {
    return watch_.look(waits, at(0), CycleWatch::Time{} + milliseconds{ms});
  }
  CycleWatch watch_;
  const Waits circle_{{at(0), waiting({at(1)})}, {at(1), waiting({at(0)})}};
};

TEST_F(Watch, ACircleIsDeclaredWhenItHasLasted) {
  EXPECT_FALSE(look(circle_, 1000));
  EXPECT_TRUE(watch_.seen());
  EXPECT_FALSE(look(circle_, 1499));
  EXPECT_TRUE(look(circle_, 1500));
  EXPECT_TRUE(look(circle_, 1750));
}

TEST_F(Watch, AnotherWaitBeginsTheTimeAnew) {
  EXPECT_FALSE(look(circle_, 0));
  const Waits later{{at(0), waiting({at(1, 0, 2)})}, {at(1, 0, 2), waiting({at(0)})}};
  EXPECT_FALSE(look(later, 500));
  EXPECT_FALSE(look(later, 999));
  EXPECT_TRUE(look(later, 1000));
}

TEST_F(Watch, OneLookWithoutItBeginsTheTimeAnew) {
  EXPECT_FALSE(look(circle_, 0));
  EXPECT_FALSE(look({{at(0), waiting({at(1)})}}, 250));
  EXPECT_FALSE(watch_.seen());
  EXPECT_FALSE(look(circle_, 500));
  EXPECT_TRUE(look(circle_, 1000));
}

// A member that computes is in nobody's record: nothing is ever seen, however long it takes.
TEST_F(Watch, AWaitForSomebodyWhoComputesIsNeverDeclared) {
  const Waits waits{{at(0), waiting({})}, {at(1), waiting({at(0)})}};
  for (int ms = 0; ms < 100'000; ms += 250) {
    EXPECT_FALSE(look(waits, ms));
    EXPECT_FALSE(watch_.seen());
  }
}

// Others that come and go beside it do not keep it from being declared.
TEST_F(Watch, OtherWaitsDoNotDisturbIt) {
  for (int ms = 0; ms < 500; ms += 100) {
    const WaitKey other = at(2, 0, static_cast<std::uint64_t>(ms));
    Waits waits = circle_;
    waits[at(0)] = waiting({at(1), other});
    waits[other] = waiting(ms % 200 == 0 ? Keys{at(0)} : Keys{});
    EXPECT_FALSE(look(waits, ms));
  }
  EXPECT_TRUE(look(circle_, 500));
}

TEST(CircleText, NamesWhoWaitsInWhatForWhom) {
  EXPECT_EQ(describe_circle({{"rank 0", "barrier #1 of group 'a'"}, {"rank 1", "barrier #2 of group 'b'"}}),
            "rank 0 waits in barrier #1 of group 'a' for rank 1, which waits in barrier #2 of group 'b' for rank 0");
  std::vector<CircleMember> many;
  for (int i = 0; i < 7; ++i) many.push_back({"rank " + std::to_string(i), "op " + std::to_string(i)});
  EXPECT_EQ(describe_circle(many),
            "rank 0 waits in op 0 for rank 1, which waits in op 1 for rank 2, which waits in op 2 for rank 3, which "
            "waits in op 3 for rank 4, and so on through 3 more back to rank 0");
}

}  // namespace
}  // namespace closeranks::communicator
