// Boundaries between training steps, and newcomers joining there. The training thread waits here for what the control
// thread carries out; both change the round under the drive lock, and every change wakes the training thread.
#include <algorithm>
#include <asio/steady_timer.hpp>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "communicator/engine_core.h"
#include "communicator/group_key.h"
#include "membership/events.h"

namespace closeranks::communicator {
namespace {

// Ops that a step has left in flight end as soon as the others have issued them: they are about to reach the boundary.
constexpr std::chrono::milliseconds idle_patience{5000};
constexpr std::chrono::milliseconds idle_look{1};
// Between two looks at a boundary when nothing is said; and how long a wait is before it is worth a line.
constexpr std::chrono::milliseconds boundary_look{500};
constexpr std::chrono::seconds long_wait{5};
constexpr std::chrono::milliseconds progress_every{250};

std::string number(ViewNumber round) { return "(" + std::to_string(round.term) + ", " + std::to_string(round.n) + ")"; }

std::vector<Slot> slots_of(const std::vector<membership::WorkerAddress>& workers) {
  std::vector<Slot> slots;
  for (const membership::WorkerAddress& worker : workers) slots.push_back(worker.slot);
  std::sort(slots.begin(), slots.end());
  return slots;
}

}  // namespace

// ---- the training thread -----------------------------------------------------------------------------------------

Result<BoundaryResult> EngineCore::at_boundary(std::uint64_t step, std::chrono::milliseconds patience) {
  if (fork_guard_.in_child()) return ForkGuard::status();
  if (!coordinated()) return BoundaryResult{};
  const Clock::time_point since = Clock::now();
  for (;;) {
    const std::uint64_t seen = boundary_events_.load(std::memory_order_acquire);
    std::optional<ViewNumber> freezing;
    {
      const std::lock_guard lock(lock_);
      if (ended_) return *ended_;
      in_session_ = true;
      // The same step again (policy exact): its boundary was passed long ago.
      const bool again = step <= gate_.step();
      if (leave_because_ && !again) return BoundaryResult{Boundary::leave, std::nullopt, *leave_because_};
      const bool waits = !again && !gate_.held() && Clock::now() < since + patience && awaits_somebody();
      const auto answer = again   ? membership::BoundaryGate::Answer::passed
                          : waits ? membership::BoundaryGate::Answer::wait
                                  : gate_.pass(step);
      if (answer == membership::BoundaryGate::Answer::passed) {
        for (const auto& group : groups_) group->begin_step();
        if (ring_) ring_->event({.kind = recorder::EventKind::boundary, .number = step});
        return BoundaryResult{};
      }
      if (answer == membership::BoundaryGate::Answer::freeze) freezing = gate_.round();
    }
    if (freezing) {
      Result<std::optional<StateTransfer>> met = meet_newcomers(*freezing);
      if (!met.ok()) return met.status();
      if (met.value()) return BoundaryResult{Boundary::transfer, std::move(met.value()), {}};
      continue;
    }
    const std::string boundary = "the boundary before step " + std::to_string(step);
    const Status still = await_boundary(seen, since, boundary, since + patience);
    if (!still.ok()) return still;
  }
}

// Under the lock. A slot is vacant, and not because its worker left for good.
bool EngineCore::awaits_somebody() const {
  for (std::uint32_t slot = 0; slot < options_.slots; ++slot) {
    const auto fills = [slot](const auto& member) { return member.slot == Slot{slot}; };
    if (std::any_of(members_.begin(), members_.end(), fills)) continue;
    const auto last = std::find_if(excluded_.rbegin(), excluded_.rend(), fills);
    if (last != excluded_.rend() && !last->reason.starts_with(membership::left_for_good)) return true;
  }
  return false;
}

// At the boundary of `round`: freezes, answers, and waits until the state is to be moved. nullopt: the round is over.
Result<std::optional<StateTransfer>> EngineCore::meet_newcomers(ViewNumber round) {
  const Clock::time_point since = Clock::now();
  for (;;) {
    Status ready;
    {
      const std::lock_guard lock(lock_);
      if (ended_) return *ended_;
      if (!gate_.frozen() || gate_.round() != round) return std::optional<StateTransfer>{};
      for (const auto& group : groups_) {
        if (ready.ok() && !group->transfers_state()) ready = group->ready_for_newcomers();
      }
      if (ready.ok()) {
        answer_round(round, freeze_for_round());
        break;
      }
    }
    if (ready.move() == Move::fix_call || Clock::now() - since >= idle_patience) {
      if (std::exchange(not_ready_because_, ready.message()) != ready.message()) {
        log::warning(options_.member_word + " " + std::to_string(options_.slot.value()) + ": " + ready.message());
      }
      control_->post([this, round, ready] { carry_out(machine_->join_failed(round, ready.message())); });
      break;
    }
    std::this_thread::sleep_for(idle_look);
  }
  return await_transfer(round, since);
}

// Until the coordinator says what to do in `round` (nullopt: in any): nullopt when it is over.
Result<std::optional<StateTransfer>> EngineCore::await_transfer(std::optional<ViewNumber> round,
                                                                Clock::time_point since) {
  for (;;) {
    const std::uint64_t seen = boundary_events_.load(std::memory_order_acquire);
    {
      const std::lock_guard lock(lock_);
      if (ended_) return *ended_;
      if (job_finished_) {
        return Status(Fault::closed, Move::none, "the job has finished: nobody is left that this worker could join");
      }
      if (transfer_ && !transfer_handed_out_ && (!round || transfer_->round == *round)) {
        transfer_handed_out_ = true;
        return transfer_;
      }
      if (round && (!gate_.frozen() || gate_.round() != *round)) return std::optional<StateTransfer>{};
    }
    const Status still = await_boundary(seen, since, round ? "round " + number(*round) : "being let into the job");
    if (!still.ok()) return still;
  }
}

// Sleeps until something has changed since `seen`. Fails only without the coordinator, after orphan_timeout.
// `look_at`: look again then at the latest, if that is still to come.
Status EngineCore::await_boundary(std::uint64_t seen, Clock::time_point since, const std::string& what,
                                  Clock::time_point look_at) {
  {
    const Clock::time_point begun = Clock::now();
    const Clock::time_point until = look_at > begun ? std::min(look_at, begun + boundary_look) : begun + boundary_look;
    std::unique_lock lock(boundary_mutex_);
    boundary_.wait_until(lock, until, [&] { return boundary_events_.load(std::memory_order_acquire) != seen; });
  }
  const Clock::time_point now = Clock::now();
  const std::int64_t lost_at = link_lost_at_ns_.load(std::memory_order_relaxed);
  if (lost_at == 0) return {};
  const Clock::time_point lost{std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(lost_at))};
  const auto alone = now - std::max(lost, since);
  if (alone >= options_.orphan_timeout) {
    return {Fault::system, Move::give_up,
            options_.member_word + " " + std::to_string(options_.slot.value()) + " waits at " + what +
                " and has not reached the coordinator at " + options_.coordinator + " for " +
                std::to_string(std::chrono::duration_cast<std::chrono::seconds>(alone).count()) +
                " s. This process must end; start the job again"};
  }
  if (alone >= long_wait && !said_waiting_.exchange(true)) {
    log::warning(options_.member_word + " " + std::to_string(options_.slot.value()) + " waits at " + what +
                 ": the coordinator at " + options_.coordinator + " does not answer");
  }
  return {};
}

