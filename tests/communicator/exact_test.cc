// Policy exact, weighted averages, and what a newcomer's ops do while it is alone.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "communicator/alone.h"
#include "test_job.h"

namespace closeranks::communicator_test {
namespace {

using communicator::CallShape;
using communicator::GroupFacts;
using communicator::run_alone;
using std::chrono::milliseconds;

Call average(std::vector<float>& tensor, OpKind kind = OpKind::all_reduce) {
  Call call;
  call.kind = kind;
  call.dtype = DType::float32;
  call.reduce = ReduceOp::avg;
  call.inputs.push_back(buffer(tensor));
  call.outputs.push_back(buffer(tensor));
  return call;
}

Status run(Communicator& group, Call call) { return group.issue(std::move(call))->wait(milliseconds{0}); }

// Inline, several blocks, several pieces.
constexpr std::size_t sizes[] = {3, 30'000, 2'000'000};

TEST(Weights, AnAverageIsWeightedByItsContributors) {
  TestJob job(3, [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::repair);
    require(!group->set_weight(-1).ok() && !group->set_weight(1.0 / 0.0).ok(), "wrong weights are refused");
    for (const std::size_t size : sizes) {
      // (1 * 0 + 2 * 10 + 5 * 20) / 8
      require(group->set_weight(rank == 0 ? 1 : rank == 1 ? 2 : 5), "set_weight");
      std::vector<float> tensor(size, static_cast<float>(rank) * 10.0f);
      require(run(*group, average(tensor)), "weighted");
      require(tensor.front() == 15.0f && tensor.back() == 15.0f, "weighted mean " + std::to_string(tensor.front()));
      // An input of weight 0 is not read: NaN does no harm.
      require(group->set_weight(rank == 1 ? 0 : 3), "set_weight");
      tensor.assign(size, rank == 1 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(rank) * 10.0f);
      require(run(*group, average(tensor)), "without one");
      require(tensor.front() == 10.0f && tensor.back() == 10.0f, "mean of two " + std::to_string(tensor.front()));
      require(group->last_contributors().slots.size() == 3, "it contributes all the same");
      require(group->set_weight(0), "set_weight");
      require(run(*group, average(tensor)), "of nobody");
      require(tensor.front() == 0.0f && tensor.back() == 0.0f, "zeros");
    }
    // Weight and input of a lost member go together.
    require(group->set_weight(rank + 1), "set_weight");
    board.arrived.fetch_add(1);
    for (;;) {
      std::vector<float> tensor(500'000, static_cast<float>(rank) * 6.0f);
      require(run(*group, average(tensor)), "while one dies");
      const std::size_t present = group->last_contributors().slots.size();
      if (!group->last_contributors().uniform) continue;
      const float wanted = present == 3 ? (2 * 6 + 3 * 12) / 6.0f : 2 * 6 / 3.0f;
      require(tensor.front() == wanted && tensor.back() == wanted, "weighted mean of those present");
      if (present == 2) return "";
    }
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (job.board().arrived.load() < 3 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds{1});
  }
  std::this_thread::sleep_for(milliseconds{20});
  job.kill({2});
  EXPECT_EQ(job.join(), "");
}

TEST(Exact, AnOpWithoutAMemberOfTheStepEndsIncompleteOnAll) {
  TestJob job(3, [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::exact);
    std::uint64_t incomplete = 0;
    std::vector<float> history;  // of each op: its sum, -1 where it was incomplete
    for (std::uint64_t step = 1; history.size() < 400; ++step) {
      require(engine.at_boundary(step, milliseconds{0}).status(), "boundary");
      for (bool done = false; !done;) {
        done = true;
        for (int op = 0; op < 3; ++op) {
          std::vector<float> tensor(op == 1 ? 200'000 : 10, 1.0f);
          Call call = average(tensor);
          call.reduce = ReduceOp::sum;
          const Status status = run(*group, call);
          history.push_back(status.ok() ? tensor.front() : -1.0f);
          board.rounds.fetch_add(1);
          if (status.ok()) continue;
          require(status.fault() == Fault::incomplete && status.move() == Move::retry, status.message());
          require(status.slot == Slot{2} && status.message().find("slot 2") != std::string::npos, status.message());
          ++incomplete;
          done = false;
          require(engine.at_boundary(step, milliseconds{0}).status(), "the step again");
          break;
        }
      }
      if (group->present().size() == 3) history.clear();
    }
    require(incomplete <= 1, "one step is repeated once, at most");
    // The survivors agree on every op.
    std::vector<float> mine(history.begin(), history.begin() + 400);
    std::vector<float> theirs = mine;
    Call compare = average(theirs, OpKind::broadcast);
    require(run(*group, compare), "broadcast");
    require(theirs == mine || rank == 0, "the same history");
    engine.stop(milliseconds{1000});
    return "";
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (job.board().rounds.load() < 60 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds{1});
  }
  job.kill({2});
  EXPECT_EQ(job.join(), "");
}

TEST(Alone, EveryKindMeetsNobody) {
  const GroupFacts facts{3, Rank{1}, false, 1 << 20};
  const auto alone = [&](Call call, std::size_t unit, const std::vector<std::byte>* answer = nullptr,
                         double weight = 1) {
    CallShape shape;
    shape.unit_bytes = unit;
    return run_alone(call, shape, facts, weight, answer);
  };
  std::vector<float> own{1, 2};
  ASSERT_TRUE(alone(average(own), 8).ok());
  EXPECT_EQ(own, (std::vector<float>{1, 2}));
  ASSERT_TRUE(alone(average(own), 8, nullptr, 0).ok());
  EXPECT_EQ(own, (std::vector<float>{0, 0})) << "weights of nobody";

  own = {1, 2};
  std::vector<float> all(6, 9);
  Call call = average(own, OpKind::all_gather);
  call.outputs = {buffer(all)};
  ASSERT_TRUE(alone(call, 8).ok());
  EXPECT_EQ(all, (std::vector<float>{1, 2, 1, 2, 1, 2}));

  all = {1, 2, 3, 4, 5, 6};
  call = average(all, OpKind::reduce_scatter);
  call.outputs = {buffer(own)};
  ASSERT_TRUE(alone(call, 8).ok());
  EXPECT_EQ(own, (std::vector<float>{3, 4}));

  call.kind = OpKind::scatter;
  call.root = Rank{1};
  own = {0, 0};
  ASSERT_TRUE(alone(call, 8).ok());
  EXPECT_EQ(own, (std::vector<float>{3, 4}));

  call = average(own, OpKind::broadcast);
  ASSERT_TRUE(alone(call, 8).ok());
  EXPECT_EQ(own, (std::vector<float>{3, 4})) << "from anybody: identity";
  const std::vector<std::byte> answer(8);
  ASSERT_TRUE(alone(call, 8, &answer).ok());
  EXPECT_EQ(own, (std::vector<float>{0, 0}));
  const std::vector<std::byte> longer(9);
  EXPECT_EQ(alone(call, 8, &longer).fault(), Fault::mismatch);

  for (const OpKind kind : {OpKind::send, OpKind::recv}) {
    EXPECT_EQ(alone(average(own, kind), 8).fault(), Fault::unsupported) << name_of(kind);
  }
  EXPECT_TRUE(alone(average(own, OpKind::barrier), 0).ok());
}

}  // namespace
}  // namespace closeranks::communicator_test
