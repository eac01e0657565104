// A coordinated job: joining it, and what its views mean for the groups. All on the control thread but join().
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "base/deadlines.h"
#include "base/log.h"
#include "communicator/engine_core.h"

namespace closeranks::communicator {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Status EngineCore::join() {
  machine_ = std::make_unique<membership::Worker>(membership::WorkerAddress{
      options_.worker, options_.slot, static_cast<std::uint32_t>(::getpid()), host_name(), server_->endpoint()});
  link_lost_at_ns_.store(steady_ns(), std::memory_order_relaxed);
  const auto told = [this](Status failure, bool joined) {
    {
      const std::lock_guard lock(joined_mutex_);
      join_failure_ = std::move(failure);
      has_joined_ = has_joined_ || joined;
    }
    joined_.notify_all();
  };
  control::WorkerLinkOptions link;
  link.coordinator = options_.coordinator;
  link.token = token_;
  link.job = options_.job;
  link.worker = options_.worker;
  link.opening = [this] { return machine_->connected().send; };
  link.message = [this, told](const membership::ToWorker& message) {
    carry_out(machine_->handle(message));
    if (machine_->state() == membership::Worker::State::joining) return;
    told({}, true);
  };
  link.events.connected = [this] { link_lost_at_ns_.store(0, std::memory_order_relaxed); };
  const auto lost = [this](const Status& why) {
    std::int64_t connected = 0;
    link_lost_at_ns_.compare_exchange_strong(connected, steady_ns(), std::memory_order_relaxed);
    log::info("no connection to the coordinator at " + options_.coordinator + ": " + why.message() +
              "; training goes on");
    if (machine_->state() != membership::Worker::State::joining) {
      carry_out(machine_->connection_lost());
      boundary_changed();
    }
  };
  link.events.lost = lost;
  link.events.refused = [lost, told](const Status& why) {
    lost(why);
    if (why.move() == Move::give_up) told(why, false);
  };
  link_ = std::make_unique<control::WorkerLink>(*control_, std::move(link));
  link_->start();
  control_->post([this] { report_progress(); });

