// What surrounds the coordinator's machine: its journal, its ticks, its connections, its crashes and stalls.
#include <algorithm>
#include <utility>

#include "simulator/membership_world.h"

namespace closeranks::simulator {

using namespace membership;
using std::chrono::milliseconds;

bool of_a_change(const ToWorker& message) {
  return std::holds_alternative<Propose>(message) || std::holds_alternative<Install>(message) ||
         std::holds_alternative<Hold>(message) || std::holds_alternative<Admit>(message) ||
         std::holds_alternative<Transfer>(message);
}

void MembershipWorld::start_coordinator() {
  std::vector<RosterEntry> roster;
  for (std::uint32_t worker = 0; worker < scenario_.workers; ++worker) {
    roster.push_back({WorkerModel::id_of(worker), Slot(worker), "host" + std::to_string(scenario_.host_of(worker))});
  }
  ++coordinator_life_;
  ++report_.coordinator_starts;
  coordinator_.emplace(config_, std::move(roster), journal_);
  log("coordinator starts with term " + std::to_string(coordinator_->term()));
  in_coordinator([this] { return coordinator_->start(now_); });
}

// `ghosts`: what it had sent may still arrive, after its successor's words.
void MembershipWorld::crash_coordinator(Time down_for, bool ghosts) {
  if (!coordinator_) return;
  log("coordinator is gone");
  coordinator_.reset();
  ++coordinator_life_;
  stalled_ = false;
  stalled_calls_.clear();
  for (std::uint32_t worker = 0; worker < workers_.size(); ++worker) break_link(worker, ghosts);
  for (std::uint32_t host = 0; host < scenario_.hosts; ++host) break_agent_link(host);
  at(now_ + down_for, [this] { start_coordinator(); });
}

void MembershipWorld::stall_coordinator(Time duration) {
  if (!coordinator_ || stalled_) return;
  stalled_ = true;
  at(now_ + duration, [this, life = coordinator_life_] {
    if (life != coordinator_life_) return;
    stalled_ = false;
    log("coordinator runs on");
    // A timer that is due fires before the sockets are read: the worst order.
    in_coordinator([this] { return coordinator_->tick(now_); });
    for (std::function<void()>& call : std::exchange(stalled_calls_, {})) call();
  });
}

void MembershipWorld::in_coordinator(std::function<Effects()> call) {
  if (!coordinator_) return;
  if (stalled_) {
    stalled_calls_.push_back([this, call = std::move(call)] { in_coordinator(call); });
    return;
  }
  carry_out(call());
}

void MembershipWorld::carry_out(Effects effects) {
  oracle_.coordinator_acts(effects);
  for (const Event& event : effects.events) {
    log("EVENT " + describe(event));
    if (event.kind == EventKind::view_installed) ++report_.views;
    if (event.kind == EventKind::worker_excluded) ++report_.exclusions;
    if (event.kind == EventKind::worker_joined) ++report_.joins;
    if (event.kind == EventKind::join_cancelled) ++report_.joins_cancelled;
    if (event.kind == EventKind::worker_excluded) {
      const std::optional<End>& end = ends_[event.worker->value() - 1];
      if (end && (end->wait_status != 0 || !end->by_itself)) fill_slot(event.slot->value());
    }
    if (event.kind == EventKind::gave_up) gave_up_ = true;
    if (event.kind == EventKind::superseded) oracle_.violation("a coordinator was superseded by nobody");
  }
  const bool changes = std::any_of(effects.to_workers.begin(), effects.to_workers.end(),
                                   [](const auto& sent) { return of_a_change(sent.second); });
  const bool crashes =
      changes && now_ > Time(0) && now_ < scenario_.faults_end && random_.chance(scenario_.crash_in_change_percent);
  const std::size_t sends = crashes ? random_.below(effects.to_workers.size() + 1) : effects.to_workers.size();
  const auto append = [this, &effects] {
    for (const JournalRecord& record : effects.journal) journal_.push_back(record);
  };
  if (run_.model.journal_before_sending) append();
  for (const auto& [host, message] : effects.to_agents) {
    send_to_agent(static_cast<std::uint32_t>(std::stoul(host.substr(4))), message);
  }
  for (std::size_t index = 0; index < sends; ++index) {
    const auto& [worker, message] = effects.to_workers[index];
    const auto receiver = static_cast<std::uint32_t>(worker.value() - 1);
    send_down(receiver, message);
    if (!of_a_change(message) || now_ > scenario_.faults_end) continue;
    if (!random_.chance(scenario_.break_in_change_percent)) continue;
    ++report_.faults;
    log("FAULT the connection of worker " + std::to_string(receiver + 1) + " breaks in the midst of a change");
    break_link(receiver, random_.chance(70));
  }
  if (crashes) {
    ++report_.faults;
    log("FAULT coordinator crashes in the midst of a change");
    crash_coordinator(Time(random_.between(1'000, 50'000)), true);
    return;
  }
  if (!run_.model.journal_before_sending) append();
  schedule_tick(effects.next_tick);
}

void MembershipWorld::schedule_tick(std::optional<Time> next) {
  const std::uint64_t number = ++tick_number_;
  if (!next) return;
  at(*next, [this, number, life = coordinator_life_] {
    if (life != coordinator_life_ || number != tick_number_ || stalled_) return;
    in_coordinator([this] { return coordinator_->tick(now_); });
  });
}

}  // namespace closeranks::simulator
