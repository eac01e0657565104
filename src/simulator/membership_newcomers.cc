// Sessions in the simulated world: boundaries, leaving, and newcomers for vacant slots.
#include <algorithm>
#include <utility>

#include "simulator/membership_world.h"

namespace closeranks::simulator {

using namespace membership;
using std::chrono::milliseconds;

std::uint32_t MembershipWorld::occupant(std::uint32_t slot) const {
  for (std::size_t index = workers_.size(); index-- > scenario_.workers;) {
    if (workers_[index].slot() == slot) return static_cast<std::uint32_t>(index);
  }
  return slot;
}

void MembershipWorld::fill_slot(std::uint32_t slot) {
  if (scenario_.steps == 0) return;
  later(Time(500), scenario_.start_delay, [this, slot] { start_newcomer(slot); });
}

// It says so before the process can connect; without a coordinator it waits.
void MembershipWorld::start_newcomer(std::uint32_t slot) {
  const std::uint32_t host = scenario_.host_of(slot);
  if (!workers_[occupant(slot)].dead() || agents_[host].draining || starts_[slot] >= scenario_.starts_per_slot) return;
  if (!agents_[host].up || !agents_[host].link.up) {
    later(milliseconds(5), milliseconds(20), [this, slot] { start_newcomer(slot); });
    return;
  }
  ++starts_[slot];
  const auto index = static_cast<std::uint32_t>(workers_.size());
  workers_.emplace_back(index, slot, scenario_, run_.model, run_.rules, workers_);
  links_.emplace_back();
  ends_.emplace_back();
  oracle_.started(WorkerModel::id_of(index), Slot(slot));
  agent_says(host, Started{WorkerModel::id_of(index), Slot(slot)});
  at(std::max(now_ + Time(random_.between(1'000, 20'000)), agents_[host].link.last_up + Time(1)),
     [this, index] { start_worker(index); });
}

// After each turn of the engine.
void MembershipWorld::session_turn(std::uint32_t worker) {
  WorkerModel& model = workers_[worker];
  if (random_.chance(25)) send_up(worker, {Progress{model.id(), model.at_step, true, {}}});
  if (model.froze_at && !model.machine.is_newcomer()) {
    // The control thread tells what the training thread has done.
    const ViewNumber round = *std::exchange(model.froze_at, std::nullopt);
    later(Time(10), milliseconds(1), [this, worker, round] {
      in_process(worker, [this, worker, round] {
        WorkerModel& frozen = workers_[worker];
        if (frozen.engine_stopped || frozen.machine.state() == Worker::State::evicted) return;
        if (frozen.busy_at_boundary && run_.rules.join_needs_idle_groups) {
          send_up(worker, frozen.machine.join_failed(round, "a group has an op in flight").send);
          return;
        }
        std::vector<GroupStatus> statuses;
        if (frozen.gate.frozen() && frozen.gate.round() == round) statuses = frozen.freeze_all();
        carry_out(worker, frozen.machine.frozen(round, std::move(statuses)));
      });
    });
  }
  if (model.wants_to_join && !std::exchange(model.has_asked, true)) {
    send_up(worker, model.machine.request_join(model.introductions()).send);
  }
  if (model.leaves_now) return leave(worker, true);
  if (model.asked_to_leave && model.machine.is_newcomer()) return leave(worker, true);
  if (model.done()) leave(worker, false);
}

void MembershipWorld::leave(std::uint32_t worker, bool for_good) {
  WorkerModel& model = workers_[worker];
  model.engine_stopped = true;
  send_up(worker, model.machine.goodbye(for_good).send);
  later(milliseconds(1), milliseconds(60), [this, worker] {
    in_process(worker, [this, worker] { end_worker(worker, {0, true, "exited with status 0", now_}); });
  });
}

void MembershipWorld::move_state(std::uint32_t worker, const Transfer& transfer) {
  WorkerModel& model = workers_[worker];
  model.remember(transfer.newcomers);
  model.remember(transfer.sources);
  later(Time(100), milliseconds(5), [this, worker, transfer] {
    in_process(worker, [this, worker, transfer] {
      WorkerModel& moving = workers_[worker];
      if (moving.engine_stopped) return;
      if (now_ < scenario_.faults_end && random_.chance(scenario_.transfer_fails_percent)) {
        send_up(worker, moving.machine.join_failed(transfer.round, "a tensor does not fit").send);
      } else if (moving.machine.is_newcomer()) {
        receive_state(worker, transfer);
      } else {
        moving.served = transfer.round;
        send_up(worker, moving.machine.state_served(transfer.round).send);
      }
    });
  });
}

// Waits for every source; one that dies meanwhile ends it.
void MembershipWorld::receive_state(std::uint32_t worker, const Transfer& transfer) {
  WorkerModel& model = workers_[worker];
  if (model.answered != transfer.round || !model.machine.is_newcomer() || model.engine_stopped) return;
  bool all = true;
  for (const WorkerAddress& source : transfer.sources) {
    const WorkerModel& other = workers_[source.worker.value() - 1];
    if (!other.can_run()) {
      send_up(worker, model.machine.join_failed(transfer.round, "a source of the state is gone").send);
      return;
    }
    all = all && other.served == transfer.round;
  }
  if (!all) {
    later(Time(200), milliseconds(2), [this, worker, transfer] {
      in_process(worker, [this, worker, transfer] { receive_state(worker, transfer); });
    });
    return;
  }
  model.at_step = transfer.step - 1;
  send_up(worker, model.machine.state_received(transfer.round).send);
}

}  // namespace closeranks::simulator
