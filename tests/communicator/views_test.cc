// Coordinated jobs: views around groups, policies, leaving, a coordinator that is away, and being excluded oneself.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/process_state.h"
#include "test_job.h"

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

Status run(Communicator& group, Call call) { return group.issue(std::move(call))->wait(milliseconds{0}); }

// A sum of ones: how many took part.
float count_members(Communicator& group) {
  std::vector<float> tensor(3000, 1.0f);
  require(run(group, all_reduce(tensor)), "all_reduce");
  require(tensor.front() == tensor.back(), "one sum");
  return tensor.front();
}

void expect_text(const std::string& text, const std::string& part) {
  require(text.find(part) != std::string::npos, "'" + part + "' is not in '" + text + "'");
}

template <class Condition>
void wait_until(Condition condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(milliseconds{1});
}

TEST(Views, UnderFailTheErrorNamesTheSlotAndItsWorker) {
  TestJob job(3, [](std::uint32_t, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::fail);
    std::vector<float> tensor(100'000, 1.0f);
    Status status;
    while (status.ok()) {
      status = run(*group, all_reduce(tensor));
      board.rounds.fetch_add(1);
    }
    require(status.fault() == Fault::peer_lost && status.slot == Slot{2}, status.message());
    expect_text(status.message(), "slot 2 (worker 2, pid ");
    expect_text(status.message(), "all_reduce of 100000 float32, sum #");
    expect_text(status.message(), "closeranks.set_policy");
    return "";
  });
  wait_until([&] { return job.board().rounds.load() > 50; });
  job.kill({2});
  EXPECT_EQ(job.join(), "");
}

TEST(Views, AMemberThatReturnedIsLeftOutOnceAnOpWaitsForIt) {
  TestJob job(3, [](std::uint32_t rank, Engine& engine, JobBoard&) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::repair);
    require(count_members(*group) == 3.0f, "all");
    if (rank == 1) ::_exit(0);  // without a goodbye, as sys.exit() in the middle of a script
    require(count_members(*group) == 2.0f, "the rest");
    require(group->present() == (std::vector<Slot>{Slot{0}, Slot{2}}), "present");
    return "";
  });
  job.note_exit(1);
  EXPECT_EQ(job.join(), "");
}

TEST(Views, AMemberThatSaidGoodbyeIsLeftOutToo) {
  TestJob job(3, [](std::uint32_t rank, Engine& engine, JobBoard&) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::repair);
    require(count_members(*group) == 3.0f, "all");
    if (rank == 0) {
      engine.stop(milliseconds{100});
      return "";
    }
    require(count_members(*group) == 2.0f, "the rest");
    return "";
  });
  EXPECT_EQ(job.join(), "");
}

TEST(Views, ADeathBeforeASubgroupsFirstOp) {
  TestJob job(4, [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto world = make_group(engine, "world", 4, Policy::repair);
    require(count_members(*world) == 4.0f, "all");
    board.arrived.fetch_add(1);
    if (rank == 3) {
      std::this_thread::sleep_for(std::chrono::seconds{30});
      return "was not killed";
    }
    wait_until([&] { return board.killed_ns.load() != 0; });
    if (rank == 1) std::this_thread::sleep_for(milliseconds{50});  // one makes it before, one after the view
    const auto repaired = make_group(engine, "sub", 4, Policy::repair);
    require(count_members(*repaired) == 3.0f, "without the dead");
    const auto failing = make_group(engine, "strict", 4, Policy::fail);
    std::vector<float> tensor(10, 1.0f);
    const Status status = run(*failing, all_reduce(tensor));
    require(status.fault() == Fault::peer_lost && status.slot == Slot{3}, status.message());
    expect_text(status.message(), "slot 3");
    return "";
  });
  wait_until([&] { return job.board().arrived.load() == 4; });
  job.kill({3});
  EXPECT_EQ(job.join(), "");
}

