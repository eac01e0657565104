#include "simulator/membership_world.h"

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <utility>

namespace closeranks::simulator {

using namespace membership;
using std::chrono::milliseconds;

namespace {

// After the last fault everything must have settled within this time: a late answer, its fence, a lost agent and one
// more change take less than a second.
constexpr Time time_to_settle = milliseconds(6'000);

std::vector<std::pair<WorkerId, Slot>> all_workers(std::uint32_t workers) {
  std::vector<std::pair<WorkerId, Slot>> all;
  for (std::uint32_t index = 0; index < workers; ++index) all.emplace_back(WorkerModel::id_of(index), Slot(index));
  return all;
}

const char* name_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill_when_ahead:
      return "kill when ahead";
    case FaultKind::kill:
      return "kill";
    case FaultKind::stop:
      return "stop";
    case FaultKind::exit_zero:
      return "exit with status 0";
    case FaultKind::goodbye:
      return "goodbye";
    case FaultKind::false_suspicion:
      return "false suspicion in an op";
    case FaultKind::idle_suspicion:
      return "false suspicion";
    case FaultKind::break_link:
      return "broken connection";
    case FaultKind::agent_outage:
      return "agent gone";
    case FaultKind::coordinator_crash:
      return "coordinator crashes";
    case FaultKind::coordinator_stall:
      return "coordinator stalls";
    case FaultKind::slow_freeze:
      return "slow freeze";
    case FaultKind::drain:
      return "drain";
    case FaultKind::resize:
      return "resize";
  }
  return "?";
}

}  // namespace

MembershipWorld::MembershipWorld(const MembershipRun& run)
    : run_(run),
      scenario_(draw_membership_scenario(run.seed, run.workers)),
      random_(run.seed ^ 0x5eedULL),
      links_(scenario_.workers),
      ends_(scenario_.workers),
      agents_(scenario_.hosts),
      oracle_({[this](WorkerId worker) { return workers_[worker.value() - 1].can_run(); },
               [this](WorkerId worker, GroupKey group) {
                 return workers_[worker.value() - 1].entered_in(group.value() - 100);
               },
               [this](WorkerId worker, ViewNumber round) { return workers_[worker.value() - 1].frozen_for(round); }},
              all_workers(scenario_.workers), scenario_.min_present) {
  starts_.resize(scenario_.workers);
  for (std::uint32_t index = 0; index < scenario_.workers; ++index) {
    workers_.emplace_back(index, index, scenario_, run_.model, run_.rules, workers_);
  }
  config_.job = "seed " + std::to_string(run.seed);
  config_.min_present = scenario_.min_present;
  config_.prepared_deadline = milliseconds(200);
  config_.fence_deadline = milliseconds(100);
  config_.tick_interval = milliseconds(20);
  config_.boundary_deadline = config_.transfer_deadline = milliseconds(20'000);  // nothing here may need it
  config_.join_pause = milliseconds(5);
  config_.join_pause_most = milliseconds(40);
  config_.join_attempts = 1'000;
  config_.rules = run.rules;
}

MembershipReport MembershipWorld::go() {
  report_.workers = scenario_.workers;
  log("seed " + std::to_string(run_.seed) + ": " + std::to_string(scenario_.workers) + " workers on " +
      std::to_string(scenario_.hosts) + " hosts, " + std::to_string(scenario_.groups.size()) + " groups, " +
      std::to_string(scenario_.faults.size()) + " faults, at least " + std::to_string(scenario_.min_present) +
      " present");
  start_coordinator();
  for (std::uint32_t host = 0; host < scenario_.hosts; ++host) connect_agent(host);
  for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) {
    at(scenario_.started_at[worker], [this, worker] { start_worker(worker); });
  }
  for (const PlannedFault& fault : scenario_.faults) {
    at(fault.at, [this, fault] { inject(fault); });
  }
  Time next_look = scenario_.faults_end;
  while (!queue_.empty() && oracle_.violations().empty() && !gave_up_) {
    if (queue_.top().at > next_look) {
      if (settled()) break;
      next_look = queue_.top().at + milliseconds(5);
    }
    if (queue_.top().at > scenario_.faults_end + time_to_settle) break;
    const auto action = std::move(const_cast<Scheduled&>(queue_.top()).action);
    now_ = queue_.top().at;
    queue_.pop();
    ++report_.events;
    action();
  }
  judge_end();
  report_.violations = oracle_.violations();
  for (const std::string& sentence : report_.violations) log("VIOLATION " + sentence);
  for (const WorkerModel& worker : workers_) {
    report_.entries_completed += worker.entries_completed;
    report_.entries_failed += worker.entries_failed;
  }
  report_.simulated_us = static_cast<std::uint64_t>(now_.count());
  report_.gave_up = gave_up_;
  return report_;
}

void MembershipWorld::at(Time time, std::function<void()> action) {
  queue_.push({std::max(time, now_), order_++, std::move(action)});
}

void MembershipWorld::later(Time least, Time most, std::function<void()> action) {
  at(now_ + Time(random_.between(static_cast<std::uint64_t>(least.count()), static_cast<std::uint64_t>(most.count()))),
     std::move(action));
}

Time MembershipWorld::delay() {
  const auto most = static_cast<std::uint64_t>(scenario_.link_delay.count());
  return Time(random_.between(50, random_.chance(90) ? most / 4 : most));
}

