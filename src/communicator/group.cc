#include "communicator/group.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::communicator {
namespace {

// Entries this many ahead go before the blocks of earlier ones: peers can begin with them, and no more than these have
// to stay in the caches.
constexpr std::size_t entries_ahead = 2;

algorithm::MachineOptions machine_options(const GroupOptions& options, Rank self, std::uint32_t window) {
  algorithm::MachineOptions machine;
  machine.members = static_cast<std::uint32_t>(options.members.size());
  machine.self = self;
  machine.slots = options.members;
  machine.policy = options.policy;
  machine.lowest_member_is_root = options.lowest_member_is_root;
  machine.window = window;
  return machine;
}

std::int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

transport::SegmentShape segment_shape(std::uint32_t members) {
  transport::SegmentShape shape = transport::SegmentShape::for_members(members);
  shape.scratch_bytes = algorithm::max_block_bytes;
  shape.max_blocks = algorithm::max_blocks(members, entry_budget_bytes);
  return shape;
}

Group::Group(GroupHost& host, GroupOptions options, GroupKey key, Rank self, transport::Segment own, Role role)
    : host_(host),
      options_(std::move(options)),
      key_(key),
      members_(options_.members, self,
               {host.engine_options().member_word, host.coordinated(), host.engine_options().worker}, std::move(own),
               host.arena()),
      machine_(machine_options(options_, self, members_.own().shape().window)),
      issuers_(members_.own().issuers()),
      point_to_point_({options_.name, host.engine_options().member_word, self, options_.members},
                      [this](Rank rank) { return members_.segment_for_messages(rank); }),
      region_(members_.own().shape().region_bytes),
      entries_(members_.own().shape().window),
      lost_(options_.members.size(), false),
      role_(role),
      recorder_(host.ring(), options_, key, self) {}

GroupFacts Group::facts() const {
  return {members_.size(), members_.self(), options_.lowest_member_is_root, entry_budget_bytes};
}

std::shared_ptr<Operation> Group::issue(Call call, std::shared_ptr<OperationDriver> driver) {
  const Result<CallShape> shape = shape_of(call, facts());
  if (!shape.ok()) return refuse(std::move(call), shape.status(), std::move(driver));
  if (broken_) return refuse(std::move(call), *broken_, std::move(driver));
  const Clock::time_point now = Clock::now();
  const auto timeout = call.timeout.count() > 0 ? call.timeout : options_.timeout;
  auto operation = std::make_shared<Operation>(std::move(driver));
  operation->begin(std::move(call), shape.value(), next_sequence(), now, now + timeout);
  begin(operation);
  return operation;
}

// Its call is as it should be: does it, or queues it.
void Group::begin(const std::shared_ptr<Operation>& operation) {
  const Call& call = operation->call();
  operation->weight = call.reduce == ReduceOp::premul_sum ? call.factor : weight_;
  operation->step = step_;
  const bool sends = call.kind == OpKind::send;
  const bool receives = call.kind == OpKind::recv;
  if (recorder_.on()) recorder_.issued(*operation);
  if (alone()) {
    operation->times.algorithm = static_cast<std::uint8_t>(recorder::Algorithm::alone);
    ops_alone_ += sends || receives ? 0 : 1;
    do_alone(operation);
    return;
  }
  operation->place = issuers_.note(!sends && !receives);
  if (sends || receives) {
    const std::uint64_t id = sends ? point_to_point_.send(call.root, call.tag, call.dtype, call.inputs)
                                   : point_to_point_.receive(call.any_source ? std::nullopt : std::optional(call.root),
                                                             call.tag, call.dtype, call.outputs);
    transfers_.emplace(id, operation);
    operation->times.algorithm = static_cast<std::uint8_t>(recorder::Algorithm::messages);
  } else {
    if (call.kind == OpKind::all_to_all) {
      operation->exchange.emplace(members_.self(), call.input_bytes, call.output_bytes);
    } else {
      operation->in_place = in_place(call, operation->shape(), facts());
    }
    entries_queued_ += operation->entries;
    queue_.push_back(operation);
  }
  if (recorder_.on()) recorder_.current(oldest());
}

// Of those that are not over.
Operation* Group::oldest() const {
  if (!entries_.empty()) return entries_.front().operation.get();
  if (!queue_.empty()) return queue_.front().get();
  Operation* oldest = nullptr;
  for (const auto& [id, operation] : transfers_) {
    if (oldest == nullptr || operation->issued() < oldest->issued()) oldest = operation.get();
  }
  return oldest;
}

std::shared_ptr<Operation> Group::refuse(Call call, Status why, std::shared_ptr<OperationDriver> driver) {
  const Clock::time_point now = Clock::now();
  auto operation = std::make_shared<Operation>(std::move(driver));
  operation->begin(std::move(call), CallShape{}, next_sequence(), now, now);
  why.group = options_.name;
  operation->add_failure(std::move(why));
  operation->finish();
  host_.finished(operation);
  return operation;
}

bool Group::step() {
  if (recorder_.on()) note_arrivals();
  if (broken_) return drive_transfers();
  if (machine_.failure() && entries_.empty() && !queue_.empty()) {
    // A member was lost while nothing was in flight: the first op issued since says so.
    fail(status_of(machine_.failure()->outcome, machine_.failure()->culprit, *queue_.front(),
                   queue_.front()->sequence()));
    return true;
  }
  if (entries_.size() < entries_ahead && enter_next()) return true;
  const algorithm::Action action = machine_.next(members_);
  if (action.kind != algorithm::Action::Kind::none) {
    perform(action);
    return true;
  }
  return enter_next() || drive_transfers();
}

void Group::flush() {
  if (!ring_pending_) return;
  ring_pending_ = false;
  members_.ring();
}

void Group::finish(const std::shared_ptr<Operation>& operation, Rank source) {
  operation->finish(source);
  if (operation->status().ok()) {
    memory_.add(operation->sequence(), operation->call().kind, operation->shape().unit_bytes, unix_ns(),
                operation->who_contributed());
    if (operation->repaired && host_.coordinated()) {
      const std::uint64_t taken_over =
          machine_.blocks_taken_over() - std::exchange(taken_over_before_, machine_.blocks_taken_over());
      host_.repaired({host_.engine_options().worker, options_.name, operation->sequence(), describe_op(*operation),
                      operation->who_contributed()->slots, static_cast<std::uint32_t>(taken_over)});
    }
  }
  if (recorder_.on()) {
    recorder_.ended(*operation);
    recorder_.current(oldest());
  }
  host_.finished(operation);
}

bool Group::drive_transfers() {
  if (transfers_.empty() || (machine_.frozen() && !broken_)) return false;
  const bool stored = point_to_point_.drive();
  // Few bells, each rung at once: a receiver may sleep on the next half of a large message.
  if (stored) {
    transport::Doorbell::fence();
    for (const Rank rank : point_to_point_.take_touched()) {
      const std::shared_ptr<Peer>& peer = members_.peer(rank);
      if (peer && peer->life.has_value()) peer->life->doorbell().ring_fenced();
    }
  }
  const std::vector<PointToPoint::Finished> finished = point_to_point_.take_finished();
  for (const PointToPoint::Finished& transfer : finished) {
    const auto found = transfers_.find(transfer.id);
    CR_ASSERT(found != transfers_.end());
    const std::shared_ptr<Operation> operation = found->second;
    transfers_.erase(found);
    if (!transfer.status.ok()) operation->add_failure(transfer.status);
    operation->add_contributors(just(members_.slot(transfer.source)));
    finish(operation, transfer.source);
  }
  return stored || !finished.empty();
}

}  // namespace closeranks::communicator
