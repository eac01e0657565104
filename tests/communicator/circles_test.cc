// Real processes that wait for each other in a circle: found by all of them through shared memory, without a
// coordinator, and nobody is accused who is only slow.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "processes.h"
#include "test_job.h"

namespace closeranks::communicator_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// From the last member's wait to the error. The promise is 2 s; a machine without free cores needs more now and then.
constexpr std::int64_t bound_ms = 5'000;

Call call_of(OpKind kind, std::vector<float>& tensor, std::uint32_t root = 0) {
  Call call;
  call.kind = kind;
  call.dtype = DType::float32;
  call.root = Rank{root};
  if (kind != OpKind::recv && kind != OpKind::barrier) call.inputs = {buffer(tensor)};
  if (kind != OpKind::send && kind != OpKind::barrier) call.outputs = {buffer(tensor)};
  return call;
}

void expect_text(const std::string& text, const std::string& part) {
  require(text.find(part) != std::string::npos, "'" + part + "' is not in '" + text + "'");
}

std::shared_ptr<Communicator> group_of(Engine& engine, const FileBook& files, const std::string& name,
                                       std::vector<std::uint32_t> members) {
  GroupOptions options;
  options.name = name;
  for (const std::uint32_t slot : members) options.members.push_back(Slot{slot});
  options.timeout = std::chrono::seconds{30};
  const AddressBook book = files.book();
  auto made = engine.create_group(options, &book);
  require(made.status(), "group " + name);
  return made.value();
}

// When each member began to wait: memory that they share.
struct Board {
  std::array<std::atomic<std::int64_t>, 8> began{};
  std::atomic<std::uint32_t> accused{0};
  std::atomic<std::uint32_t> ready{0};
  static Board& make() {
    void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (memory) Board;
  }
  static std::int64_t now_ms() {
    return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count();
  }
  void begin(std::uint32_t rank) { began[rank] = now_ms(); }
  [[nodiscard]] std::int64_t since_the_last() const {
    std::int64_t last = 0;
    for (const auto& one : began) last = std::max(last, one.load());
    return now_ms() - last;
  }
  void meet(std::uint32_t members) {
    ready.fetch_add(1);
    const auto until = Clock::now() + std::chrono::seconds{20};
    while (ready.load() < members && Clock::now() < until) std::this_thread::sleep_for(milliseconds{1});
  }
};

// The op ends with the circle's error within the bound, naming both calls.
void expect_circle(const Status& status, const Board& board, const std::vector<std::string>& parts) {
  const std::int64_t took = board.since_the_last();
  require(status.fault() == Fault::mismatch, "fault of: " + status.message());
  require(status.move() == Move::fix_call, "move of: " + status.message());
  for (const std::string& part : parts) expect_text(status.message(), part);
  require(took < bound_ms, "took " + std::to_string(took) + " ms: " + status.message());
}

Status wait_in(Communicator& group, const Call& call, Board& board, std::uint32_t rank) {
  const auto op = group.issue(call);
  board.begin(rank);
  return op->wait(milliseconds{0});
}

