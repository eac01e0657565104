// Lost workers are replaced: real processes, a real coordinator. Each trains for as long as the test lets it, with a
// state that every step changes and several groups; a newcomer takes the state over and goes on with the others.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <thread>
#include <utility>

#include "test_job.h"

namespace closeranks::communicator_test {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t slots = 4;
constexpr std::size_t state_elements = 300'000;  // several message halves

Call call_of(OpKind kind, std::vector<float>& tensor, ReduceOp reduce = ReduceOp::sum) {
  Call call;
  call.kind = kind;
  call.dtype = DType::float32;
  call.reduce = reduce;
  call.inputs = {buffer(tensor)};
  call.outputs = {buffer(tensor)};
  return call;
}

void run(Communicator& group, Call call, const std::string& what) {
  require(group.issue(std::move(call))->wait(milliseconds{0}), what);
}

// What every worker has after `steps` steps.
std::vector<float> state_after(std::uint64_t steps) {
  std::vector<float> state(state_elements);
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(i % 1000) + static_cast<float>(steps);
  return state;
}

class Training {
 public:
  Training(std::uint32_t slot, Engine& engine, JobBoard& board) : slot_(slot), engine_(engine), board_(board) {
    world_ = make_group(engine, "world", slots, Policy::repair);
    model_ = make_group(engine, "model", slots, Policy::repair, true);
    strict_ = make_group(engine, "strict", slots, Policy::fail);
    pair_ = make_pair(engine, slot / 2 * 2);
    // The set-up of a script: on a newcomer it meets nobody.
    std::vector<float> tensor(5000, static_cast<float>(slot));
    run(*model_, call_of(OpKind::broadcast, tensor), "set-up");
    require(tensor[0] == (engine.newcomer() ? static_cast<float>(slot) : 0.0f), "broadcast of the set-up");
    if (engine.newcomer()) {
      require(model_->present() == std::vector<Slot>{Slot{slot}} && model_->alone(), "a newcomer is alone");
      std::vector<float> every(slots * tensor.size());
      Call gather = call_of(OpKind::all_gather, tensor);
      gather.outputs = {buffer(every)};
      run(*world_, gather, "all_gather alone");
      require(
          std::all_of(every.begin(), every.end(), [slot](float value) { return value == static_cast<float>(slot); }),
          "own input");
    }
  }

  std::string run_until_stopped() {
    std::uint64_t step = 1;
    if (engine_.newcomer()) {
      step = join();
    } else if (!pass_boundary(step)) {
      return "asked to leave";
    }
    while (do_step(step)) {
      ++step;
      if (!pass_boundary(step)) return "asked to leave";
    }
    require(state_ == state_after(step + 1), "the state has all steps");
    engine_.stop(milliseconds{1000});
    return "";
  }

 private:
  static std::shared_ptr<Communicator> make_pair(Engine& engine, std::uint32_t first) {
    GroupOptions options;
    options.name = "pair of slot " + std::to_string(first);
    options.members.push_back(Slot{first});
    options.members.push_back(Slot{first + 1});
    options.policy = Policy::repair;
    options.timeout = std::chrono::seconds{30};
    auto group = engine.create_group(options, nullptr);
    require(group.status(), "group");
    return group.value();
  }

