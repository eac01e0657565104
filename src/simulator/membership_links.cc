// Connections to the coordinator: ordered, delayed, broken and made again.
#include <algorithm>
#include <utility>

#include "simulator/membership_world.h"

namespace closeranks::simulator {

using namespace membership;
using std::chrono::milliseconds;

void MembershipWorld::send_up(std::uint32_t worker, std::vector<FromWorker> messages) {
  Link& link = links_[worker];
  for (FromWorker& message : messages) {
    if (const auto* suspicion = std::get_if<Suspicion>(&message); suspicion != nullptr && suspicion->in_op) {
      oracle_.waited_for(suspicion->suspect);
    }
    if (!link.up) continue;  // dropped: said again at the next connection
    link.last_up = std::max(link.last_up + Time(1), now_ + delay());
    at(link.last_up, [this, worker, number = link.number, message = std::move(message)] {
      if (links_[worker].number != number || !coordinator_) return;
      log("worker " + std::to_string(worker + 1) + " -> coordinator: " + describe(message));
      links_[worker].greeted = number;
      if (const auto* prepared = std::get_if<Prepared>(&message))
        oracle_.answer_arrived(prepared->from, prepared->view);
      in_coordinator([this, message] { return coordinator_->handle_worker(message, now_); });
    });
  }
}

void MembershipWorld::send_down(std::uint32_t worker, const ToWorker& message) {
  Link& link = links_[worker];
  if (!link.up || link.greeted != link.number) return;
  link.last_down = std::max(link.last_down + Time(1), now_ + delay());
  at(link.last_down, [this, worker, number = link.number, message] {
    Link& current = links_[worker];
    if (current.number == number) {
      arrive(worker, message);
    } else if (current.haunted.contains(number) && random_.chance(50)) {
      later(Time(0), milliseconds(80), [this, worker, message] {
        log("(a message of a broken connection still comes)");
        arrive(worker, message);
      });
    }
  });
}

// The worker's control thread does one thing at a time.
void MembershipWorld::arrive(std::uint32_t worker, const ToWorker& message) {
  in_process(worker, [this, worker, message] {
    if (workers_[worker].control_free_at > now_) {
      at(workers_[worker].control_free_at, [this, worker, message] { arrive(worker, message); });
      return;
    }
    handle_in_worker(worker, message);
  });
}

void MembershipWorld::break_link(std::uint32_t worker, bool ghosts) {
  Link& link = links_[worker];
  if (!link.up) return;
  if (ghosts) link.haunted.insert(link.number);
  link.up = false;
  const std::uint64_t broken = ++link.number;
  // Each end notices when it does.
  later(Time(100), milliseconds(15), [this, worker, broken] {
    if (links_[worker].number != broken || !coordinator_) return;  // a newer connection is there
    in_coordinator([this, worker] { return coordinator_->connection_lost(WorkerModel::id_of(worker), now_); });
  });
  later(Time(100), milliseconds(15), [this, worker] {
    in_process(worker, [this, worker] {
      if (links_[worker].up) return;
      carry_out(worker, workers_[worker].machine.connection_lost());
      reconnect(worker);
    });
  });
}

void MembershipWorld::reconnect(std::uint32_t worker) {
  Link& link = links_[worker];
  if (link.up || workers_[worker].machine.state() == Worker::State::evicted) return;
  if (!coordinator_) {
    later(milliseconds(5), milliseconds(20),
          [this, worker] { in_process(worker, [this, worker] { reconnect(worker); }); });
    return;
  }
  link.up = true;
  ++link.number;
  link.last_up = link.last_down = now_;
  send_up(worker, workers_[worker].machine.connected().send);
}

void MembershipWorld::agent_says(std::uint32_t host, const FromAgent& message) {
  Link& link = agents_[host].link;
  if (!agents_[host].up || !link.up) return;  // said again after the next hello
  link.last_up = std::max(link.last_up + Time(1), now_ + delay());
  at(link.last_up, [this, host, number = link.number, message] {
    if (agents_[host].link.number != number || !coordinator_) return;
    log("agent " + std::to_string(host) + " -> coordinator: " + describe(message));
    in_coordinator(
        [this, host, message] { return coordinator_->handle_agent("host" + std::to_string(host), message, now_); });
  });
}

void MembershipWorld::send_to_agent(std::uint32_t host, const ToAgent& message) {
  Link& link = agents_[host].link;
  if (!link.up) return;
  link.last_down = std::max(link.last_down + Time(1), now_ + delay());
  at(link.last_down, [this, host, number = link.number, message] {
    if (agents_[host].link.number == number && agents_[host].up) agent_fences(host, std::get<Fence>(message));
  });
}

void MembershipWorld::connect_agent(std::uint32_t host) {
  AgentModel& agent = agents_[host];
  if (!agent.up || agent.link.up) return;
  if (!coordinator_) {
    later(milliseconds(5), milliseconds(20), [this, host] { connect_agent(host); });
    return;
  }
  agent.link.up = true;
  ++agent.link.number;
  agent.link.last_up = agent.link.last_down = now_;
  agent_says(host, AgentHello{"host" + std::to_string(host), 1});
  for (std::uint32_t worker = 0; worker < workers_.size(); ++worker) {
    const WorkerModel& model = workers_[worker];
    if (host_of(worker) != host || !model.started_late() || model.dead()) continue;
    agent_says(host, Started{model.id(), Slot(model.slot())});
  }
  for (std::uint32_t worker = 0; worker < workers_.size(); ++worker) {
    if (host_of(worker) == host && workers_[worker].dead()) agent_tells_end(worker, true);
  }
  if (agent.draining) agent_says(host, Drain{"the host goes away"});
}

void MembershipWorld::break_agent_link(std::uint32_t host) {
  Link& link = agents_[host].link;
  if (!link.up) return;
  link.up = false;
  ++link.number;
  later(Time(100), milliseconds(15), [this, host] { connect_agent(host); });
}

}  // namespace closeranks::simulator