bool EngineCore::newcomer() {
  if (fork_guard_.in_child()) return false;
  const std::lock_guard lock(lock_);
  return newcomer_;
}

Result<StateTransfer> EngineCore::request_join() {
  if (fork_guard_.in_child()) return ForkGuard::status();
  std::vector<membership::GroupIntroduction> groups;
  {
    const std::lock_guard lock(lock_);
    if (ended_) return *ended_;
    if (!newcomer_) {
      return Status(Fault::invalid_argument, Move::fix_call,
                    options_.member_word + " " + std::to_string(options_.slot.value()) +
                        " is in the job already: only a worker that takes a lost one's place asks to be let in");
    }
    in_session_ = true;
    for (const auto& group : groups_) {
      if (!group->alone()) continue;
      groups.push_back({group->key(), group->options().name, group->options().members, group->options().policy});
    }
  }
  control_->post([this, groups = std::move(groups)] { carry_out(machine_->request_join(groups)); });
  Result<std::optional<StateTransfer>> transfer = await_transfer(std::nullopt, Clock::now());
  if (!transfer.ok()) return transfer.status();
  return std::move(*transfer.value());
}

Result<bool> EngineCore::finish_transfer(ViewNumber round, const Status& outcome) {
  if (fork_guard_.in_child()) return ForkGuard::status();
  control_->post([this, round, outcome] {
    if (!outcome.ok()) {
      carry_out(machine_->join_failed(
          round, options_.member_word + " " + std::to_string(options_.slot.value()) + ": " + outcome.message()));
    } else {
      carry_out(machine_->is_newcomer() ? machine_->state_received(round) : machine_->state_served(round));
    }
  });
  const Clock::time_point since = Clock::now();
  for (;;) {
    const std::uint64_t seen = boundary_events_.load(std::memory_order_acquire);
    {
      const std::lock_guard lock(lock_);
      if (ended_) return *ended_;
      if (!transfer_ || transfer_->round != round) {
        if (!joined_round_ || *joined_round_ != round) return false;
        for (const auto& group : groups_) group->begin_step();
        return true;
      }
    }
    const Status still = await_boundary(seen, since, "the end of round " + number(round));
    if (!still.ok()) return still;
  }
}

