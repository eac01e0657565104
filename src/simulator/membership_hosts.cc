// Worker processes, and the agents that start, watch and fence them.
#include <algorithm>
#include <utility>

#include "simulator/membership_world.h"

namespace closeranks::simulator {

using namespace membership;
using std::chrono::milliseconds;

namespace {
constexpr Time stop_timeout = milliseconds(50);  // the agent's patience with a stopped worker
}

void MembershipWorld::in_process(std::uint32_t worker, std::function<void()> action) {
  WorkerModel& model = workers_[worker];
  if (model.dead()) return;
  if (model.run == WorkerModel::Run::stopped) {
    model.deferred.push_back(std::move(action));
    return;
  }
  action();
}

void MembershipWorld::start_worker(std::uint32_t worker) {
  if (workers_[worker].dead()) return;  // fenced before it began
  workers_[worker].run = WorkerModel::Run::running;
  reconnect(worker);
  step_worker(worker, scenario_.step);
}

// Pauses grow while nothing moves: a waiting worker costs the simulation little.
void MembershipWorld::step_worker(std::uint32_t worker, Time pause) {
  const auto most = static_cast<std::uint64_t>(pause.count());
  at(now_ + Time(random_.between(most / 8 + 1, most)), [this, worker, pause] {
    in_process(worker, [this, worker, pause] {
      WorkerModel& model = workers_[worker];
      if (model.engine_stopped || model.machine.state() == Worker::State::evicted) return;
      std::vector<FromWorker> says;
      const bool moved = model.step(now_, random_, oracle_, says);
      send_up(worker, std::move(says));
      if (model.kill_when_ahead && moved && model.ahead()) {
        end_worker(worker, {9, true, "killed by signal 9", now_});
        return;
      }
      if (model.in_session()) session_turn(worker);
      if (model.dead() || model.engine_stopped) return;
      if (!model.in_session() && model.done() && moved && random_.chance(scenario_.exit_when_done_percent)) {
        model.engine_stopped = random_.chance(50);
        if (model.engine_stopped) send_up(worker, model.machine.goodbye().send);
        later(Time(100), milliseconds(30), [this, worker] {
          in_process(worker, [this, worker] { end_worker(worker, {0, true, "exited with status 0", now_}); });
        });
      }
      step_worker(worker, moved ? scenario_.step : std::min(pause * 2, Time(milliseconds(12))));
    });
  });
}

void MembershipWorld::handle_in_worker(std::uint32_t worker, const ToWorker& message) {
  log("coordinator -> worker " + std::to_string(worker + 1) + ": " + describe(message));
  const bool in_change = of_a_change(message);
  if (in_change && now_ < scenario_.faults_end && random_.chance(scenario_.kill_in_change_percent)) {
    later(Time(0), milliseconds(5), [this, worker] {
      if (workers_[worker].dead()) return;
      ++report_.faults;
      log("FAULT kill of worker " + std::to_string(worker + 1) + " in the midst of a change");
      end_worker(worker, {9, true, "killed by signal 9", now_});
    });
  }
  WorkerEffects effects = workers_[worker].machine.handle(message);
  const auto* propose = std::get_if<Propose>(&message);
  if (propose != nullptr && coordinator_ && coordinator_->term() == propose->view.term && links_[worker].up &&
      oracle_.last_proposal() == propose->view && workers_[worker].machine.view() < propose->view && !effects.freeze &&
      workers_[worker].machine.state() != Worker::State::joining &&  // of a broken connection; it comes again
      !workers_[worker].engine_stopped) {
    oracle_.violation("rule 21: worker " + std::to_string(worker + 1) + " refuses the proposal in force");
  }
  carry_out(worker, std::move(effects));
}

void MembershipWorld::carry_out(std::uint32_t worker, WorkerEffects effects) {
  WorkerModel& model = workers_[worker];
  model.remember(effects.addresses);
  if (effects.install) {
    model.remember(effects.install->joined);
    model.install(*effects.install, oracle_);
  }
  if (effects.round_over) model.round_over(*effects.round_over);
  if (effects.hold) {
    const std::uint64_t step = model.gate.hold(effects.hold->round);
    for (FromWorker& message : model.machine.holding(effects.hold->round, step).send) {
      effects.send.push_back(std::move(message));
    }
  }
  if (effects.admit) {
    if (model.machine.is_newcomer()) {
      model.answered = effects.admit->round;
      for (FromWorker& message : model.machine.frozen(effects.admit->round, model.freeze_all()).send) {
        effects.send.push_back(std::move(message));
      }
    } else {
      (void)model.gate.admit(effects.admit->round, effects.admit->step);
    }
  }
  if (effects.transfer) move_state(worker, *effects.transfer);
  if (effects.leave) model.asked_to_leave = true;
  if (effects.job_finished) {
    end_worker(worker, {0, true, "exited with status 0", now_});
    return;
  }
  if (effects.evicted) {
    log("worker " + std::to_string(worker + 1) + " is evicted and stops");
    end_worker(worker, {256, true, "exited with status 1", now_});
    return;
  }
  send_up(worker, std::move(effects.send));
  if (!effects.freeze) return;
  const Time takes = std::exchange(model.next_freeze_takes, Time{}) + Time(random_.between(20, 2'000));
  model.control_free_at = now_ + takes;
  at(model.control_free_at, [this, worker, request = std::move(*effects.freeze)] {
    in_process(worker, [this, worker, request] {
      WorkerModel& freezing = workers_[worker];
      std::vector<GroupStatus> statuses = freezing.freeze(request, oracle_);
      send_up(worker, freezing.machine.frozen(request.view, std::move(statuses)).send);
    });
  });
}

void MembershipWorld::end_worker(std::uint32_t worker, End end) {
  WorkerModel& model = workers_[worker];
  if (model.dead()) return;
  model.run = WorkerModel::Run::dead;
  model.deferred.clear();
  ends_[worker] = std::move(end);
  oracle_.ended(model.id());
  break_link(worker, false);
  agent_sees_end(worker);
}

void MembershipWorld::stop_worker(std::uint32_t worker, Time duration) {
  WorkerModel& model = workers_[worker];
  if (model.run != WorkerModel::Run::running) return;
  model.run = WorkerModel::Run::stopped;
  at(now_ + stop_timeout, [this, worker, since = now_] {
    if (workers_[worker].run != WorkerModel::Run::stopped || now_ - since < stop_timeout) return;
    oracle_.stopped_too_long(WorkerModel::id_of(worker));
    agent_says(host_of(worker), AgentSuspicion{WorkerModel::id_of(worker), "stopped for 50 ms"});
  });
  at(now_ + duration, [this, worker] { continue_worker(worker); });
}

void MembershipWorld::continue_worker(std::uint32_t worker) {
  WorkerModel& model = workers_[worker];
  if (model.run != WorkerModel::Run::stopped) return;
  model.run = WorkerModel::Run::running;
  for (std::function<void()>& action : std::exchange(model.deferred, {})) {
    at(now_, [this, worker, action = std::move(action)]() mutable { in_process(worker, std::move(action)); });
  }
}

// First sign, proof and reap, each in its time; an agent that is gone meanwhile tells after its hello.
void MembershipWorld::agent_sees_end(std::uint32_t worker) {
  const std::uint32_t host = host_of(worker);
  if (random_.chance(80)) {
    later(Time(100), milliseconds(5), [this, worker, host] {
      agent_says(host, AgentSuspicion{WorkerModel::id_of(worker), "its life word says that its owner died"});
    });
  }
  const Time proof(random_.between(500, 20'000));
  const bool early = random_.chance(70);
  at(now_ + proof, [this, worker, early] { agent_tells_end(worker, !early); });
  if (early) later(proof, proof + milliseconds(60), [this, worker] { agent_tells_end(worker, true); });
  // One that was in no view is replaced by its agent alone; any other when its exclusion is decided.
  const WorkerModel& model = workers_[worker];
  if (model.started_late() && model.machine.is_newcomer()) fill_slot(model.slot());
}

void MembershipWorld::agent_tells_end(std::uint32_t worker, bool reaped) {
  const End& end = *ends_[worker];
  const std::uint32_t host = host_of(worker);
  const WorkerId id = WorkerModel::id_of(worker);
  if (!reaped || !end.by_itself) {
    agent_says(host, Fenced{id, end.by_itself, reaped, end.wait_status, reaped ? end.reason : "has no memory left"});
  }
  if (reaped) agent_says(host, Exited{id, end.wait_status, end.reason});
}

void MembershipWorld::agent_fences(std::uint32_t host, const Fence& fence) {
  const auto worker = static_cast<std::uint32_t>(fence.worker.value() - 1);
  log("coordinator -> agent " + std::to_string(host) + ": fence worker " + std::to_string(worker + 1) + ": " +
      fence.reason);
  later(Time(50), milliseconds(3), [this, host, worker] {
    if (!agents_[host].up) return;
    if (!workers_[worker].dead()) {
      log("agent " + std::to_string(host) + " kills worker " + std::to_string(worker + 1));
      end_worker(worker, {9, false, "killed by signal 9", now_});
      return;
    }
    if (now_ - ends_[worker]->at > milliseconds(20)) agent_tells_end(worker, true);  // told before, perhaps unheard
  });
}

void MembershipWorld::agent_outage(std::uint32_t host, Time duration) {
  AgentModel& agent = agents_[host];
  if (!agent.up) return;
  agent.up = false;
  break_agent_link(host);
  at(now_ + duration, [this, host] {
    agents_[host].up = true;
    connect_agent(host);
    for (std::uint32_t worker = 0; worker < workers_.size(); ++worker) {
      if (host_of(worker) != host || workers_[worker].run != WorkerModel::Run::stopped) continue;
      at(now_ + stop_timeout, [this, worker] {  // it begins to count anew
        if (workers_[worker].run != WorkerModel::Run::stopped) return;
        oracle_.stopped_too_long(WorkerModel::id_of(worker));
        agent_says(host_of(worker), AgentSuspicion{WorkerModel::id_of(worker), "stopped for 50 ms"});
      });
    }
  });
}

}  // namespace closeranks::simulator