TEST(Views, RootsThatAreGone) {
  TestJob job(3, [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto world = make_group(engine, "world", 3, Policy::repair);
    const auto buffers = make_group(engine, "buffers", 3, Policy::repair, true);
    require(count_members(*world) == 3.0f && count_members(*buffers) == 3.0f, "all");
    board.arrived.fetch_add(1);
    while (count_members(*world) == 3.0f) {
    }
    for (const std::size_t count : {10u, 100'000u}) {
      std::vector<float> tensor(count, static_cast<float>(rank));
      Call call = all_reduce(tensor);
      call.kind = OpKind::broadcast;
      require(run(*buffers, call), "broadcast from the lowest");
      require(tensor.front() == 1.0f && tensor.back() == 1.0f, "slot 1 is the lowest present");
      const Status status = run(*world, call);
      require(status.fault() == Fault::peer_lost && status.slot == Slot{0}, status.message());
      expect_text(status.message(), "slot 0");
      expect_text(status.message(), "closeranks.data_parallel");
      require(count_members(*world) == 2.0f, "the group goes on");
    }
    return "";
  });
  wait_until([&] { return job.board().arrived.load() == 3; });
  job.kill({0});
  EXPECT_EQ(job.join(), "");
}

TEST(Views, PoliciesAreChangedTogether) {
  TestJob job(3, [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::fail);
    require(count_members(*group) == 3.0f, "all");
    require(group->set_policy(Policy::repair), "set_policy");
    require(group->options().policy == Policy::repair, "options");
    require(count_members(*group) == 3.0f, "all");
    board.arrived.fetch_add(1);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds{30});
      return "was not killed";
    }
    require(count_members(*group) == 2.0f, "repaired");
    // A group made with a vacancy fails its ops, until it is allowed to go on without.
    const auto late = make_group(engine, "late", 3, Policy::fail);
    require(late->set_policy(Policy::repair), "set_policy of a group with a vacancy");
    require(count_members(*late) == 2.0f, "late group");
    return "";
  });
  wait_until([&] { return job.board().arrived.load() == 3; });
  job.kill({1});
  EXPECT_EQ(job.join(), "");
}

// Slot 0 dies in an op that slot 1 has entered under the new policy, and slot 2 does not yet: all the same it counts
// for both, for it is decided once.
TEST(Views, AMemberThatIsLateToChangeThePolicyFindsTheSameContributors) {
  TestJob job(3, [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::fail);
    require(count_members(*group) == 3.0f, "all");
    if (rank == 2) {
      board.arrived.fetch_add(1);
      wait_until([&] { return !group->health().ok(); });
    }
    require(group->set_policy(Policy::repair), "set_policy");
    std::vector<float> tensor(100'000, static_cast<float>(1 << rank));
    const auto operation = group->issue(all_reduce(tensor));
    board.arrived.fetch_add(rank == 2 ? 0 : 1);
    require(operation->wait(milliseconds{0}), "all_reduce");
    require(tensor.front() == 7.0f && tensor.back() == 7.0f, "it had entered: " + std::to_string(tensor.front()));
    require(count_members(*group) == 2.0f, "the next op is without it");
    return "";
  });
  wait_until([&] { return job.board().arrived.load() == 3; });
  job.kill({0});
  EXPECT_EQ(job.join(), "");
}

TEST(Views, AnExcludedMemberThatLivesIsToldSo) {
  TestJob job(3, [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::repair);
    for (;;) {
      std::vector<float> tensor(50'000, 1.0f);
      const Status status = run(*group, all_reduce(tensor));
      board.rounds.fetch_add(1);
      if (rank == 2) {
        if (status.ok()) continue;
        require(status.fault() == Fault::evicted, status.message());
        expect_text(status.message(), "slot 2");
        require(group->health().fault() == Fault::evicted, "health");
        return "";
      }
      require(status, "survivor");
      if (tensor[0] == 2.0f) return "";
    }
  });
  wait_until([&] { return job.board().rounds.load() > 50; });
  job.report_gone(2);
  EXPECT_EQ(job.join(), "");
}

TEST(Views, TrainingGoesOnWithoutTheCoordinatorAndDeathsWaitForIt) {
  TestJob job(3, [](std::uint32_t, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::repair);
    for (;;) {
      const float members = count_members(*group);
      board.rounds.fetch_add(1);
      if (members == 2.0f) return "";
    }
  });
  wait_until([&] { return job.board().rounds.load() > 50; });
  job.stop_coordinator();
  const std::uint64_t before = job.board().rounds.load();
  wait_until([&] { return job.board().rounds.load() > before + 100; });
  EXPECT_GT(job.board().rounds.load(), before + 100) << "nobody needs the coordinator";
  job.kill({1});
  std::this_thread::sleep_for(milliseconds{100});
  job.restart_coordinator();
  EXPECT_EQ(job.join(), "");
}