void EngineCore::step_finished(std::uint64_t step) {
  if (fork_guard_.in_child() || !coordinated()) return;
  if (!first_step_due_.exchange(false)) return;
  static_cast<void>(link_->send(membership::FirstStep{options_.worker, step}));
}

void EngineCore::pause(std::string what, std::chrono::milliseconds up_to) {
  if (fork_guard_.in_child() || !coordinated()) return;
  const auto bounded = std::clamp<std::int64_t>(up_to.count(), 0, std::numeric_limits<std::uint32_t>::max());
  control_->post([this, what = std::move(what), bounded] {
    carry_out(machine_->pause(what, static_cast<std::uint32_t>(bounded)));
  });
}

void EngineCore::leave(const std::string& reason) {
  if (fork_guard_.in_child()) return;
  log::info(options_.member_word + " " + std::to_string(options_.slot.value()) + " leaves the job: " + reason);
  leaves_for_good_.store(true);
  stop(std::chrono::milliseconds{0});
}

// ---- the control thread ------------------------------------------------------------------------------------------

void EngineCore::boundary_changed() {
  {
    const std::lock_guard lock(boundary_mutex_);
    boundary_events_.fetch_add(1, std::memory_order_release);
  }
  boundary_.notify_all();
}

void EngineCore::on_hold(const membership::Hold& hold) {
  const std::uint64_t step = change([&] { return gate_.hold(hold.round); });
  carry_out(machine_->holding(hold.round, step));
}

void EngineCore::on_admit(const membership::Admit& admit) {
  if (machine_->is_newcomer()) {
    std::vector<membership::GroupStatus> statuses = change([&] { return freeze_for_round(); });
    carry_out(machine_->frozen(admit.round, std::move(statuses)));
    return;
  }
  change([&] { static_cast<void>(gate_.admit(admit.round, admit.step)); });
  boundary_changed();
}

// Under the lock. All groups: none has an op in flight, and none is to get one before the round is over.
std::vector<membership::GroupStatus> EngineCore::freeze_for_round() {
  std::vector<membership::GroupStatus> statuses;
  for (const auto& group : groups_) {
    if (!group->transfers_state()) statuses.push_back(group->freeze_for_round());
  }
  return statuses;
}

// Under the lock; any thread.
void EngineCore::answer_round(ViewNumber round, std::vector<membership::GroupStatus> statuses) {
  control_->post([this, round, statuses = std::move(statuses)] { carry_out(machine_->frozen(round, statuses)); });
}

