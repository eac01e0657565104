// What one process writes on its wait board, others read: whole, or not at all, whatever lies there.
#include "transport/wait_board.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "child_process.h"
#include "transport/life.h"

namespace closeranks::transport {
namespace {

using namespace std::chrono_literals;

WaitKey key(std::uint64_t worker, std::uint64_t wait, std::uint32_t record = 0) {
  return {WorkerId(worker), wait, record};
}

WaitRecord told(bool any, std::vector<WaitKey> awaited, std::string call) {
  WaitRecord record;
  record.any = any;
  record.group = {GroupKey(0xfeed), 77};
  record.awaited = std::move(awaited);
  record.call = std::move(call);
  return record;
}

CircleThread thread_of(const WaitKey& key, std::uint64_t group) { return {key, {GroupKey(group), 1}}; }

class Board : public ::testing::Test {
 protected:
  std::unique_ptr<WaitBoardWords> words_ = std::make_unique<WaitBoardWords>();
  OwnWaitBoard own_{words_.get()};
  WaitBoard board_{words_.get()};
};

TEST_F(Board, ARecordIsReadAsItWasWritten) {
  EXPECT_FALSE(board_.record(0));
  EXPECT_TRUE(board_.blocked().empty());
  const auto taken = own_.take(4711);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->wait, 1u);
  auto record = board_.record(taken->record);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->thread, 4711u);
  EXPECT_TRUE(record->awaited.empty());
  EXPECT_EQ(record->call, "");

  own_.tell(*taken,
            told(true, {key(3, 9, 7), key(~std::uint64_t{0}, 1)}, "recv of 4 float32 from any rank of group 'tp'"));
  record = board_.record(taken->record);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->wait, taken->wait);
  EXPECT_TRUE(record->any);
  EXPECT_EQ(record->group, (GroupEpoch{GroupKey(0xfeed), 77}));
  EXPECT_EQ(record->awaited, (std::vector<WaitKey>{key(3, 9, 7), key(~std::uint64_t{0}, 1)}));
  EXPECT_EQ(record->call, "recv of 4 float32 from any rank of group 'tp'");
  EXPECT_TRUE(board_.lasts(taken->record, taken->wait));

  own_.release(*taken);
  EXPECT_FALSE(board_.record(taken->record));
  EXPECT_FALSE(board_.lasts(taken->record, taken->wait));
  EXPECT_TRUE(board_.blocked().empty());
}

TEST_F(Board, AWaitsNumberIsNeverUsedAgain) {
  std::uint64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    const auto taken = own_.take(1);
    ASSERT_TRUE(taken);
    EXPECT_GT(taken->wait, last);
    last = taken->wait;
    own_.release(*taken);
  }
}

TEST_F(Board, ThereAreEightRecords) {
  std::vector<OwnWaitBoard::Taken> taken;
  for (std::uint32_t thread = 1; thread <= wait_records; ++thread) {
    const auto one = own_.take(thread);
    ASSERT_TRUE(one);
    taken.push_back(*one);
  }
  EXPECT_FALSE(own_.take(99));
  EXPECT_EQ(board_.blocked().size(), wait_records);
  own_.release(taken[5]);
  const auto again = own_.take(99);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->record, taken[5].record);
  EXPECT_FALSE(board_.lasts(taken[5].record, taken[5].wait));
  EXPECT_TRUE(board_.lasts(again->record, again->wait));
}

TEST_F(Board, OfAThreadThatWaitsTwiceTheInnerWaitCounts) {
  const auto outer = own_.take(7);
  const auto inner = own_.take(7);
  const auto other = own_.take(8);
  own_.tell(*inner, told(false, {key(1, 1)}, ""));
  auto blocked = board_.blocked();
  ASSERT_EQ(blocked.size(), 2u);
  EXPECT_EQ(blocked[0].wait, inner->wait);
  EXPECT_EQ(blocked[0].record, inner->record);
  EXPECT_TRUE(blocked[0].waits_for_blocked);
  EXPECT_EQ(blocked[1].wait, other->wait);
  EXPECT_FALSE(blocked[1].waits_for_blocked);
  own_.release(*inner);
  blocked = board_.blocked();
  ASSERT_EQ(blocked.size(), 2u);
  EXPECT_EQ(blocked[0].wait, outer->wait);
}