TEST(Views, AnOrphanEndsByItself) {
  TestJob job(
      2,
      [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
        const auto group = make_group(engine, "world", 2, Policy::repair);
        require(count_members(*group) == 2.0f, "both");
        board.arrived.fetch_add(1);
        if (rank == 1) {
          std::this_thread::sleep_for(std::chrono::seconds{30});
          return "was not killed";
        }
        std::vector<float> tensor(10, 1.0f);
        const Status status = run(*group, all_reduce(tensor));
        require(status.move() == Move::give_up, status.message());
        expect_text(status.message(), "slot 0 is alone");
        return "";
      },
      milliseconds{700});
  wait_until([&] { return job.board().arrived.load() == 2; });
  job.stop_coordinator();
  job.kill({1});
  EXPECT_EQ(job.join(), "");
}

// It is an agent's: nobody starts it again. Training, which could go on, ends at once and says why.
TEST(Views, TheEndOfTheCoordinatorsProcessEndsAll) {
  const pid_t agent = ::fork();
  ASSERT_GE(agent, 0);
  if (agent == 0) {
    for (;;) ::pause();
  }
  const auto state = process_state(agent);
  ASSERT_TRUE(state.has_value());
  const auto train = [](std::uint32_t rank, Engine& engine, JobBoard& board) -> std::string {
    const auto group = make_group(engine, "world", 3, Policy::repair);
    const auto idle = make_group(engine, "idle", 3, Policy::repair);
    Status status;
    while (status.ok()) {
      std::vector<float> tensor(1000, 1.0f);
      status = run(*group, all_reduce(tensor));
      board.rounds.fetch_add(1);
    }
    require(status.fault() == Fault::system && status.move() == Move::give_up, status.message());
    expect_text(status.message(), "slot " + std::to_string(rank));
    expect_text(status.message(), "closeranks run with the coordinator of the job, has ended");
    std::vector<float> tensor(10, 1.0f);
    require(run(*idle, all_reduce(tensor)).fault() == Fault::system, "every later op");
    return "";
  };
  TestJob job(3, train, milliseconds{60000}, 0, ProcessIdentity{agent, state->start_ticks});
  wait_until([&] { return job.board().rounds.load() > 50; });
  job.stop_coordinator();
  const std::uint64_t before = job.board().rounds.load();
  wait_until([&] { return job.board().rounds.load() > before + 100; });
  EXPECT_GT(job.board().rounds.load(), before + 100) << "the process lives: the coordinator may come back";
  ::kill(agent, SIGKILL);
  EXPECT_EQ(job.join(std::chrono::seconds{5}), "");
  ::waitpid(agent, nullptr, 0);
}

// Its number is another process's by now, or it is out of sight.
TEST(Views, AProcessThatIsNotTheCoordinatorsIsNotWatched) {
  const auto train = [](std::uint32_t, Engine& engine, JobBoard&) -> std::string {
    const auto group = make_group(engine, "world", 2, Policy::repair);
    for (int op = 0; op < 200; ++op) require(count_members(*group) == 2.0f, "both");
    return "";
  };
  TestJob job(2, train, milliseconds{60000}, 0, ProcessIdentity{::getpid(), 1});
  EXPECT_EQ(job.join(), "");
}

TEST(Views, GroupsAreMadeAgainUnderTheSameName) {
  TestJob job(2, [](std::uint32_t rank, Engine& engine, JobBoard&) -> std::string {
    for (int life = 0; life < 5; ++life) {
      const auto group = make_group(engine, "world", 2, Policy::repair);
      for (int op = 0; op <= life; ++op) require(count_members(*group) == 2.0f, "both");
      // One is ahead of the other by a whole life of the group.
      if (rank == 0) std::this_thread::sleep_for(milliseconds{20});
    }
    return "";
  });
  EXPECT_EQ(job.join(), "");
}

}  // namespace
}  // namespace closeranks::communicator_test