// Sizes: in the descriptor, in one piece, in many.
class Circles : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Circles, ::testing::Values(4, 20'000, 3'000'000));

TEST_P(Circles, TwoGroupsInOppositeOrder) {
  const FileBook files;
  Board& board = Board::make();
  const std::size_t count = GetParam();
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    const auto other = group_of(*member.engine, files, "other", {0, 1});
    std::vector<float> tensor(count, 1.0f);
    // Both have been used before, in order.
    for (int i = 0; i < 3; ++i) {
      require(member.group->run(call_of(OpKind::all_reduce, tensor)), "before");
      require(other->run(call_of(OpKind::all_reduce, tensor)), "before, in the other group");
    }
    Communicator& group = rank == 0 ? *member.group : *other;
    const Status status = wait_in(group, call_of(OpKind::all_reduce, tensor), board, rank);
    const std::string call = "waits in all_reduce of " + std::to_string(count) + " float32, sum #";
    expect_circle(status, board,
                  {"rank 0 (pid ", ") " + call, " of group 'world' for rank 1 (pid ", "), which " + call,
                   " of group 'other' for rank 0 (pid ",
                   rank == 0 ? "of group 'world' and all later ops of the group fail"
                             : "of group 'other' and all later ops of the group fail"});
    require(status.group == (rank == 0 ? "world" : "other"), "group");
    require(status.slot == Slot{1 - rank}, "slot");
    require(status.sequence.has_value() && status.op.find("all_reduce") == 0, "op");
    // And it stays so, at once.
    require(group.run(call_of(OpKind::all_reduce, tensor)).fault() == Fault::mismatch, "later op");
    require(group.health().fault() == Fault::mismatch, "health");
    // The op that the other member has given up does not succeed here either.
    Communicator& others = rank == 0 ? *other : *member.group;
    require(others.run(call_of(OpKind::all_reduce, tensor)).fault() == Fault::mismatch, "the other member's op");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(CirclesOf, ThreeGroupsInARing) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(3, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 3, files.book());
    // Group i: members i and i + 1. Each member first calls the one that it shares with the next.
    std::array<std::shared_ptr<Communicator>, 3> pairs;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::uint32_t next = (i + 1) % 3;
      if (rank == i || rank == next) {
        pairs[i] = group_of(*member.engine, files, "pair" + std::to_string(i), {std::min(i, next), std::max(i, next)});
      }
    }
    std::vector<float> tensor(10, 1.0f);
    const Status status = wait_in(*pairs[rank], call_of(OpKind::all_reduce, tensor), board, rank);
    expect_circle(status, board,
                  {"rank 0 (pid ", "of group 'pair0' for rank 1 (pid ", "of group 'pair1' for rank 2 (pid ",
                   "of group 'pair2' for rank 0 (pid "});
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(CirclesOf, ARecvAndACollective) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(10, 1.0f);
    require(member.group->run(call_of(OpKind::all_reduce, tensor)), "before");
    const Call call = rank == 0 ? call_of(OpKind::recv, tensor, 1) : call_of(OpKind::all_reduce, tensor);
    const Status status = wait_in(*member.group, call, board, rank);
    expect_circle(status, board,
                  {"rank 0 (pid ", "waits in recv of 10 float32 from rank 1 of group 'world' for rank 1 (pid ",
                   "waits in all_reduce of 10 float32, sum #1 of group 'world' for rank 0"});
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(CirclesOf, TwoThatReceiveFromEachOther) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(10, 1.0f);
    Call call = call_of(OpKind::recv, tensor, 1 - rank);
    call.any_source = rank == 0;
    const Status status = wait_in(*member.group, call, board, rank);
    expect_circle(status, board, {"recv of 10 float32 from any rank", "recv of 10 float32 from rank 0"});
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// More than fits without a receiver, from both sides.
TEST(CirclesOf, TwoThatSendMuchToEachOther) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(1'000'000, 1.0f);
    const Status status = wait_in(*member.group, call_of(OpKind::send, tensor, 1 - rank), board, rank);
    expect_circle(status, board, {"send of 1000000 float32 to rank 0", "send of 1000000 float32 to rank 1"});
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// Rank 3 waits in an op of the circle and is not part of it: nobody waits for it. Rank 4 comes when it is over.
TEST(CirclesOf, BystandersInTheSameOpFailToo) {
  const FileBook files;
  Board& board = Board::make();
  constexpr std::uint32_t members = 5;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    const auto left = group_of(*member.engine, files, "left", {0, 1, 2, 3, 4});
    const auto right = rank == 3 ? nullptr : group_of(*member.engine, files, "right", {0, 1, 2, 4});
    std::vector<float> tensor(10'000, 1.0f);
    require(left->run(call_of(OpKind::all_reduce, tensor)), "before");
    if (right) require(right->run(call_of(OpKind::all_reduce, tensor)), "before");
    if (rank == 4) std::this_thread::sleep_for(std::chrono::seconds{4});
    const auto before = Clock::now();
    const Status status = wait_in(rank == 1 ? *right : *left, call_of(OpKind::broadcast, tensor), board, rank);
    if (rank == 4) {
      require(status.fault() == Fault::mismatch, "fault of: " + status.message());
      require(Clock::now() - before < milliseconds{bound_ms}, "took long");
      require(right->run(call_of(OpKind::all_reduce, tensor)).fault() == Fault::mismatch, "the other op");
    } else {
      expect_circle(status, board, {"rank 1 (pid ", "of group 'left' for rank 1", "of group 'right' for rank "});
      // Nobody ends before the last has come.
      std::this_thread::sleep_for(std::chrono::seconds{6});
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// Who has declared it may end at once: the others know it all the same.
TEST(CirclesOf, OneThatEndsAtOnceIsNoLoss) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(3, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 3, files.book());
    const auto other = group_of(*member.engine, files, "other", {0, 1, 2});
    std::vector<float> tensor(10, 1.0f);
    Communicator& group = rank == 1 ? *other : *member.group;
    const Status status = wait_in(group, call_of(OpKind::all_reduce, tensor), board, rank);
    expect_circle(status, board, {"of group 'world' for rank ", "of group 'other' for rank "});
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// Three slices of three seconds of work between ops, and ops in flight that nobody waits for.
TEST(CirclesOf, ASlowMemberIsNotAccused) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    const auto other = group_of(*member.engine, files, "other", {0, 1});
    std::vector<float> one(1'000, 1.0f);
    std::vector<float> two(1'000, 1.0f);
    for (int slice = 0; slice < 3; ++slice) {
      if (rank == 0) {
        // Waits in both groups for one that computes; the second op is in flight meanwhile.
        const auto first = member.group->issue(call_of(OpKind::all_reduce, one));
        const auto second = other->issue(call_of(OpKind::all_reduce, two));
        require(second->wait(milliseconds{0}), "second");
        require(first->wait(milliseconds{0}), "first");
      } else {
        const auto second = other->issue(call_of(OpKind::all_reduce, two));
        const auto until = Clock::now() + std::chrono::seconds{3};
        while (Clock::now() < until) std::this_thread::sleep_for(milliseconds{10});
        const auto first = member.group->issue(call_of(OpKind::all_reduce, one));
        require(first->wait(milliseconds{0}), "first");
        require(second->wait(milliseconds{0}), "second");
      }
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// A chain: 0 waits for 1, which waits for 2, which computes.
TEST(CirclesOf, AChainIsNotAccused) {
  const FileBook files;
  Processes processes(3, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 3, files.book());
    const auto near = rank < 2 ? group_of(*member.engine, files, "near", {0, 1}) : nullptr;
    const auto far = rank > 0 ? group_of(*member.engine, files, "far", {1, 2}) : nullptr;
    std::vector<float> tensor(10, 1.0f);
    if (rank == 2) std::this_thread::sleep_for(std::chrono::seconds{4});
    if (far) require(far->run(call_of(OpKind::all_reduce, tensor)), "far");
    if (near) require(near->run(call_of(OpKind::all_reduce, tensor)), "near");
    require(member.group->run(call_of(OpKind::all_reduce, tensor)), "world");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// In each process one thread waits in one group, crosswise, and another thread will call what the other process waits
// for: it has called that group before.
TEST(CirclesOf, AThreadThatCallsLaterIsNotAccused) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    const auto other = group_of(*member.engine, files, "other", {0, 1});
    std::string failed;
    std::atomic<int> turn{0};
    std::thread second([&] {
      try {
        std::vector<float> tensor(10, 1.0f);
        Communicator& group = rank == 0 ? *other : *member.group;
        require(group.run(call_of(OpKind::all_reduce, tensor)), "second thread, first op");
        turn = 1;
        std::this_thread::sleep_for(std::chrono::seconds{4});
        require(group.run(call_of(OpKind::all_reduce, tensor)), "second thread, second op");
      } catch (const std::string& why) {
        failed = why;
      }
    });
    std::vector<float> tensor(10, 1.0f);
    Communicator& group = rank == 0 ? *member.group : *other;
    const Status before = group.run(call_of(OpKind::all_reduce, tensor));
    while (turn.load() == 0 && failed.empty()) std::this_thread::sleep_for(milliseconds{1});
    const Status status = group.run(call_of(OpKind::all_reduce, tensor));
    second.join();
    require(before, "first thread, first op");
    require(status, "first thread, second op");
    return failed;
  });
  EXPECT_EQ(processes.join(), "");
}

// Rank 1 waits in a group that two threads of rank 0 call, and each of them waits for rank 1 in another group.
TEST(CirclesOf, TwoThreadsOfAMemberThatAreBothBlocked) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    const auto left = group_of(*member.engine, files, "left", {0, 1});
    const auto right = group_of(*member.engine, files, "right", {0, 1});
    std::vector<float> tensor(10, 1.0f);
    require(member.group->run(call_of(OpKind::all_reduce, tensor)), "first thread, before");
    std::string failed;
    const auto second = [&] {
      try {
        std::vector<float> mine(10, 1.0f);
        require(member.group->run(call_of(OpKind::all_reduce, mine)), "second thread, before");
        if (rank == 1) return;
        const Status status = wait_in(*right, call_of(OpKind::all_reduce, mine), board, 2);
        expect_circle(status, board, {"of group 'world' for rank 0"});
      } catch (const std::string& why) {
        failed = why;
      }
    };
    std::thread thread;
    if (rank == 0) {
      thread = std::thread(second);
    } else {
      second();
    }
    Communicator& group = rank == 0 ? *left : *member.group;
    const Status status = wait_in(group, call_of(OpKind::all_reduce, tensor), board, rank);
    if (thread.joinable()) thread.join();
    expect_circle(status, board, {"of group 'world' for rank 0"});
    return failed;
  });
  EXPECT_EQ(processes.join(), "");
}

// A caller that comes back by itself is not stuck.
TEST(CirclesOf, APatientLookIsNoWait) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    const auto other = group_of(*member.engine, files, "other", {0, 1});
    std::vector<float> one(10, 1.0f);
    std::vector<float> two(10, 1.0f);
    if (rank == 0) {
      const auto first = member.group->issue(call_of(OpKind::all_reduce, one));
      require(first->wait(std::chrono::seconds{3}).fault() == Fault::timeout, "the look");
      require(other->run(call_of(OpKind::all_reduce, two)), "other");
      require(first->wait(milliseconds{0}), "world");
    } else {
      require(other->run(call_of(OpKind::all_reduce, two)), "other");
      require(member.group->run(call_of(OpKind::all_reduce, one)), "world");
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// An op that a callback calls when another one is done: the thread that waits is not the one it takes.
TEST(CirclesOf, AnOpThatACallbackCallsIsNotMissed) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    const auto chained = group_of(*member.engine, files, "chained", {0, 1});
    const auto last = group_of(*member.engine, files, "last", {0, 1});
    const auto listening = group_of(*member.engine, files, "listening", {0, 1});
    std::vector<float> one(10, 1.0f);
    std::vector<float> two(10, 1.0f);
    std::vector<float> three(10, 1.0f);
    std::vector<float> four(10, 1.0f);
    for (int turn = 0; turn < 2; ++turn) {
      // The first turn shows that "chained" is called by callbacks here, the second one depends on it: "listening"
      // keeps the first op open until its callback is registered, or the caller's own thread would run that.
      if (rank == 0) {
        const auto first = member.group->issue(call_of(OpKind::all_reduce, one));
        std::shared_ptr<Op> second;
        std::atomic<bool> called{false};
        first->when_done([&] {
          second = chained->issue(call_of(OpKind::all_reduce, two));
          called = true;
        });
        require(listening->run(call_of(OpKind::all_reduce, four)), "listening");
        const Status status = last->run(call_of(OpKind::all_reduce, three));
        require(first->wait(std::chrono::seconds{10}), "first");  // before this stack goes: the callback uses it
        require(status, "last");
        require(called.load(), "callback");
        require(second->wait(milliseconds{0}), "chained");
      } else {
        std::thread later([&] {
          static_cast<void>(listening->run(call_of(OpKind::all_reduce, four)));
          std::this_thread::sleep_for(std::chrono::seconds{turn == 0 ? 0 : 3});
          static_cast<void>(member.group->run(call_of(OpKind::all_reduce, one)));
        });
        const Status status = chained->run(call_of(OpKind::all_reduce, two));
        later.join();
        require(status, "chained");
        require(last->run(call_of(OpKind::all_reduce, three)), "last");
      }
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// Four processes with two threads each, that call random ops of random groups in one order, and are late at random:
// waits of every kind, and no circle. CLOSERANKS_SEED and CLOSERANKS_SOAK_SECONDS make it another, and longer.
class OrderlyWork {
 public:
  static constexpr std::uint32_t members = 4;

  OrderlyWork(std::uint32_t rank, std::uint32_t thread, Engine& engine, const FileBook& files, std::uint64_t seed)
      : random_(seed * 2 + thread), own_random_(seed * 1000 + thread * 10 + rank) {
    const std::vector<std::vector<std::uint32_t>> sets{{0, 1, 2, 3}, {0, 1}, {1, 2, 3}, {0, 3}, {0, 2}};
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const bool mine = std::find(sets[i].begin(), sets[i].end(), rank) != sets[i].end();
      const std::string name = "thread" + std::to_string(thread) + "-" + std::to_string(i);
      sizes_.push_back(static_cast<std::uint32_t>(sets[i].size()));
      groups_.push_back(mine ? group_of(engine, files, name, sets[i]) : nullptr);
    }
  }

  // The next op of everybody's order, if this rank is in it.
  void step() {
    const std::size_t which = random_() % groups_.size();
    const std::uint32_t kind = random_() % 4;
    const std::uint32_t from = random_() % sizes_[which];
    const std::uint32_t to = (from + 1 + random_() % (sizes_[which] - 1)) % sizes_[which];
    const std::size_t count = std::array<std::size_t, 3>{3, 5'000, 300'000}[random_() % 3];
    const bool later = random_() % 3 == 0;
    if (own_random_() % 12 == 0) {
      std::this_thread::sleep_for(milliseconds{own_random_() % (own_random_() % 6 == 0 ? 1'800 : 400)});
    }
    if (!groups_[which]) return;
    Communicator& group = *groups_[which];
    const bool sends = kind == 3 && group.rank() == Rank{from};
    const bool receives = kind == 3 && group.rank() == Rank{to};
    if (kind == 3 && !sends && !receives) return;
    tensors_.push_back(std::make_unique<std::vector<float>>(count, 1.0f));
    const Call call = kind == 0   ? call_of(OpKind::barrier, *tensors_.back())
                      : kind == 1 ? call_of(OpKind::all_reduce, *tensors_.back())
                      : kind == 2 ? call_of(OpKind::broadcast, *tensors_.back(), from)
                      : sends     ? call_of(OpKind::send, *tensors_.back(), to)
                                  : call_of(OpKind::recv, *tensors_.back(), from);
    if (kind == 1 && !later) {
      require(group.run(call), "run");
      return;
    }
    open_.push_back(group.issue(call));
    if (!later || open_.size() > 5) wait();
  }

  // In any order: they have all been called.
  void wait() {
    std::shuffle(open_.begin(), open_.end(), own_random_);
    for (const auto& op : open_) require(op->wait(milliseconds{0}), "op");
    open_.clear();
    tensors_.clear();
  }

 private:
  std::mt19937_64 random_;      // the same on all ranks
  std::mt19937_64 own_random_;  // when it is late
  std::vector<std::uint32_t> sizes_;
  std::vector<std::shared_ptr<Communicator>> groups_;
  std::vector<std::unique_ptr<std::vector<float>>> tensors_;
  std::vector<std::shared_ptr<Op>> open_;
};

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(CirclesOf, OrderlyWorkIsNeverAccused) {
  const FileBook files;
  const std::uint64_t seed = number_from("CLOSERANKS_SEED", 5);
  const std::chrono::seconds duration{number_from("CLOSERANKS_SOAK_SECONDS", 6)};
  Board& board = Board::make();
  Processes processes(OrderlyWork::members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, OrderlyWork::members, files.book());
    std::vector<std::unique_ptr<OrderlyWork>> work;
    std::vector<std::shared_ptr<Communicator>> ends;
    for (std::uint32_t thread = 0; thread < 2; ++thread) {
      work.push_back(std::make_unique<OrderlyWork>(rank, thread, *member.engine, files, seed));
      ends.push_back(group_of(*member.engine, files, "end" + std::to_string(thread), {0, 1, 2, 3}));
    }
    std::array<std::string, 2> failed;
    const auto until = Clock::now() + duration;
    const auto body = [&](std::uint32_t thread) {
      try {
        for (bool over = false; !over;) {
          for (int i = 0; i < 10; ++i) work[thread]->step();
          // Rank 0 says when it is over.
          std::vector<float> late{rank == 0 && Clock::now() >= until ? 1.0f : 0.0f};
          require(ends[thread]->run(call_of(OpKind::broadcast, late)), "end");
          over = late[0] != 0;
        }
        work[thread]->wait();
      } catch (const std::string& why) {
        failed[thread] = why;
      }
    };
    std::thread second(body, 1);
    body(0);
    second.join();
    board.meet(OrderlyWork::members);  // nobody leaves while others need it
    return failed[0] + failed[1];
  });
  EXPECT_EQ(processes.join(duration + join_patience), "") << "seed " << seed;
}

// Under a coordinator: the same error, and nobody is evicted.
TEST(CirclesOf, ACoordinatedJobEvictsNobody) {
  Board& board = Board::make();
  TestJob job(3, [&board](std::uint32_t rank, Engine& engine, JobBoard&) -> std::string {
    const auto left = make_group(engine, "left", 3, Policy::repair);
    const auto right = make_group(engine, "right", 3, Policy::repair);
    std::vector<float> tensor(10'000, 1.0f);
    for (int i = 0; i < 3; ++i) {
      require(left->run(call_of(OpKind::all_reduce, tensor)), "before");
      require(right->run(call_of(OpKind::all_reduce, tensor)), "before");
    }
    Communicator& group = rank == 1 ? *right : *left;
    const Status status = wait_in(group, call_of(OpKind::all_reduce, tensor), board, rank);
    expect_circle(
        status, board,
        {"slot 1 (worker 1, pid ", "of group 'left' for slot 1 (worker 1, pid ", "of group 'right' for slot "});
    board.meet(3);
    require(engine.present().size() == 3, "somebody was evicted");
    // Other groups go on.
    const auto fresh = make_group(engine, "fresh", 3, Policy::repair);
    require(fresh->run(call_of(OpKind::all_reduce, tensor)), "after");
    engine.stop(milliseconds{500});
    return "";
  });
  EXPECT_EQ(job.join(), "");
  EXPECT_TRUE(job.events(coordinator::EventKind::worker_suspected).empty());
  EXPECT_TRUE(job.events(coordinator::EventKind::worker_hung).empty());
}

}  // namespace
}  // namespace closeranks::communicator_test