TEST_F(Board, WhatIsTooLongIsCut) {
  const auto taken = own_.take(1);
  std::vector<WaitKey> many;
  for (std::uint64_t i = 0; i < 40; ++i) many.push_back(key(i, i + 1));
  own_.tell(*taken, told(false, many, std::string(1000, 'x')));
  const auto record = board_.record(taken->record);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->awaited, std::vector<WaitKey>(many.begin(), many.begin() + awaited_threads));
  EXPECT_EQ(record->call, std::string(call_text_bytes - 1, 'x'));
  std::vector<CircleThread> circle;
  for (const WaitKey& one : many) circle.push_back(thread_of(one, one.wait));
  own_.declare({{GroupKey(1), 1}, 0, circle, std::string(5000, 'y')});
  ASSERT_EQ(board_.verdicts().size(), 1u);
  EXPECT_EQ(board_.verdicts()[0].circle, std::vector<CircleThread>(circle.begin(), circle.begin() + circle_threads));
  EXPECT_EQ(board_.verdicts()[0].sentence, std::string(sentence_bytes - 1, 'y'));
}

TEST_F(Board, TheLastVerdictsAreKept) {
  EXPECT_FALSE(board_.has_verdicts());
  EXPECT_TRUE(board_.verdicts().empty());
  const std::vector<CircleThread> circle{thread_of(key(0, 4, 1), 5), thread_of(key(1, 9, 2), 6)};
  own_.declare({{GroupKey(5), 77}, 3, circle, "rank 0 waits for rank 1 for rank 0"});
  EXPECT_TRUE(board_.has_verdicts());
  const auto verdicts = board_.verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].group, (GroupEpoch{GroupKey(5), 77}));
  EXPECT_EQ(verdicts[0].place, 3u);
  EXPECT_EQ(verdicts[0].circle, circle);
  EXPECT_EQ(verdicts[0].sentence, "rank 0 waits for rank 1 for rank 0");
  for (std::uint64_t i = 0; i < wait_verdicts; ++i) own_.declare({{GroupKey(10 + i), 1}, 0, {}, ""});
  std::vector<std::uint64_t> groups;
  for (const WaitVerdict& verdict : board_.verdicts()) groups.push_back(verdict.group.group.value());
  std::sort(groups.begin(), groups.end());
  EXPECT_EQ(groups, (std::vector<std::uint64_t>{10, 11, 12, 13, 14, 15, 16, 17}));
}

TEST_F(Board, TextOfAStrangerHasNoControlCharacters) {
  const auto taken = own_.take(1);
  own_.tell(*taken, told(false, {}, "a\nb\x1b[31m\xff"));
  EXPECT_EQ(board_.record(taken->record)->call, "a?b?[31m?");
}

// A process that ends in the middle of a store leaves an odd sequence for ever.
TEST_F(Board, ATornRecordIsNoRecord) {
  const auto taken = own_.take(1);
  WaitRecordWords& words = words_->records[taken->record];
  words.sequence.fetch_add(1);
  EXPECT_FALSE(board_.record(taken->record));
  EXPECT_TRUE(board_.blocked().empty());
  words_->verdicts[0].sequence = 1;
  EXPECT_TRUE(board_.verdicts().empty());
}

TEST_F(Board, ACountOrARecordThatCannotBeIsNoRecord) {
  const auto taken = own_.take(1);
  own_.tell(*taken, told(false, {key(1, 1)}, "x"));
  WaitRecordWords& words = words_->records[taken->record];
  words.awaited_count = awaited_threads + 1;
  EXPECT_FALSE(board_.record(taken->record));
  words.awaited_count = ~0u;
  EXPECT_FALSE(board_.record(taken->record));
  words.awaited_count = 1;
  EXPECT_TRUE(board_.record(taken->record));
  words.awaited[0].record = wait_records;
  EXPECT_FALSE(board_.record(taken->record));
  words.awaited[0].record = 0;
  words.thread = std::uint64_t{1} << 32;
  EXPECT_FALSE(board_.record(taken->record));
  EXPECT_FALSE(board_.record(wait_records));
  EXPECT_FALSE(board_.lasts(wait_records, 1));
  EXPECT_FALSE(board_.lasts(0, 0));
  own_.declare({{GroupKey(1), 1}, 0, {thread_of(key(1, 1), 1)}, "x"});
  words_->verdicts[0].circle_count = circle_threads + 1;
  EXPECT_TRUE(board_.verdicts().empty());
}

// The owner keeps its own account: a stranger's stores disturb readers, never the owner.
TEST_F(Board, StrayStoresDoNotStopTheOwner) {
  const auto taken = own_.take(1);
  words_->records[taken->record].wait = 12345;
  words_->records[taken->record].sequence = 7;
  own_.tell(*taken, told(false, {}, "still here"));
  own_.release(*taken);
  const auto again = own_.take(1);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->record, taken->record);
  EXPECT_TRUE(board_.record(again->record));
}

