// Dispatch, start and restart. The parts: roster.cc, suspicion.cc, view_change.cc.
#include "membership/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::membership {

Coordinator::Coordinator(CoordinatorConfig config, const std::vector<RosterEntry>& roster, const Journal& journal)
    : config_(std::move(config)), roster_(roster) {
  CR_ASSERT(config_.min_present >= 1);
  restore(journal);
}

void Coordinator::restore(const Journal& journal) {
  for (const JournalRecord& record : journal) {
    if (const auto* started = std::get_if<TermStarted>(&record)) {
      term_ = std::max(term_, started->term + (config_.rules.raise_term ? 1 : 0));
    } else if (const auto* registered = std::get_if<WorkerRegistered>(&record)) {
      Member* member = roster_.find(registered->address.worker);
      CR_ASSERT(member != nullptr);
      member->registered = true;
      member->address = registered->address;
    } else {
      const auto& decided = std::get<ViewDecided>(record);
      CR_ASSERT(decided.view > view_);
      view_ = decided.view;
      excluded_ = decided.excluded;
    }
  }
  for (const ExcludedMember& excluded : excluded_) {
    Member* member = roster_.find(excluded.worker);
    CR_ASSERT(member != nullptr);
    member->life = Life::excluded;
  }
  restarted_ = view_ != ViewNumber{};
  last_n_ = view_.n;
}

Effects Coordinator::start(Time now) {
  begin(now);
  effects_.journal.emplace_back(TermStarted{term_});
  if (!restarted_) {
    last_n_ = 1;
    view_ = {term_, last_n_};
    effects_.journal.emplace_back(ViewDecided{view_, {}});
    emit(EventKind::view_installed, nullptr, "the job starts");
    effects_.events.back().present = roster_.present_slots();
  }
  return finish(now);
}

Effects Coordinator::handle_worker(const FromWorker& message, Time now) {
  begin(now);
  if (ended_) return finish(now);
  const auto sender = [](const auto& received) -> WorkerId {
    using Message = std::decay_t<decltype(received)>;
    if constexpr (std::is_same_v<Message, Hello>) {
      return received.self.worker;
    } else {
      return received.from;
    }
  };
  const WorkerId from = std::visit(sender, message);
  Member* member = roster_.find(from);
  if (member == nullptr) {
    evict(from, "worker " + std::to_string(from.value()) + " is not one of job '" + config_.job + "'");
    return finish(now);
  }
  if (member->life == Life::excluded) {
    evict(from, exclusion_reason(from));
    return finish(now);
  }
  if (const auto* hello = std::get_if<Hello>(&message)) on_hello(*hello, *member, now);
  if (const auto* prepared = std::get_if<Prepared>(&message)) on_prepared(*prepared, *member);
  if (const auto* suspicion = std::get_if<Suspicion>(&message)) on_suspicion(*suspicion, *member, now);
  if (std::get_if<Goodbye>(&message) != nullptr) on_goodbye(*member);
  if (const auto* repaired = std::get_if<OpRepaired>(&message)) {
    emit(EventKind::op_repaired, member,
         repaired->op + " of group '" + repaired->group + "' was finished without the lost worker");
    effects_.events.back().repaired = *repaired;
  }
  return finish(now);
}

Effects Coordinator::handle_agent(const std::string& host, const FromAgent& message, Time now) {
  begin(now);
  if (ended_) return finish(now);
  if (std::get_if<AgentHello>(&message) != nullptr) on_agent_hello(host, now);
  if (const auto* suspicion = std::get_if<AgentSuspicion>(&message)) on_agent_suspicion(*suspicion, now);
  if (const auto* fenced = std::get_if<Fenced>(&message)) on_fenced(*fenced);
  if (const auto* exited = std::get_if<Exited>(&message)) on_exited(*exited);
  return finish(now);
}

Effects Coordinator::tick(Time now) {
  begin(now);
  return finish(now);
}

Effects Coordinator::connection_lost(WorkerId worker, Time now) {
  begin(now);
  if (Member* member = roster_.find(worker)) member->connected = false;
  return finish(now);
}

// A gap between calls that the ticks should have filled: this process was stalled, not the workers.
void Coordinator::begin(Time now) {
  effects_ = {};
  const bool stalled = last_call_ && now - *last_call_ > 4 * config_.tick_interval;
  last_call_ = now;
  if (!stalled || !config_.rules.renew_deadlines_after_stall) return;
  if (change_) change_->deadline = now + config_.prepared_deadline;
  for (Member& member : roster_.members()) {
    if (member.fence_deadline) member.fence_deadline = now + config_.fence_deadline;
  }
}

Effects Coordinator::finish(Time now) {
  if (!ended_) {
    announce(now);
    check_fences(now);
    advance(now);
  }
  std::optional<Time> next;
  const auto at_the_latest = [&next](Time time) { next = next ? std::min(*next, time) : time; };
  if (!ended_) {
    if (announce_at_) at_the_latest(*announce_at_);
    bool waiting = change_.has_value();
    if (change_) at_the_latest(change_->deadline);
    for (const Member& member : roster_.members()) {
      if (!member.fence_deadline) continue;
      at_the_latest(*member.fence_deadline);
      waiting = true;
    }
    if (waiting) at_the_latest(now + config_.tick_interval);
  }
  effects_.next_tick = next;
  return std::exchange(effects_, {});
}

void Coordinator::emit(EventKind kind, const Member* member, std::string reason, std::string detail) {
  Event event;
  event.kind = kind;
  event.view = view_;
  event.reason = std::move(reason);
  event.detail = std::move(detail);
  if (member != nullptr) {
    event.worker = member->worker;
    event.slot = member->slot;
  }
  effects_.events.push_back(std::move(event));
}

void Coordinator::send(WorkerId worker, ToWorker message) {
  effects_.to_workers.emplace_back(worker, std::move(message));
}

void Coordinator::end(EventKind kind, const Member* member, std::string reason, std::string detail) {
  emit(kind, member, std::move(reason), std::move(detail));
  ended_ = true;
  change_.reset();
}

}  // namespace closeranks::membership