  // False once the job is to stop: agreed in the step itself.
  bool do_step(std::uint64_t step) {
    std::vector<float> ones(20'000, 1.0f);
    run(*model_, call_of(OpKind::all_reduce, ones), "all_reduce");
    require(ones.front() == ones.back(), "one sum");
    const std::uint32_t present = static_cast<std::uint32_t>(ones.front());
    std::vector<float> pair(10, 1.0f);
    run(*pair_, call_of(OpKind::all_reduce, pair), "all_reduce of the pair");
    std::vector<float> stop{board_.stop.load() ? 1.0f : 0.0f};
    run(*world_, call_of(OpKind::all_reduce, stop, ReduceOp::max), "all_reduce of the stop");
    if (stop[0] > 0 && present == slots) {
      // The group that fails with its members is whole again, too.
      std::vector<float> strict(3000, 1.0f);
      run(*strict_, call_of(OpKind::all_reduce, strict), "all_reduce of the strict group");
      require(strict[7] == 4.0f, "strict sum");
      exchange(step);
    }
    for (float& value : state_) value += 1.0f;
    engine_.step_finished(step);
    board_.present.store(present);
    if (present < slots) board_.steps_with_a_vacancy.fetch_add(1);
    board_.rounds.fetch_add(1);
    return stop[0] == 0;
  }

  // A message from everybody to everybody: their words with a newcomer have begun anew.
  void exchange(std::uint64_t step) {
    std::vector<std::vector<float>> in(slots, std::vector<float>(70'000));
    std::vector<float> out(70'000, static_cast<float>(slot_ * 1000 + step));
    std::vector<std::shared_ptr<Op>> ops;
    for (std::uint32_t other = 0; other < slots; ++other) {
      if (other == slot_) continue;
      Call send = call_of(OpKind::send, out);
      send.outputs.clear();
      send.root = Rank{other};
      ops.push_back(world_->issue(send));
      Call receive = call_of(OpKind::recv, in[other]);
      receive.inputs.clear();
      receive.root = Rank{other};
      ops.push_back(world_->issue(receive));
    }
    for (const auto& op : ops) require(op->wait(milliseconds{0}), "message");
    for (std::uint32_t other = 0; other < slots; ++other) {
      require(other == slot_ || in[other].back() == static_cast<float>(other * 1000 + step), "its text");
    }
  }

  bool pass_boundary(std::uint64_t step) {
    // With the next step only when the job is whole again, if the test says so.
    Result<BoundaryResult> passed = engine_.at_boundary(step, milliseconds{board_.patience_ms.load()});
    require(passed.status(), "boundary");
    if (passed.value().boundary == Boundary::leave) return false;
    if (passed.value().boundary == Boundary::transfer) serve(*passed.value().transfer, step);
    return true;
  }

  void serve(StateTransfer& transfer, std::uint64_t step) {
    require(transfer.step == step, "the step of the transfer");
    board_.transfers.fetch_add(1);
    const Status sent = move(transfer, OpKind::send);
    const Result<bool> finished = engine_.finish_transfer(transfer.round, sent);
    require(finished.status(), "finish_transfer");
  }

  std::uint64_t join() {
    for (;;) {
      Result<StateTransfer> transfer = engine_.request_join();
      require(transfer.status(), "request_join");
      const Status received = move(transfer.value(), OpKind::recv);
      const Result<bool> joined = engine_.finish_transfer(transfer.value().round, received);
      require(joined.status(), "finish_transfer");
      if (!joined.value()) continue;
      require(!engine_.newcomer() && !world_->alone() && world_->present().size() >= 2, "it is in");
      require(state_ == state_after(transfer.value().step), "the state is that of the step");
      board_.joined.fetch_add(1);
      return transfer.value().step;
    }
  }

  // Each source's stripe of the state, to or from every newcomer.
  Status move(const StateTransfer& transfer, OpKind kind) {
    const auto& members = transfer.group->options().members;
    std::vector<std::shared_ptr<Op>> ops;
    const std::size_t stripe = state_.size() / transfer.sources.size();
    for (std::size_t place = 0; place < transfer.sources.size(); ++place) {
      if (kind == OpKind::send && transfer.sources[place] != Slot{slot_}) continue;
      const std::size_t from = place * stripe;
      const std::size_t until = place + 1 == transfer.sources.size() ? state_.size() : from + stripe;
      for (const Slot newcomer : transfer.newcomers) {
        if (kind == OpKind::recv && newcomer != Slot{slot_}) continue;
        const Slot peer = kind == OpKind::send ? newcomer : transfer.sources[place];
        Call call;
        call.kind = kind;
        call.root = Rank{static_cast<std::uint32_t>(std::find(members.begin(), members.end(), peer) - members.begin())};
        const Buffer part{state_.data() + from, (until - from) * sizeof(float)};
        if (kind == OpKind::send) {
          call.inputs.push_back(part);
        } else {
          call.outputs.push_back(part);
        }
        ops.push_back(transfer.group->issue(std::move(call)));
      }
    }
    // One that is killed here is killed in the middle.
    while (board_.hold_transfer_of.load() == slot_ + 1) std::this_thread::sleep_for(milliseconds{1});
    Status outcome;
    for (const auto& op : ops) {
      const Status ended = op->wait(milliseconds{0});
      if (outcome.ok()) outcome = ended;
    }
    return outcome;
  }

  std::uint32_t slot_;
  Engine& engine_;
  JobBoard& board_;
  std::shared_ptr<Communicator> world_;
  std::shared_ptr<Communicator> model_;
  std::shared_ptr<Communicator> strict_;
  std::shared_ptr<Communicator> pair_;
  std::vector<float> state_ = state_after(1);
};

template <class Condition>
bool wait_until(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(milliseconds{1});
  return condition();
}

class Joining : public testing::Test {
 protected:
  static std::string train(std::uint32_t slot, Engine& engine, JobBoard& board) {
    return Training(slot, engine, board).run_until_stopped();
  }
  // Steps go on, with this many.
  bool steps_with(std::uint32_t present) {
    JobBoard& board = job_.board();
    const std::uint64_t from = board.rounds.load();
    return wait_until([&] { return board.rounds.load() > from + 40 && board.present.load() == present; });
  }
  void TearDown() override {
    if (!HasFailure()) return;
    for (const std::string& line : job_.told()) std::cerr << line << "\n";
  }
  void finish() {
    job_.board().stop.store(true);
    EXPECT_EQ(job_.join(), "");
  }
  TestJob job_{slots, train, milliseconds{60000}, 4};
};

TEST_F(Joining, AReplacementGoesOnWithTheOthers) {
  ASSERT_TRUE(steps_with(4));
  job_.kill({2});
  ASSERT_TRUE(steps_with(3));
  job_.replace(2);
  ASSERT_TRUE(steps_with(4));
  EXPECT_EQ(job_.board().joined.load(), 1u);
  finish();
  EXPECT_EQ(job_.events(coordinator::EventKind::worker_joined).size(), 1u);
  EXPECT_EQ(job_.events(coordinator::EventKind::first_step).size(), 1u);
}

TEST_F(Joining, TheSameSlotTwiceAndSlotZero) {
  ASSERT_TRUE(steps_with(4));
  job_.kill({1});
  ASSERT_TRUE(steps_with(3));
  const std::uint32_t first = job_.replace(1);
  ASSERT_TRUE(steps_with(4));
  job_.kill({first});
  ASSERT_TRUE(steps_with(3));
  job_.replace(1);
  ASSERT_TRUE(steps_with(4));
  job_.kill({0});
  ASSERT_TRUE(steps_with(3));
  job_.replace(0);
  ASSERT_TRUE(steps_with(4));
  EXPECT_EQ(job_.board().joined.load(), 3u);
  finish();
}

TEST_F(Joining, TwoAtOnce) {
  ASSERT_TRUE(steps_with(4));
  job_.kill({1, 3});
  ASSERT_TRUE(steps_with(2));
  job_.replace(3);
  job_.replace(1);
  ASSERT_TRUE(steps_with(4));
  EXPECT_EQ(job_.board().joined.load(), 2u);
  finish();
}

TEST_F(Joining, APatientBoundaryWaitsForTheReplacement) {
  JobBoard& board = job_.board();
  ASSERT_TRUE(steps_with(4));
  board.patience_ms.store(20'000);
  job_.kill({2});
  // At most the step that lost it is done by three.
  std::uint64_t rounds = 0;
  ASSERT_TRUE(wait_until([&] {
    std::this_thread::sleep_for(milliseconds{200});
    return std::exchange(rounds, board.rounds.load()) == board.rounds.load();
  }));
  EXPECT_LE(board.steps_with_a_vacancy.load(), 3u);
  job_.replace(2);
  ASSERT_TRUE(steps_with(4));
  EXPECT_LE(board.steps_with_a_vacancy.load(), 3u);
  // Not for ever.
  board.patience_ms.store(150);
  job_.kill({1});
  ASSERT_TRUE(wait_until([&] { return board.steps_with_a_vacancy.load() > 12u; }));
  job_.replace(1);
  ASSERT_TRUE(steps_with(4));
  finish();
}

TEST_F(Joining, ANewcomerDiesWhileItJoins) {
  ASSERT_TRUE(steps_with(4));
  job_.kill({3});
  ASSERT_TRUE(steps_with(3));
  job_.board().hold_transfer_of.store(4);
  const std::uint32_t newcomer = job_.replace(3);
  ASSERT_TRUE(wait_until([&] { return job_.board().transfers.load() == 3; }));
  job_.kill({newcomer});
  ASSERT_TRUE(steps_with(3)) << "the others go on without it";
  job_.board().hold_transfer_of.store(0);
  job_.replace(3);
  ASSERT_TRUE(steps_with(4));
  EXPECT_EQ(job_.board().joined.load(), 1u);
  finish();
}

TEST_F(Joining, ASourceDiesWhileItServes) {
  ASSERT_TRUE(steps_with(4));
  job_.kill({3});
  ASSERT_TRUE(steps_with(3));
  job_.board().hold_transfer_of.store(2);
  job_.replace(3);
  ASSERT_TRUE(wait_until([&] { return job_.board().transfers.load() == 3; }));
  job_.kill({1});
  job_.board().hold_transfer_of.store(0);
  ASSERT_TRUE(steps_with(3)) << "the newcomer joins the other two";
  job_.replace(1);
  ASSERT_TRUE(steps_with(4));
  EXPECT_EQ(job_.board().joined.load(), 2u);
  finish();
}

TEST_F(Joining, TheCoordinatorIsAwayForAWhile) {
  ASSERT_TRUE(steps_with(4));
  job_.kill({2});
  ASSERT_TRUE(steps_with(3));
  job_.board().hold_transfer_of.store(1);
  job_.replace(2);
  ASSERT_TRUE(wait_until([&] { return job_.board().transfers.load() == 3; }));
  job_.stop_coordinator();
  job_.board().hold_transfer_of.store(0);
  job_.restart_coordinator();
  ASSERT_TRUE(steps_with(4));
  EXPECT_EQ(job_.board().joined.load(), 1u);
  finish();
}

}  // namespace
}  // namespace closeranks::communicator_test