  std::unique_lock joined(joined_mutex_);
  joined_.wait_for(joined, deadlines::connect, [this] { return has_joined_ || !join_failure_.ok(); });
  if (!join_failure_.ok()) return join_failure_;
  if (!has_joined_) {
    return {Fault::timeout, Move::retry,
            "the coordinator at " + options_.coordinator + " has not let worker " +
                std::to_string(options_.worker.value()) + " into the job within " +
                std::to_string(std::chrono::duration_cast<std::chrono::seconds>(deadlines::connect).count()) +
                " s. Is closeranks run still there?"};
  }
  const std::lock_guard lock(lock_);
  return ended_.value_or(Status{});
}

// In the order that membership::Worker asks for.
void EngineCore::carry_out(membership::WorkerEffects effects) {
  if (machine_->state() != membership::Worker::State::joining && !effects.install) {
    change([&] {
      view_ = machine_->view();
      excluded_ = machine_->excluded();
      members_ = machine_->members();
      newcomer_ = machine_->is_newcomer();
    });
  }
  if (!effects.addresses.empty()) on_addresses(effects.addresses);
  if (effects.hold) on_hold(*effects.hold);
  if (effects.admit) on_admit(*effects.admit);
  if (effects.freeze) {
    std::vector<membership::GroupStatus> statuses = on_freeze(*effects.freeze);
    membership::WorkerEffects answer = machine_->frozen(effects.freeze->view, std::move(statuses));
    for (membership::FromWorker& message : answer.send) effects.send.push_back(std::move(message));
  }
  if (effects.transfer) on_transfer(*effects.transfer);
  if (effects.install) on_install(*effects.install);
  if (effects.round_over) on_round_over(*effects.round_over);
  if (effects.evicted) on_evicted(*effects.evicted);
  if (effects.leave || effects.job_finished) {
    change([&] {
      if (effects.leave) leave_because_ = effects.leave->reason;
      job_finished_ = job_finished_ || effects.job_finished;
    });
    boundary_changed();
  }
  for (const membership::FromWorker& message : effects.send) {
    // Without a connection the next opening says what still holds.
    static_cast<void>(link_->send(message));
  }
}

void EngineCore::on_addresses(const std::vector<membership::WorkerAddress>& addresses) {
  const std::vector<std::shared_ptr<Group>> groups = change([&] {
    for (const membership::WorkerAddress& address : addresses) {
      if (address.worker == options_.worker || peers_.contains(address.worker)) continue;
      auto peer = std::make_shared<Peer>();
      peer->slot = address.slot;
      peer->worker = address.worker;
      peer->pid = address.pid;
      peer->endpoint = address.endpoint;
      peer->token = token_;
      peers_.emplace(address.worker, peer);
      for (const auto& group : groups_) {
        const std::optional<Rank> rank = group->members().rank_of(address.slot);
        const bool of_its_epoch = !group->transfers_state() && worker_of(address.slot) == address.worker;
        if (rank && of_its_epoch && !group->members().peer(*rank)) group->members().set_peer(*rank, peer);
      }
    }
    return groups_;
  });
  for (const auto& group : groups) fetch_for(group);
}

// The answer is a promise (protocol rule 7): the machines do nothing from here on until install.
std::vector<membership::GroupStatus> EngineCore::on_freeze(const membership::FreezeRequest& request) {
  return change([&] {
    std::vector<membership::GroupStatus> statuses;
    for (const auto& group : groups_) {
      const bool concerned = std::any_of(
          request.excluding.begin(), request.excluding.end(),
          [&](const membership::ExcludedMember& member) { return group->members().rank_of(member.slot).has_value(); });
      // A group that fails with its members has nothing to be resolved, and is not kept waiting for its error.
      if (group->transfers_state()) continue;
      if (!group->alone() && (!concerned || group->options().policy == Policy::fail)) continue;
      statuses.push_back(group->freeze(request.excluding));
      group->flush();
    }
    return statuses;
  });
}

// Who is present, and what has changed since the view before.
void EngineCore::record_view(const membership::Install& install, std::size_t excluded_before) {
  if (!ring_) return;
  std::vector<Slot> present;
  for (const membership::Filled& member : machine_->members()) present.push_back(member.slot);
  std::string why;
  for (std::size_t i = excluded_before; i < install.excluded.size(); ++i) {
    const membership::ExcludedMember& member = install.excluded[i];
    why += (why.empty() ? "" : "; ") + std::string("slot ") + std::to_string(member.slot.value()) + " is out (worker " +
           std::to_string(member.worker.value()) + "): " + member.reason;
  }
  for (const membership::WorkerAddress& joined : install.joined) {
    why += (why.empty() ? "" : "; ") + std::string("slot ") + std::to_string(joined.slot.value()) + " is in (worker " +
           std::to_string(joined.worker.value()) + ")";
  }
  ring_->event({.kind = recorder::EventKind::view, .number = install.view.n, .slots = present, .detail = why});
}

void EngineCore::on_install(const membership::Install& install) {
  if (!install.joined.empty()) on_addresses(install.joined);
  const std::vector<std::shared_ptr<Group>> groups = change([&] {
    const bool joins = newcomer_ && !machine_->is_newcomer();
    record_view(install, excluded_.size());
    excluded_ = install.excluded;
    view_ = install.view;
    members_ = machine_->members();
    if (joins) first_step_due_.store(true);
    newcomer_ = machine_->is_newcomer();
    std::vector<std::shared_ptr<Peer>> members;
    for (const membership::Filled& member : members_) {
      const auto peer = peers_.find(member.worker);
      if (peer != peers_.end()) members.push_back(peer->second);
    }
    for (const membership::ExcludedMember& member : install.excluded) {
      const auto peer = peers_.find(member.worker);
      if (peer != peers_.end()) peer->second->excluded_because = member.reason;
    }
    for (const auto& group : groups_) {
      if (group->transfers_state()) continue;
      // Every group that a newcomer has made is listed, but those of which the others have none.
      const bool listed = std::any_of(install.groups.begin(), install.groups.end(),
                                      [&](const auto& resolution) { return resolution.group == group->key(); });
      if (joins && !install.joined.empty() && group->alone() && !listed) {
        group->fail({Fault::closed, Move::fix_call,
                     "group '" + group->options().name + "' was shut down by the others before this worker joined. " +
                         "Shut it down here, too, and make it anew on all alike"});
      }
      group->install(install, members);
      group->flush();
    }
    return groups_;
  });
  for (const auto& group : groups) fetch_for(group);
}

void EngineCore::on_evicted(const membership::Evicted& evicted) {
  Status status(Fault::evicted, Move::give_up,
                options_.member_word + " " + std::to_string(options_.slot.value()) + " (worker " +
                    std::to_string(options_.worker.value()) + ") was excluded from the job (" + evicted.reason +
                    "): the others go on without it. This process must end");
  status.slot = options_.slot;
  status.worker = options_.worker;
  status.view = evicted.view;
  end_all(status);
}

// This worker is in no job any more: whatever it does next fails with `status`.
void EngineCore::end_all(const Status& status) {
  change([&] {
    if (!ended_) ended_ = status;
    for (const auto& group : groups_) group->fail(status);
  });
  boundary_changed();
  log::error(status.message());
}

}  // namespace closeranks::communicator
