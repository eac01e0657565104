// Plain jobs: what members learn when one of them is gone, late, or calls something else.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "processes.h"

namespace closeranks::communicator_test {
namespace {

using std::chrono::milliseconds;

Call all_reduce(std::vector<float>& tensor) {
  Call call;
  call.kind = OpKind::all_reduce;
  call.dtype = DType::float32;
  call.inputs = {buffer(tensor)};
  call.outputs = {buffer(tensor)};
  return call;
}

void expect_text(const std::string& text, const std::string& part) {
  require(text.find(part) != std::string::npos, "'" + part + "' is not in '" + text + "'");
}

// Memory that members share with the test: when who did what.
struct Board {
  std::atomic<std::int64_t> killed_ns{0};
  std::atomic<std::uint32_t> rounds{0};
  std::atomic<std::uint32_t> arrived{0};
  static std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  static Board& make() {
    void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *new (memory) Board;
  }
};

void wait_until(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(milliseconds{1});
}

class Death : public ::testing::TestWithParam<std::uint64_t> {};

// A member dies somewhere in an endless row of all_reduces; every survivor names it within two seconds.
TEST_P(Death, EverySurvivorNamesIt) {
  const std::uint64_t count = GetParam();
  constexpr std::uint32_t members = 4;
  constexpr std::uint32_t victim = 2;
  const FileBook files;
  Board& board = Board::make();
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    std::vector<float> tensor(count, 1.0f);
    for (;;) {
      const Status status = member.group->issue(all_reduce(tensor))->wait(milliseconds{0});
      if (status.ok()) {
        if (rank == 0) board.rounds.fetch_add(1);
        std::fill(tensor.begin(), tensor.end(), 1.0f);
        continue;
      }
      const std::int64_t took_ms = (Board::now_ns() - board.killed_ns.load()) / 1'000'000;
      require(status.fault() == Fault::peer_lost, "fault of " + status.message());
      require(status.slot == Slot{victim}, "slot of " + status.message());
      expect_text(status.message(), "rank 2 (pid ");
      expect_text(status.message(), "all_reduce of");
      require(took_ms < 2000, "took " + std::to_string(took_ms) + " ms");
      // And it stays so, at once.
      const Status again = member.group->issue(all_reduce(tensor))->wait(milliseconds{0});
      require(again.fault() == Fault::peer_lost, "later op");
      require(!member.group->health().ok(), "health");
      // The others may still need this process to tell them: it has told all it knows.
      return "";
    }
  });
  wait_until([&] { return board.rounds.load() > 20; });
  board.killed_ns.store(Board::now_ns());
  processes.kill(victim, SIGKILL);
  EXPECT_EQ(processes.join(), "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, Death, ::testing::Values(1, 20'000, 1'000'000));

TEST(Faults, ADeathIsFoundThoughNobodyWaits) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(10, 1.0f);
    require(member.group->issue(all_reduce(tensor))->wait(milliseconds{0}), "first op");
    if (rank == 1) ::raise(SIGKILL);
    const auto op = member.group->issue(all_reduce(tensor));
    wait_until([&] { return op->done(); });
    require(op->done() && op->status().fault() == Fault::peer_lost, "the op of a dead peer");
    board.arrived = 1;
    return "";
  });
  wait_until([&] { return board.arrived.load() == 1; });
  EXPECT_EQ(board.arrived.load(), 1u);
  processes.kill(1, SIGKILL);
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, AMemberThatLeftIsNamedByTheNextOp) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(10, 1.0f);
    require(member.group->issue(all_reduce(tensor))->wait(milliseconds{0}), "first op");
    if (rank == 1) {
      member.engine->stop(milliseconds{100});
      return "";
    }
    const Status status = member.group->issue(all_reduce(tensor))->wait(milliseconds{0});
    require(status.fault() == Fault::peer_lost, status.message());
    expect_text(status.message(), "rank 1 (pid ");
    expect_text(status.message(), "has left the job");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, DifferentCallsAreToldApart) {
  const FileBook files;
  Processes processes(3, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 3, files.book());
    std::vector<float> tensor(64, 1.0f);
    Call call = all_reduce(tensor);
    if (rank == 1) {
      call.kind = OpKind::broadcast;
      call.root = Rank{1};
    }
    const Status status = member.group->issue(std::move(call))->wait(milliseconds{0});
    require(status.fault() == Fault::mismatch, status.message());
    require(status.slot == Slot{1}, "the minority is named");
    expect_text(status.message(), "rank 1 (pid ");
    expect_text(status.message(), "called broadcast of 64 float32 from rank 1");
    expect_text(status.message(), "called all_reduce of 64 float32, sum");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, DifferentSizesAreToldApart) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(rank == 0 ? 1'000'000 : 10, 1.0f);
    const Status status = member.group->issue(all_reduce(tensor))->wait(milliseconds{0});
    require(status.fault() == Fault::mismatch, status.message());
    expect_text(status.message(), "1000000 float32");
    expect_text(status.message(), "10 float32");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, ALateMemberIsNamedAtTheDeadline) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(3, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 3, files.book());
    std::vector<float> tensor(10, 1.0f);
    require(member.group->issue(all_reduce(tensor))->wait(milliseconds{0}), "first op");
    if (rank == 2) {
      wait_until([&] { return board.arrived.load() == 2; });
      return "";
    }
    const auto op = member.group->issue(all_reduce(tensor));
    // The caller's own patience ends first: the op goes on.
    const Status impatient = op->wait(milliseconds{50});
    require(impatient.fault() == Fault::timeout && !op->done(), "own timeout: " + impatient.message());
    Call second = all_reduce(tensor);
    second.timeout = milliseconds{300};
    const Status status = member.group->issue(std::move(second))->wait(milliseconds{0});
    require(status.fault() == Fault::timeout, status.message());
    require(status.slot == Slot{2}, "slot");
    expect_text(status.message(), "rank 2 (pid ");
    expect_text(status.message(), "has not entered");
    expect_text(status.message(), "waited 0.3 s");
    require(op->done() && op->status().fault() == Fault::timeout, "ops before it end too");
    board.arrived.fetch_add(1);
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, MissingMembersAreNamedWhenAGroupIsMade) {
  const FileBook files;
  Processes processes(1, [&](std::uint32_t) -> std::string {
    try {
      const PlainMember member(0, 3, files.book(), milliseconds{300});
    } catch (const std::string& failure) {
      expect_text(failure, "rank 1 and rank 2 have not joined group 'world' within 0.3 s");
      return "";
    }
    return "the group was made";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, WrongCallsComeBackAtOnceAndHarmNothing) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(10, 1.0f);
    std::vector<float> shorter(9);
    Call wrong = all_reduce(tensor);
    wrong.outputs = {buffer(shorter)};
    const auto op = member.group->issue(std::move(wrong));
    require(op->done() && op->status().fault() == Fault::invalid_argument, "sizes");
    expect_text(op->status().message(), "36 bytes");
    wrong = all_reduce(tensor);
    wrong.kind = OpKind::broadcast;
    wrong.root = Rank{5};
    require(member.group->issue(std::move(wrong))->status().fault() == Fault::invalid_argument, "root");
    require(member.group->set_policy(Policy::repair).fault() == Fault::unsupported, "repair in a plain job");
    require(member.group->issue(all_reduce(tensor))->wait(milliseconds{0}), "the group goes on");
    require(tensor[9] == 2.0f, "sum");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, ShutdownEndsOpsInFlight) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(10, 1.0f);
    require(member.group->issue(all_reduce(tensor))->wait(milliseconds{0}), "first op");
    if (rank == 0) {
      const auto op = member.group->issue(all_reduce(tensor));
      member.group->shutdown(milliseconds{50});
      require(op->done() && op->status().fault() == Fault::closed, "op in flight");
      require(member.group->issue(all_reduce(tensor))->status().fault() == Fault::closed, "later op");
      board.arrived = 1;
    }
    wait_until([&] { return board.arrived.load() == 1; });
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, AForkChildIsToldSoAndTheParentGoesOn) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(10, 1.0f);
    require(member.group->issue(all_reduce(tensor))->wait(milliseconds{0}), "first op");
    const pid_t child = ::fork();
    if (child == 0) {
      const Status status = member.group->issue(all_reduce(tensor))->wait(milliseconds{0});
      const bool told = status.fault() == Fault::closed && member.group->health().fault() == Fault::closed;
      member.group.reset();
      member.engine.reset();
      ::_exit(told ? 0 : 1);
    }
    int how = 0;
    ::waitpid(child, &how, 0);
    require(WIFEXITED(how) && WEXITSTATUS(how) == 0, "child");
    std::vector<float> more(100'000, 1.0f);
    require(member.group->issue(all_reduce(more))->wait(milliseconds{0}), "the parent's next op");
    require(more[99'999] == 2.0f, "sum");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, ALateSenderIsNamedAtTheDeadline) {
  const FileBook files;
  Board& board = Board::make();
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> tensor(10, 1.0f);
    if (rank == 0) {
      Call call;
      call.kind = OpKind::recv;
      call.dtype = DType::float32;
      call.root = Rank{1};
      call.outputs = {buffer(tensor)};
      call.timeout = milliseconds{200};
      const Status status = member.group->issue(std::move(call))->wait(milliseconds{0});
      require(status.fault() == Fault::timeout, status.message());
      expect_text(status.message(), "rank 1 (pid ");
      expect_text(status.message(), "has not sent what is missing of recv of 10 float32 from rank 1");
      board.arrived = 1;
    }
    wait_until([&] { return board.arrived.load() == 1; });
    require(member.group->issue(all_reduce(tensor))->wait(milliseconds{0}), "the group goes on");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, AGroupIsMadeAgainByANewEngineOfTheSameProcess) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    for (int life = 0; life < 3; ++life) {
      PlainMember member(rank, 2, files.book());
      std::vector<float> tensor(10, 1.0f);
      require(member.group->issue(all_reduce(tensor))->wait(milliseconds{0}), "life " + std::to_string(life));
      require(tensor[0] == 2.0f, "sum");
      // Both leave before one comes again: the book still has the addresses of the last life.
      if (rank == 0) std::this_thread::sleep_for(milliseconds{100});
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Faults, SendAndReceiveThroughTheEngine) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    const auto transfer = [&](OpKind kind, std::vector<float>& tensor, std::int32_t tag) {
      Call call;
      call.kind = kind;
      call.dtype = DType::float32;
      call.root = Rank{1 - rank};
      call.tag = tag;
      (kind == OpKind::send ? call.inputs : call.outputs) = {buffer(tensor)};
      return member.group->issue(std::move(call));
    };
    std::vector<float> out(300'000, 1.0f + static_cast<float>(rank));
    std::vector<float> in(300'000);
    const auto sending = transfer(OpKind::send, out, 7);
    const auto receiving = transfer(OpKind::recv, in, 7);
    require(sending->wait(milliseconds{0}), "send");
    require(receiving->wait(milliseconds{0}), "recv");
    require(in[0] == 2.0f - static_cast<float>(rank) && in[299'999] == in[0], "received");
    if (rank == 1) ::raise(SIGKILL);
    const Status lost = transfer(OpKind::recv, in, 8)->wait(milliseconds{0});
    require(lost.fault() == Fault::peer_lost, lost.message());
    expect_text(lost.message(), "rank 1");
    return "";
  });
  processes.kill(1, 0);
  EXPECT_EQ(processes.join(), "");
}

}  // namespace
}  // namespace closeranks::communicator_test
