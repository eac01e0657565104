// Dispatch, start and restart. The parts: roster.cc, suspicion.cc, view_change.cc.
#include "membership/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::membership {

Coordinator::Coordinator(CoordinatorConfig config, const std::vector<RosterEntry>& roster, const Journal& journal)
    : config_(std::move(config)), roster_(roster), hang_(config_.hang) {
  CR_ASSERT(config_.min_present >= 1);
  restore(journal);
}

void Coordinator::restore(const Journal& journal) {
  for (const JournalRecord& record : journal) {
    if (const auto* started = std::get_if<TermStarted>(&record)) {
      term_ = std::max(term_, started->term + (config_.rules.raise_term ? 1 : 0));
    } else if (const auto* newcomer = std::get_if<WorkerStarted>(&record)) {
      if (roster_.find(newcomer->worker) == nullptr) roster_.add({newcomer->worker, newcomer->slot, newcomer->host});
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
      for (const Filled& filled : decided.members) {
        Member* member = roster_.find(filled.worker);
        CR_ASSERT(member != nullptr);
        if (!member->in_view) member->since = view_;
        member->in_view = true;
      }
      for (const GroupBase& base : decided.bases) epochs_[base.group] = {view_, base};
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
    effects_.journal.emplace_back(ViewDecided{view_, {}, roster_.filled()});
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
  if (const auto* request = std::get_if<JoinRequest>(&message)) on_join_request(*request, *member);
  if (const auto* holding = std::get_if<Holding>(&message)) on_holding(*holding, *member);
  if (const auto* served = std::get_if<StateServed>(&message)) on_state_moved(served->round, *member);
  if (const auto* received = std::get_if<StateReceived>(&message)) on_state_moved(received->round, *member);
  if (const auto* failed = std::get_if<JoinFailed>(&message)) on_join_failed(*failed, *member, now);
  if (const auto* progress = std::get_if<Progress>(&message)) on_progress(*progress, *member, now);
  if (const auto* step = std::get_if<FirstStep>(&message)) on_first_step(*step, *member);
  if (const auto* pause = std::get_if<Pause>(&message)) on_pause(*pause, *member, now);
  if (const auto* suspicion = std::get_if<Suspicion>(&message)) on_suspicion(*suspicion, *member, now);
  if (const auto* goodbye = std::get_if<Goodbye>(&message)) on_goodbye(*goodbye, *member);
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
  if (const auto* started = std::get_if<Started>(&message)) on_started(host, *started);
  if (const auto* drain = std::get_if<Drain>(&message)) on_drain(host, *drain);
  if (const auto* resize = std::get_if<Resize>(&message)) on_resize(*resize);
  return finish(now);
}

Effects Coordinator::tick(Time now) {
  begin(now);
  return finish(now);
}

Effects Coordinator::connection_lost(WorkerId worker, Time now) {
  begin(now);
  if (Member* member = roster_.find(worker)) {
    member->connected = false;
    if (round_ && takes_part(*member) && config_.rules.trouble_cancels_join) {
      cancel_round("the control connection of " + text_of(*member) + " broke", now);
    }
  }
  return finish(now);
}

// A gap between calls that the ticks should have filled: this process was stalled, not the workers.
void Coordinator::begin(Time now) {
  effects_ = {};
  const bool stalled = last_call_ && now - *last_call_ > 4 * config_.tick_interval;
  last_call_ = now;
  if (!stalled || !config_.rules.renew_deadlines_after_stall) return;
  hang_.disturbed();
  if (change_) change_->deadline = now + config_.prepared_deadline;
  if (round_) {
    const auto patience = round_->stage == Round::Stage::holding    ? config_.prepared_deadline
                          : round_->stage == Round::Stage::admitted ? config_.boundary_deadline
                                                                    : config_.transfer_deadline;
    round_->deadline = now + patience;
  }
  for (Member& member : roster_.members()) {
    if (member.fence_deadline) member.fence_deadline = now + config_.fence_deadline;
  }
}

Effects Coordinator::finish(Time now) {
  if (!ended_) {
    announce(now);
    check_fences(now);
    find_the_hung(now);
    advance(now);
    if (!ended_) tell_finished();
  }
  std::optional<Time> next;
  const auto at_the_latest = [&next](Time time) { next = next ? std::min(*next, time) : time; };
  if (!ended_) {
    if (announce_at_) at_the_latest(*announce_at_);
    bool waiting = change_.has_value();
    if (change_) at_the_latest(change_->deadline);
    if (round_ && round_->deadline > now) at_the_latest(round_->deadline);
    waiting = waiting || round_.has_value();
    if (join_not_before_ && *join_not_before_ > now) at_the_latest(*join_not_before_);
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
  round_.reset();
}

}  // namespace closeranks::membership
