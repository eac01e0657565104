// The whole way of a death over real sockets: suspicion, fence, proposal, answers, install; and what happens to it when
// connections break and coordinators restart.
#include "coordinator/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "job.h"

namespace closeranks::coordinator::test {
namespace {

using testing::HasSubstr;

std::vector<Slot> slots(std::initializer_list<std::uint32_t> numbers) {
  std::vector<Slot> out;
  for (const std::uint32_t number : numbers) out.push_back(Slot(number));
  return out;
}

TEST(Server, WorkersMeetAndLearnEachOthersAddresses) {
  Job job(4);
  job.start_all();
  for (auto& [slot, worker] : job.workers) {
    worker->board.change([&, peer = worker.get()] {
      EXPECT_EQ(peer->view, (ViewNumber{1, 1}));
      EXPECT_EQ(peer->peers[WorkerId(3)], address_of(3));
    });
  }
  EXPECT_EQ(job.server->view().present, slots({0, 1, 2, 3}));
  EXPECT_EQ(job.server->view().term, 1u);
}

TEST(Server, ADeathIsFencedProposedAnsweredAndInstalled) {
  Job job(4);
  job.start_all();
  job.workers[2]->stop();
  job.agent->kill(2);
  for (const std::uint32_t slot : {0u, 1u, 3u}) {
    FakeWorker& worker = *job.workers[slot];
    ASSERT_TRUE(worker.board.wait([&] { return !worker.installs.empty(); })) << "worker " << slot;
    worker.board.change([&] {
      const membership::Install& install = worker.installs.front();
      ASSERT_EQ(install.excluded.size(), 1u);
      EXPECT_EQ(install.excluded[0].worker, WorkerId(2));
      ASSERT_EQ(install.groups.size(), 1u);
      ASSERT_EQ(install.groups[0].departures.size(), 1u);
      EXPECT_EQ(install.groups[0].departures[0].last_op, 5u);
    });
  }
  EXPECT_EQ(job.server->view().present, slots({0, 1, 3}));
  EXPECT_EQ(job.agent->board.change([&] { return job.agent->fences.size(); }), 1u);

  // The log: the first report, then the proof, then the exclusion, then the view, each once and in this order.
  ASSERT_TRUE(job.board.wait([&] { return job.count(EventKind::view_installed) == 2; }));
  job.board.change([&] {
    std::vector<EventKind> order;
    for (const Event& event : job.events) {
      if (event.kind == EventKind::worker_suspected || event.kind == EventKind::worker_fenced ||
          event.kind == EventKind::worker_excluded) {
        order.push_back(event.kind);
        EXPECT_EQ(event.slot, Slot(2));
        EXPECT_EQ(event.worker, WorkerId(2));
        EXPECT_EQ(event.pid, 1'002u);
        EXPECT_EQ(event.host, "alpha");
      }
    }
    EXPECT_EQ(order, (std::vector<EventKind>{EventKind::worker_suspected, EventKind::worker_fenced,
                                             EventKind::worker_excluded}));
    EXPECT_EQ(job.events.back().kind, EventKind::view_installed);
    EXPECT_THAT(job.events.back().detail, HasSubstr("present slots: 0, 1, 3"));
  });
}

TEST(Server, ThreeOfFourDieAtOnce) {
  Job job(4);
  job.start_all();
  for (const std::uint32_t slot : {0u, 1u, 3u}) {
    job.workers[slot]->stop();
    job.agent->kill(slot);
  }
  FakeWorker& last = *job.workers[2];
  ASSERT_TRUE(last.board.wait([&] { return !last.installs.empty() && last.installs.back().excluded.size() == 3; }));
  EXPECT_EQ(job.server->view().present, slots({2}));
}

TEST(Server, AWorkersHintLeadsToAFenceAndTheExcludedIsEvicted) {
  Job job(3);
  job.start_all();
  // Worker 1 lives and only seems dead: it is fenced (played), so it is out, and is told so when it asks.
  job.workers[0]->suspect(1);
  for (const std::uint32_t slot : {0u, 2u}) {
    FakeWorker& worker = *job.workers[slot];
    ASSERT_TRUE(worker.board.wait([&] { return !worker.installs.empty(); }));
  }
  FakeWorker& out = *job.workers[1];
  EXPECT_TRUE(out.board.wait([&] { return !out.evictions.empty(); }));
}

TEST(Server, AReconnectedWorkerAnswersTheProposalItMissed) {
  Job job(3);
  job.start_all();
  FakeWorker& slow = *job.workers[1];
  slow.board.change([&] { slow.answers = false; });
  job.workers[2]->stop();
  job.agent->kill(2);
  ASSERT_TRUE(job.saw(EventKind::view_proposed));
  // Its connection breaks before it has answered; the same worker connects again and now answers.
  slow.stop();
  slow.board.change([&] { EXPECT_TRUE(slow.installs.empty()); });
  FakeWorker& again = job.start_worker(1);
  ASSERT_TRUE(again.board.wait([&] { return !again.installs.empty(); }));
  ASSERT_TRUE(job.workers[0]->board.wait([&] { return !job.workers[0]->installs.empty(); }));
  EXPECT_EQ(job.server->view().present, slots({0, 1}));
}

TEST(Server, ASecondConnectionTakesOverTheFirst) {
  Job job(2);
  job.start_all();
  // The same claim, truly proved, from elsewhere: the first one loses its connection, and both go on trying. What
  // counts: the coordinator stays with one at a time, and the other worker notices nothing.
  const int lost_before = job.workers[1]->board.change([&] { return job.workers[1]->lost; });
  FakeWorker twin(job.server->address(), job.token, job.job, 0, 2);
  ASSERT_TRUE(twin.board.wait([&] { return twin.connected > 0; }));
  FakeWorker& first = *job.workers[0];
  EXPECT_TRUE(first.board.wait([&] { return first.lost > 0; }));
  EXPECT_EQ(job.workers[1]->board.change([&] { return job.workers[1]->lost; }), lost_before);
}

TEST(Server, AClaimWithTheWrongTokenTakesNothingOver) {
  Job job(2);
  job.start_all();
  FakeWorker thief(job.server->address(), "not the token", job.job, 0, 2);
  ASSERT_TRUE(thief.board.wait([&] { return thief.refused > 0; }));
  thief.board.change([&] { EXPECT_THAT(thief.last_error.message(), HasSubstr("refused worker 0: wrong token")); });
  EXPECT_EQ(job.workers[0]->board.change([&] { return job.workers[0]->lost; }), 0);
}

TEST(Server, ARestartedCoordinatorGoesOnFromTheJournal) {
  Job job(4);
  job.start_all();
  job.workers[3]->stop();
  job.agent->kill(3);
  ASSERT_TRUE(job.workers[0]->board.wait([&] { return !job.workers[0]->installs.empty(); }));
  const std::uint16_t port = job.port();
  job.server.reset();
  ASSERT_TRUE(job.workers[0]->board.wait([&] { return job.workers[0]->lost > 0; }));

  job.start_server(port);
  EXPECT_EQ(job.server->view().term, 2u);
  EXPECT_EQ(job.server->view().present, slots({0, 1, 2}));
  for (const std::uint32_t slot : {0u, 1u, 2u}) {
    FakeWorker& worker = *job.workers[slot];
    ASSERT_TRUE(worker.board.wait([&] { return worker.connected >= 2; })) << "worker " << slot;
  }
  ASSERT_TRUE(job.agent->board.wait([&] { return job.agent->connected >= 2; }));

  job.workers[1]->stop();
  job.agent->kill(1);
  for (const std::uint32_t slot : {0u, 2u}) {
    FakeWorker& worker = *job.workers[slot];
    ASSERT_TRUE(worker.board.wait([&] {
      return worker.view.term == 2 && !worker.installs.empty() && worker.installs.back().excluded.size() == 2;
    })) << "worker "
        << slot;
  }
  EXPECT_EQ(job.server->view().present, slots({0, 2}));
}

TEST(Server, ADeathWhileTheCoordinatorIsDownIsDealtWithByTheNext) {
  Job job(3);
  job.start_all();
  const std::uint16_t port = job.port();
  job.server.reset();
  ASSERT_TRUE(job.agent->board.wait([&] { return !job.agent->link().connected(); }));
  job.workers[2]->stop();
  job.agent->board.change([&] {
    job.agent->ended.push_back(membership::Fenced{WorkerId(2), true, true, 9, "killed by signal 9"});
    job.agent->ended.push_back(membership::Exited{WorkerId(2), 9, "killed by signal 9"});
  });
  job.start_server(port);
  for (const std::uint32_t slot : {0u, 1u}) {
    FakeWorker& worker = *job.workers[slot];
    ASSERT_TRUE(worker.board.wait([&] { return !worker.installs.empty(); })) << "worker " << slot;
  }
  EXPECT_EQ(job.server->view().present, slots({0, 1}));
}

// What the journal does not have: the agent says it again, and whoever comes to a boundary hears it from the new one.
TEST(Server, DrainAndResizeOutliveTheCoordinator) {
  struct Case {
    membership::FromAgent asked;
    std::vector<std::uint32_t> leaving;
    std::string reason;
  };
  for (const Case& one : {Case{membership::Resize{1}, {1, 2}, "resized to 1"},
                          Case{membership::Drain{"the host goes away"}, {0, 1, 2}, "the host goes away"}}) {
    Job job(3);
    job.start_all();
    job.agent->ask(one.asked);
    ASSERT_TRUE(job.saw(EventKind::draining)) << one.reason;
    const std::uint16_t port = job.port();
    job.server.reset();
    job.start_server(port);
    for (const std::uint32_t slot : one.leaving) {
      FakeWorker& worker = *job.workers[slot];
      ASSERT_TRUE(worker.board.wait([&] { return worker.connected >= 2; })) << one.reason << ", worker " << slot;
      worker.begin_session();
      ASSERT_TRUE(worker.board.wait([&] { return !worker.asked_to_leave.empty(); })) << one.reason << ", " << slot;
      EXPECT_THAT(worker.board.change([&] { return worker.asked_to_leave.front().reason; }), HasSubstr(one.reason));
    }
    for (auto& [slot, worker] : job.workers) {
      const bool stays = std::count(one.leaving.begin(), one.leaving.end(), slot) == 0;
      EXPECT_EQ(worker->board.change([&] { return worker->asked_to_leave.size(); }), stays ? 0u : 1u) << slot;
    }
  }
}

TEST(Server, BelowMinPresentItGivesUpOnce) {
  Job job(2);
  ServerOptions options = job.options();
  options.min_present = 2;
  Board board;
  std::vector<Event> ends;
  options.ended = [&](const Event& why) { board.change([&] { ends.push_back(why); }); };
  job.start_server_with(options);
  job.start_agent();
  FakeWorker& worker = job.start_worker(0);
  job.start_worker(1);
  ASSERT_TRUE(worker.board.wait([&] { return worker.peers.size() == 2; }));
  ASSERT_TRUE(job.agent->board.wait([&] { return job.agent->connected > 0; }));
  job.workers[1]->stop();
  job.agent->kill(1);
  ASSERT_TRUE(board.wait([&] { return !ends.empty(); }));
  board.change([&] {
    EXPECT_EQ(ends.size(), 1u);
    EXPECT_EQ(ends.front().kind, EventKind::gave_up);
  });
  EXPECT_TRUE(job.saw(EventKind::gave_up));
}

class FailingJournal : public MemoryJournal {
 public:
  explicit FailingJournal(int good) : good_(good) {}
  Status append(const membership::JournalRecord& record) override {
    if (good_-- <= 0) return Status(Fault::system, Move::give_up, "the disk is full");
    return MemoryJournal::append(record);
  }

 private:
  std::atomic<int> good_;
};

TEST(Server, WhatTheJournalRefusesIsNotAnnounced) {
  Job job(2);
  FailingJournal journal(2);  // term and first view, but no worker
  Board board;
  bool ended = false;
  ServerOptions options = job.options();
  options.ended = [&](const Event&) { board.change([&] { ended = true; }); };
  auto server = Server::start(job.thread(), options, journal, job.sink());
  ASSERT_TRUE(server.ok()) << server.status().message();
  FakeWorker worker(server.value()->address(), job.token, job.job, 0, 2);
  EXPECT_TRUE(board.wait([&] { return ended; }));
  EXPECT_TRUE(worker.board.change([&] { return worker.peers.empty(); }));
  worker.stop();
}

TEST(Server, ATermThatCannotBeKeptIsNoStart) {
  Job job(2);
  FailingJournal journal(0);
  auto server = Server::start(job.thread(), job.options(), journal, job.sink());
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.status().message(), HasSubstr("journal"));
}

TEST(Server, AnAddressThatIsTakenIsNamed) {
  Job job(2);
  job.start_server();
  ServerOptions options = job.options();
  options.port = job.port();
  MemoryJournal journal;
  auto second = Server::start(job.thread(), options, journal, job.sink());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("cannot listen on 127.0.0.1:" + std::to_string(job.port())));
}

TEST(Server, LeavingInOrderIsHeardToTheLastByte) {
  Job job(2);
  job.start_all();
  EXPECT_TRUE(job.workers[0]
                  ->link()
                  .send(membership::OpRepaired{WorkerId(0), "default_pg", 9, "all_reduce #9", {Slot(0), Slot(1)}, 3})
                  .ok());
  job.workers[0]->goodbye();
  EXPECT_TRUE(job.saw(EventKind::worker_left));
  ASSERT_TRUE(job.saw(EventKind::op_repaired));
  job.board.change([&] {
    EXPECT_THAT(
        job.find(EventKind::op_repaired)->detail,
        HasSubstr("all_reduce #9 of group 'default_pg', with the inputs of slots 0, 1; blocks taken over here: 3"));
  });
}

TEST(Server, AnOverdueFenceIsSaidByTheMachinesTimer) {
  // The only thing that can call the machine here is the server's timer.
  Job job(2);
  job.start_server();
  FakeWorker& worker = job.start_worker(0);
  job.start_worker(1);
  ASSERT_TRUE(worker.board.wait([&] { return worker.peers.size() == 2; }));
  worker.suspect(1);
  EXPECT_TRUE(job.saw(EventKind::fence_overdue, deadlines::fence + patience));
}

}  // namespace
}  // namespace closeranks::coordinator::test