TEST_F(Board, GarbageIsReadWithinItsBounds) {
  std::mt19937_64 random(0x5eed);
  auto* bytes = reinterpret_cast<std::uint64_t*>(words_.get());
  for (int round = 0; round < 2'000; ++round) {
    for (std::size_t i = 0; i < sizeof(WaitBoardWords) / 8; ++i) {
      // Small numbers too: they get further.
      bytes[i] = random() >> (random() % 64);
    }
    for (std::uint32_t i = 0; i < wait_records; ++i) {
      const auto record = board_.record(i);
      if (!record) continue;
      EXPECT_LE(record->awaited.size(), awaited_threads);
      EXPECT_LE(record->call.size(), call_text_bytes);
      for (const WaitKey& awaited : record->awaited) EXPECT_LT(awaited.record, wait_records);
    }
    EXPECT_LE(board_.blocked().size(), wait_records);
    for (const WaitVerdict& verdict : board_.verdicts()) {
      EXPECT_LE(verdict.circle.size(), circle_threads);
      EXPECT_LE(verdict.sentence.size(), sentence_bytes);
    }
  }
}

// A writer that never stops: what is read is always one of its states, whole.
TEST_F(Board, AReaderNeverSeesAMixture) {
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop.load(); ++i) {
      const auto taken = own_.take(static_cast<std::uint32_t>(i % 1000 + 1));
      const std::vector<WaitKey> awaited(i % (awaited_threads + 1), key(taken->wait, taken->wait, i % wait_records));
      const std::string call(taken->wait % 250, static_cast<char>('a' + taken->wait % 26));
      own_.tell(*taken, told(i % 2 == 0, awaited, call));
      const std::vector<CircleThread> circle(i % (circle_threads + 1),
                                             thread_of(awaited.empty() ? key(1, 1) : awaited[0], i));
      own_.declare({{GroupKey(i), i}, 0, circle, std::string(i % 900, 'z')});
      if (i % 4 == 0) std::this_thread::yield();  // one core may be all there is: let it be read, too
      own_.release(*taken);
    }
  });
  std::uint64_t seen = 0;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (seen < 1'000 && std::chrono::steady_clock::now() < until) {
    if (const auto record = board_.record(0)) {
      ++seen;
      if (!record->call.empty()) {
        EXPECT_EQ(record->call, std::string(record->wait % 250, static_cast<char>('a' + record->wait % 26)));
      }
      for (const WaitKey& awaited : record->awaited) {
        EXPECT_EQ(awaited.worker.value(), record->wait);
        EXPECT_EQ(awaited.wait, record->wait);
      }
    }
    for (const WaitVerdict& verdict : board_.verdicts()) {
      EXPECT_EQ(verdict.group.group.value(), verdict.group.epoch);
      EXPECT_EQ(verdict.sentence.size(), verdict.group.epoch % 900);
      EXPECT_EQ(verdict.circle.size(), verdict.group.epoch % (circle_threads + 1));
      for (const CircleThread& thread : verdict.circle) EXPECT_EQ(thread.group.group, verdict.group.group);
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(seen, 10u);
}

// In the life memory, from another process, and after its end.
TEST(LifeBoard, APeerReadsItAndItOutlivesTheProcess) {
  const LifeIdentity identity{"job", WorkerId(7), Slot(2)};
  ChildProcess child([&](const Channel& parent) {
    auto life = OwnLife::create(identity, watchers_of(4));
    if (!life.ok()) return 1;
    const auto taken = life.value()->own_wait_board().take(42);
    life.value()->own_wait_board().tell(*taken, told(false, {key(1, 2, 3)}, "barrier #0 of group 'dp'"));
    if (!parent.say('l', &life.value()->descriptor())) return 2;
    parent.hear();
    life.value()->own_wait_board().declare(
        {{GroupKey(9), 1}, 5, {thread_of(key(7, 1), 9), thread_of(key(1, 2, 3), 8)}, "they wait"});
    life.value()->own_wait_board().release(*taken);
    return 0;
  });
  FileDescriptor descriptor;
  ASSERT_EQ(child.channel().hear(&descriptor), 'l');
  auto peer = PeerLife::attach(std::move(descriptor), identity, 0, Access::read_only);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const WaitBoard board = peer.value().wait_board();
  const auto blocked = board.blocked();
  ASSERT_EQ(blocked.size(), 1u);
  EXPECT_EQ(blocked[0].thread, 42u);
  const auto record = board.record(blocked[0].record);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->call, "barrier #0 of group 'dp'");
  EXPECT_EQ(record->awaited, std::vector<WaitKey>{key(1, 2, 3)});
  child.channel().say('g');
  child.wait();
  EXPECT_NE(peer.value().state(), LifeState::alive);
  EXPECT_FALSE(board.lasts(blocked[0].record, blocked[0].wait));
  ASSERT_EQ(board.verdicts().size(), 1u);
  EXPECT_EQ(board.verdicts()[0].sentence, "they wait");
}

}  // namespace
}  // namespace closeranks::transport
