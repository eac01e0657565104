// A job over real sockets: the server, an agent and workers made of the real links and the real worker machine; only
// the engine is played. Each of them has a control thread of its own, as in production.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "control/agent_link.h"
#include "control/worker_link.h"
#include "coordinator/server.h"
#include "membership/worker.h"

namespace closeranks::coordinator::test {

// Generous: these tests assert what happens, not how fast.
inline constexpr std::chrono::seconds patience{20};

// Values that several threads read and write, and a way to wait for what they become.
class Board {
 public:
  template <class Action>
  auto change(Action action) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
    return action();
  }
  template <class Predicate>
  bool wait(Predicate predicate, std::chrono::milliseconds deadline = patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, deadline, predicate);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

inline membership::WorkerAddress address_of(std::uint32_t slot) {
  return {WorkerId(slot), Slot(slot), 1'000 + slot, "alpha", "endpoint-" + std::to_string(slot)};
}

// A worker with one group of all slots. Its engine has entered `entered` entries and completed one less.
class FakeWorker {
 public:
  FakeWorker(const std::string& coordinator, const std::string& token, const std::string& job, std::uint32_t slot,
             std::uint32_t slots)
      : thread_("worker"), slot_(slot), slots_(slots), machine_(address_of(slot)) {
    control::WorkerLinkOptions options;
    options.coordinator = coordinator;
    options.token = token;
    options.job = job;
    options.worker = WorkerId(slot);
    options.opening = [this] { return machine_.connected().send; };
    options.message = [this](const membership::ToWorker& message) { carry_out(machine_.handle(message)); };
    options.events.connected = [this] { board.change([&] { ++connected; }); };
    options.events.lost = [this](const Status& why) {
      board.change([&] {
        ++lost;
        last_error = why;
      });
    };
    options.events.refused = [this](const Status& why) {
      board.change([&] {
        ++refused;
        last_error = why;
      });
    };
    link_ = std::make_unique<control::WorkerLink>(thread_, std::move(options));
    link_->start();
  }
  ~FakeWorker() { stop(); }

  void stop() { link_->stop(); }
  void suspect(std::uint32_t slot) {
    thread_.post([this, slot] { carry_out(machine_.suspect(WorkerId(slot), "its thread died", true)); });
  }
  // It has come to a boundary.
  void begin_session() { static_cast<void>(link_->send(membership::Progress{WorkerId(slot_), 1, true, {}})); }
  void goodbye() {
    EXPECT_TRUE(thread_.run([this] { carry_out(machine_.goodbye()); }).ok());
    link_->stop(std::chrono::seconds(2));
  }
  control::WorkerLink& link() { return *link_; }

  Board board;
  // Under the board.
  int connected = 0;
  int lost = 0;
  int refused = 0;
  Status last_error;
  std::uint64_t entered = 5;
  bool answers = true;  // to a proposal
  std::map<WorkerId, membership::WorkerAddress> peers;
  std::vector<membership::Install> installs;
  std::vector<membership::Evicted> evictions;
  std::vector<membership::Leave> asked_to_leave;
  ViewNumber view;

 private:
  void carry_out(const membership::WorkerEffects& effects) {
    bool frozen = false;
    board.change([&] {
      for (const auto& address : effects.addresses) peers[address.worker] = address;
      if (effects.install) installs.push_back(*effects.install);
      if (effects.evicted) evictions.push_back(*effects.evicted);
      if (effects.leave) asked_to_leave.push_back(*effects.leave);
      view = machine_.view();
      frozen = effects.freeze.has_value() && answers;
    });
    for (const membership::FromWorker& message : effects.send) {
      // Without a connection it is dropped; the opening says it again.
      static_cast<void>(link_->send(message));
    }
    if (frozen) carry_out(machine_.frozen(effects.freeze->view, {status(effects.freeze->excluding)}));
  }

  membership::GroupStatus status(const std::vector<membership::ExcludedMember>& excluding) {
    membership::GroupStatus status;
    status.group = GroupKey(77);
    status.name = "default_pg";
    for (std::uint32_t slot = 0; slot < slots_; ++slot) status.members.push_back(Slot(slot));
    status.policy = Policy::repair;
    board.change([&] {
      status.entered = entered;
      if (!installs.empty() && !installs.back().groups.empty()) {
        status.view = installs.back().groups.front().view;
        status.departures = installs.back().groups.front().departures;
      }
    });
    status.completed = status.entered - 1;
    for (const auto& excluded : excluding) status.observed.push_back({excluded.worker, status.entered});
    return status;
  }

  control::ControlThread thread_;
  const std::uint32_t slot_;
  const std::uint32_t slots_;
  membership::Worker machine_;
  std::unique_ptr<control::WorkerLink> link_;
};

// The agent of host alpha. Proves every fence it is asked for, unless told not to.
class FakeAgent {
 public:
  FakeAgent(const std::string& coordinator, const std::string& token, const std::string& job) : thread_("agent") {
    control::AgentLinkOptions options;
    options.coordinator = coordinator;
    options.token = token;
    options.job = job;
    options.host = "alpha";
    options.opening = [this] {
      std::vector<membership::FromAgent> opening{membership::AgentHello{"alpha", 999}};
      board.change([&] {
        opening.insert(opening.end(), ended.begin(), ended.end());
        opening.insert(opening.end(), asked.begin(), asked.end());
      });
      return opening;
    };
    options.message = [this](const membership::ToAgent& message) {
      if (const auto* fence = std::get_if<membership::Fence>(&message)) on_fence(*fence);
    };
    options.events.connected = [this] { board.change([&] { ++connected; }); };
    link_ = std::make_unique<control::AgentLink>(thread_, std::move(options));
    link_->start();
  }
  ~FakeAgent() { link_->stop(); }

  // The worker was killed: suspicion first, proof when asked for.
  void kill(std::uint32_t slot) {
    EXPECT_TRUE(link_->send(membership::AgentSuspicion{WorkerId(slot), "its life word says owner died"}).ok());
  }
  // Drain or Resize.
  void ask(const membership::FromAgent& message) {
    board.change([&] { asked.push_back(message); });
    EXPECT_TRUE(link_->send(message).ok());
  }
  control::AgentLink& link() { return *link_; }

  Board board;
  // Under the board.
  int connected = 0;
  std::vector<membership::FromAgent> asked;  // said again on each connection
  std::vector<membership::Fence> fences;
  std::vector<membership::FromAgent> ended;  // said again on each connection

 private:
  void on_fence(const membership::Fence& fence) {
    const membership::Fenced proof{fence.worker, true, true, 9, "killed by signal 9"};
    board.change([&] {
      fences.push_back(fence);
      ended.push_back(proof);
    });
    static_cast<void>(link_->send(proof));
  }

  control::ControlThread thread_;
  std::unique_ptr<control::AgentLink> link_;
};

class Job {
 public:
  explicit Job(std::uint32_t slots)
      : slots_(slots), thread_("coordinator"), sink_([this](const Event& event) { record(event); }) {}
  ~Job() {
    workers.clear();
    agent.reset();
    server.reset();
  }

  [[nodiscard]] ServerOptions options() const {
    ServerOptions options;
    options.job = job;
    options.token = token;
    for (std::uint32_t slot = 0; slot < slots_; ++slot) options.roster.push_back({WorkerId(slot), Slot(slot), "alpha"});
    return options;
  }
  // `port` 0: a free one.
  void start_server(std::uint16_t port = 0) { start_server_with(options(), port); }
  void start_server_with(ServerOptions options, std::uint16_t port = 0) {
    options.port = port;
    Result<std::unique_ptr<Server>> started = Server::start(thread_, std::move(options), journal, sink_);
    ASSERT_TRUE(started.ok()) << started.status().message();
    server = std::move(started.value());
  }
  [[nodiscard]] std::uint16_t port() const {
    const std::string address = server->address();
    return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  void start_agent() { agent = std::make_unique<FakeAgent>(server->address(), token, job); }
  FakeWorker& start_worker(std::uint32_t slot) {
    workers[slot] = std::make_unique<FakeWorker>(server->address(), token, job, slot, slots_);
    return *workers[slot];
  }
  // The server, the agent and all workers, each of which knows all others.
  void start_all() {
    start_server();
    start_agent();
    for (std::uint32_t slot = 0; slot < slots_; ++slot) start_worker(slot);
    for (auto& [slot, worker] : workers) {
      ASSERT_TRUE(worker->board.wait([&] { return worker->peers.size() == slots_; })) << "worker " << slot;
    }
    ASSERT_TRUE(agent->board.wait([&] { return agent->connected == 1; }));
  }

  [[nodiscard]] bool saw(EventKind kind, std::chrono::milliseconds deadline = patience) {
    return board.wait([&] { return count(kind) > 0; }, deadline);
  }
  // Under the board.
  [[nodiscard]] int count(EventKind kind) const {
    int number = 0;
    for (const Event& event : events) number += event.kind == kind ? 1 : 0;
    return number;
  }
  [[nodiscard]] const Event* find(EventKind kind) const {
    for (const Event& event : events) {
      if (event.kind == kind) return &event;
    }
    return nullptr;
  }

  const std::string job = "job-of-this-test";
  const std::string token = "token of this test";
  MemoryJournal journal;
  Board board;
  std::vector<Event> events;  // under the board
  std::unique_ptr<Server> server;
  std::unique_ptr<FakeAgent> agent;
  std::map<std::uint32_t, std::unique_ptr<FakeWorker>> workers;
  control::ControlThread& thread() { return thread_; }
  EventSink& sink() { return sink_; }

 private:
  void record(const Event& event) {
    board.change([&] { events.push_back(event); });
  }

  const std::uint32_t slots_;
  control::ControlThread thread_;
  EventFunction sink_;
};

}  // namespace closeranks::coordinator::test
