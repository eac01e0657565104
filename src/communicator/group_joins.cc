// A member joins: this one after it was alone, or another one in a lost one's place. And what the steps between two
// boundaries mean for a group.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "communicator/alone.h"
#include "communicator/group.h"

namespace closeranks::communicator {

void Group::do_alone(const std::shared_ptr<Operation>& operation) {
  const Call& call = operation->call();
  const bool answered = call.kind == OpKind::broadcast && !answers_.empty();
  Status done = run_alone(call, operation->shape(), facts(), operation->weight, answered ? &answers_.front() : nullptr);
  if (answered) answers_.pop_front();
  if (!done.ok()) {
    done.group = options_.name;
    done.op = describe_op(*operation);
    operation->add_failure(std::move(done));
  }
  operation->add_contributors(just(members_.slot(members_.self())));
  finish(operation);
}

Status Group::answer_broadcasts(std::vector<std::vector<std::byte>> answers) {
  if (!alone()) {
    return {Fault::invalid_argument, Move::fix_call,
            "the broadcasts of group '" + options_.name +
                "' are answered by its root: only a worker that has not joined yet can answer its own"};
  }
  std::move(answers.begin(), answers.end(), std::back_inserter(answers_));
  return {};
}

Status Group::ready_for_newcomers() const {
  const auto not_ready = [this](Move move, const std::string& why) {
    return Status(Fault::invalid_argument, move, "group '" + options_.name + "' cannot take in a newcomer: " + why);
  };
  constexpr std::string_view what_to_do =
      "No lost worker is replaced before you shut it down here (torch.distributed.destroy_process_group(group)); to "
      "have it go on without a lost member, declare that before the loss (closeranks.set_policy)";
  if (alone()) return {};  // the others had shut it down before this worker joined
  if (broken_)
    return not_ready(Move::fix_call, "it has failed (" + broken_->message() + "). " + std::string(what_to_do));
  const Operation* open_op = oldest();
  if (open_op != nullptr) {
    return not_ready(Move::retry,
                     describe_op(*open_op) + " is still in flight at the boundary. Wait for all ops within the step");
  }
  if (machine_.idle()) return {};
  const Move move = machine_.completed() == machine_.entered() ? Move::fix_call : Move::retry;
  return not_ready(move, "an op of it has failed. " + std::string(what_to_do));
}

membership::GroupStatus Group::freeze_for_round() {
  membership::GroupStatus status = machine_.freeze();
  status.group = key_;
  status.name = options_.name;
  status.alone = alone();
  return status;
}

void Group::thaw() {
  if (!view_pending_) machine_.thaw();
}

void Group::take_members(const std::vector<std::shared_ptr<Peer>>& members) {
  for (const std::shared_ptr<Peer>& peer : members) {
    const std::optional<Rank> rank = members_.rank_of(peer->slot);
    if (!rank || *rank == members_.self() || members_.peer(*rank) == peer) continue;
    members_.replace(*rank, peer);
    // Before this member says `connected`, so before the new worker looks at them.
    members_.own().forget_messages(*rank);
    point_to_point_.member_joined(*rank);
    lost_[rank->value()] = false;
  }
}

void Group::start_anew(const membership::GroupResolution& resolution,
                       const std::vector<std::shared_ptr<Peer>>& members) {
  if (broken_) return;
  // Under policy fail members may have been told apart by a loss: the highest count is everybody's.
  const bool behind = queue_.empty() && machine_.policy() == Policy::fail && machine_.entered() < resolution.base;
  const bool idle = entries_.empty() && machine_.idle() && (alone() || behind || machine_.entered() == resolution.base);
  if (!idle) {
    return fail({Fault::mismatch, Move::give_up,
                 "group '" + options_.name + "' has entered " + std::to_string(machine_.entered()) +
                     " ops here, but the coordinator has newcomers begin at " + std::to_string(resolution.base) +
                     ". This is a fault of closeranks; please report it"});
  }
  const bool joins = std::exchange(role_, Role::member) == Role::alone;
  take_members(members);
  machine_.install(resolution);
  usual_ = false;
  members_.start_anew(resolution.epoch, joins);
  issuers_.start_anew(static_cast<std::uint32_t>(queue_.size()));
  for (std::uint32_t place = 0; place < queue_.size(); ++place) queue_[place]->place = place;
  region_ = RegionAllocator(members_.own().shape().region_bytes);
  members_.own().entered().store(resolution.base, std::memory_order_relaxed);
  members_.own().completed().store(resolution.base, std::memory_order_relaxed);
  if (recorder_.on()) recorder_.words(resolution.base, resolution.base);
  repaired_below_ = 0;
  entered_step_ = step_;
  entered_step_start_ = resolution.base;
  if (joins) {
    // What it did alone, nobody knows of (protocol rule 18).
    answers_.clear();
    memory_.forget();
  }
  part_from(resolution.departures);
  look_at_connections();
}

Status Group::set_weight(double weight) {
  if (!is_weight(weight)) {
    return {Fault::invalid_argument, Move::fix_call,
            "the weight of an input must be a number from 0 upwards, not " + std::to_string(weight)};
  }
  weight_ = weight;
  return {};
}

membership::GroupProgress Group::progress(Clock::time_point now) const {
  membership::GroupProgress progress;
  progress.group = key_;
  progress.name = options_.name;
  progress.entered = machine_.entered();
  progress.completed = machine_.completed();
  const Operation* oldest = nullptr;
  const auto consider = [&oldest](const std::shared_ptr<Operation>& operation) {
    if (oldest == nullptr || operation->issued() < oldest->issued()) oldest = operation.get();
  };
  if (!entries_.empty()) consider(entries_.front().operation);
  if (!queue_.empty()) consider(queue_.front());
  for (const auto& [id, operation] : transfers_) consider(operation);
  if (oldest == nullptr || broken_) return progress;
  progress.waiting = true;
  progress.op = describe_op(*oldest);
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - oldest->issued()).count();
  progress.waited_ms = static_cast<std::uint32_t>(std::min<std::int64_t>(waited, 0xffffffff));
  for (const Rank rank : waiting_for()) progress.waits_for.push_back(members_.slot(rank));
  return progress;
}

}  // namespace closeranks::communicator