// The group the state moves through: its peers are named by the workers themselves, whatever slots they had before.
void EngineCore::on_transfer(const membership::Transfer& transfer) {
  std::vector<membership::WorkerAddress> members = transfer.sources;
  members.insert(members.end(), transfer.newcomers.begin(), transfer.newcomers.end());
  on_addresses(members);
  GroupOptions options;
  options.name = "state of " + number(transfer.round);
  options.members = slots_of(members);
  options.policy = Policy::fail;
  const auto self = std::find(options.members.begin(), options.members.end(), options_.slot);
  const GroupKey key = group_key(options.name, options.members, 0);
  const Rank rank{static_cast<std::uint32_t>(self - options.members.begin())};
  Result<std::shared_ptr<Group>> made = self == options.members.end()
                                            ? Status(Fault::invalid_argument, Move::none, "it is not this worker's")
                                            : make_group(options, key, rank, Group::Role::state_transfer);
  if (!made.ok()) {
    carry_out(machine_->join_failed(transfer.round, "no memory for the state: " + made.status().message()));
    return;
  }
  const std::shared_ptr<Group>& group = made.value();
  change([&] {
    for (const membership::WorkerAddress& member : members) {
      const auto peer = peers_.find(member.worker);
      if (peer != peers_.end()) group->members().set_peer(*group->members().rank_of(member.slot), peer->second);
    }
    groups_.push_back(group);
    group->look_at_connections();
    transfer_ = StateTransfer{transfer.round, transfer.step, slots_of(transfer.newcomers), slots_of(transfer.sources),
                              handle_of(group)};
    transfer_group_ = group;
    transfer_handed_out_ = false;
  });
  fetch_for(group);
  boundary_changed();
}

void EngineCore::on_round_over(const membership::RoundOver& over) {
  std::optional<StateTransfer> ended;
  std::shared_ptr<Group> group;
  change([&] {
    // An answer that came too late for its round changes nothing in the next one.
    if (gate_.release(over.round)) {
      for (const auto& other : groups_) other->thaw();
    }
    if (transfer_ && transfer_->round == over.round) {
      // In one with the release: no other hold comes between the end of the round and its step.
      if (transfer_handed_out_ && (over.joined || !newcomer_)) static_cast<void>(gate_.pass(transfer_->step));
      ended = std::exchange(transfer_, std::nullopt);
      group = std::exchange(transfer_group_, nullptr);
      group->fail({Fault::closed, Move::retry,
                   over.joined ? "the state transfer is over"
                               : "the state transfer was given up: " + over.reason + ". The others go on as before"});
      // Its sends and receives end now: it leaves the list, and nobody drives it any more.
      while (group->step()) {
      }
      group->flush();
      if (group->recorder().on()) {
        group->recorder().event({.kind = recorder::EventKind::state_transfer,
                                 .number = group->recorder().transferred_bytes(),
                                 .slots = ended->newcomers,
                                 .detail = over.joined ? "joined" : over.reason});
        group->recorder().group_ended();
      }
      std::erase(groups_, group);
    }
    if (over.joined) joined_round_ = over.round;
  });
  if (group) server_->withdraw(transport::SegmentKey::of(group->key()));
  if (!over.joined) tell_of_cancelled(over);
  boundary_changed();
}

// A death at the wrong moment cancels a round, and the next one succeeds. What cancels two in a row may need a person.
void EngineCore::tell_of_cancelled(const membership::RoundOver& over) {
  const std::string text = "round " + number(over.round) + " of joining is over: " + over.reason;
  const bool again = std::exchange(cancelled_because_, over.reason) == over.reason;
  if (!again || !machine_->is_newcomer() || std::exchange(said_cancelled_because_, over.reason) == over.reason) {
    return log::info(text);
  }
  log::warning("the new worker of " + options_.member_word + " " + std::to_string(options_.slot.value()) +
               " has not been let in, and asks again: " + over.reason);
}

void EngineCore::report_progress() {
  auto timer = std::make_shared<asio::steady_timer>(control_->context(), progress_every);
  timer->async_wait([this, timer](const std::error_code& cancelled) {
    if (cancelled) return;
    membership::Progress progress;
    progress.from = options_.worker;
    bool ended = false;
    {
      const std::lock_guard lock(lock_);
      const Clock::time_point now = Clock::now();
      progress.step = gate_.step();
      progress.in_session = in_session_;
      for (const auto& group : groups_) {
        if (!group->transfers_state() && !group->alone()) progress.groups.push_back(group->progress(now));
      }
      ended = ended_.has_value();
    }
    if (ended) return;
    static_cast<void>(link_->send(progress));
    report_progress();
  });
}

}  // namespace closeranks::communicator