void MembershipWorld::log(const std::string& line) {
  if (run_.transcript == nullptr) return;
  *run_.transcript << std::fixed << std::setprecision(3) << std::setw(10) << static_cast<double>(now_.count()) / 1000.0
                   << " ms  " << line << '\n';
}

void MembershipWorld::inject(const PlannedFault& planned) {
  PlannedFault fault = planned;
  fault.worker = occupant(planned.worker);
  if (fault.kind == FaultKind::false_suspicion || fault.kind == FaultKind::idle_suspicion) {
    fault.other = occupant(planned.other);
  }
  WorkerModel& worker = workers_[fault.worker];
  const bool about_worker = fault.kind != FaultKind::agent_outage && fault.kind != FaultKind::coordinator_crash &&
                            fault.kind != FaultKind::coordinator_stall && fault.kind != FaultKind::drain &&
                            fault.kind != FaultKind::resize;
  if (about_worker && (worker.run == WorkerModel::Run::waiting || worker.dead())) return;
  ++report_.faults;
  log(std::string("FAULT ") + name_of(fault.kind) +
      (about_worker ? " of worker " + std::to_string(worker.id().value()) : ""));
  switch (fault.kind) {
    case FaultKind::kill_when_ahead:
      worker.kill_when_ahead = true;
      break;
    case FaultKind::kill:
      end_worker(fault.worker, {9, true, "killed by signal 9", now_});
      break;
    case FaultKind::stop:
      stop_worker(fault.worker, fault.duration);
      break;
    case FaultKind::exit_zero:
      if (worker.run == WorkerModel::Run::running) end_worker(fault.worker, {0, true, "exited with status 0", now_});
      break;
    case FaultKind::goodbye:
      if (worker.run != WorkerModel::Run::running || worker.engine_stopped) break;
      worker.engine_stopped = true;
      send_up(fault.worker, worker.machine.goodbye().send);
      break;
    case FaultKind::false_suspicion:
    case FaultKind::idle_suspicion: {
      if (worker.run != WorkerModel::Run::running || fault.other == fault.worker) break;
      const bool in_op = fault.kind == FaultKind::false_suspicion;
      if (in_op) oracle_.waited_for(WorkerModel::id_of(fault.other));
      send_up(fault.worker, worker.machine.suspect(WorkerModel::id_of(fault.other), "a false alarm", in_op).send);
      break;
    }
    case FaultKind::break_link:
      break_link(fault.worker, random_.chance(50));
      break;
    case FaultKind::agent_outage:
      agent_outage(host_of(fault.worker), fault.duration);
      break;
    case FaultKind::drain:
      agents_[host_of(fault.worker)].draining = true;
      agent_says(host_of(fault.worker), Drain{"the host goes away"});
      break;
    case FaultKind::resize:
      agent_says(0, Resize{fault.other});
      break;
    case FaultKind::coordinator_crash:
      crash_coordinator(fault.duration, random_.chance(50));
      break;
    case FaultKind::coordinator_stall:
      stall_coordinator(fault.duration);
      break;
    case FaultKind::slow_freeze:
      worker.next_freeze_takes = fault.duration;
      break;
  }
}

bool MembershipWorld::settled() const {
  if (!coordinator_ || stalled_ || coordinator_->changing()) return false;
  for (const Member& member : coordinator_->roster().members()) {
    const WorkerModel& worker = workers_[member.worker.value() - 1];
    if (worker.run == WorkerModel::Run::waiting || worker.run == WorkerModel::Run::stopped) return false;
    if (member.life == Life::excluded) continue;
    if (member.life == Life::suspected || (worker.dead() && member.life == Life::running)) return false;
    if (!worker.can_run()) continue;
    if (!worker.done() || worker.machine.view() != coordinator_->view()) return false;
    if (worker.machine.state() != Worker::State::active) return false;
  }
  return true;
}

void MembershipWorld::judge_end() {
  if (!oracle_.violations().empty()) return;
  if (gave_up_) {
    const auto left =
        static_cast<std::uint32_t>(std::count_if(workers_.begin(), workers_.end(), [this](const WorkerModel& worker) {
          const Member* member = coordinator_->roster().find(worker.id());
          return worker.can_run() && member != nullptr && member->in_view;
        }));
    if (left >= scenario_.min_present) {
      oracle_.violation("rule 21: gave up although " + std::to_string(left) + " workers can go on");
    }
    return;
  }
  if (settled()) return;
  std::string where;
  for (const WorkerModel& worker : workers_) {
    const bool stuck = worker.can_run() && worker.run != WorkerModel::Run::waiting &&
                       (!worker.done() || !coordinator_ || worker.machine.view() != coordinator_->view() ||
                        worker.machine.state() != Worker::State::active);
    if (stuck && where.size() < 4'000) where += "\n    " + worker.describe();
  }
  oracle_.violation("no progress: " + std::to_string(time_to_settle.count() / 1000) +
                    " ms after the last fault some worker has not finished or not reached the view in force" +
                    (coordinator_ ? " " + describe(coordinator_->view()) : "") + where);
}

MembershipReport run_membership(const MembershipRun& run) { return MembershipWorld(run).go(); }

}  // namespace closeranks::simulator
