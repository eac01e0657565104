#include "communicator/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "communicator/buffer_list.h"

namespace closeranks::communicator {
namespace {

static_assert(transport::inline_payload_bytes == algorithm::inline_bytes);

// Ops a group remembers for recent_ops().
constexpr std::size_t remembered_ops = 256;
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
               {host.engine_options().member_word, host.coordinated(), host.engine_options().worker}, std::move(own)),
      machine_(machine_options(options_, self, members_.own().shape().window)),
      point_to_point_({options_.name, host.engine_options().member_word, self, options_.members},
                      [this](Rank rank) { return members_.segment_for_messages(rank); }),
      region_(members_.own().shape().region_bytes),
      lost_(options_.members.size(), false),
      role_(role) {}

GroupFacts Group::facts() const {
  return {members_.size(), members_.self(), options_.lowest_member_is_root, entry_budget_bytes};
}

std::shared_ptr<Operation> Group::issue(Call call, std::shared_ptr<OperationDriver> driver) {
  const Result<CallShape> shape = shape_of(call, facts());
  if (!shape.ok()) return refuse(std::move(call), shape.status(), std::move(driver));
  if (broken_) return refuse(std::move(call), *broken_, std::move(driver));

  const Clock::time_point now = Clock::now();
  const auto timeout = call.timeout.count() > 0 ? call.timeout : options_.timeout;
  const bool sends = call.kind == OpKind::send;
  const bool receives = call.kind == OpKind::recv;
  auto operation = std::make_shared<Operation>(std::move(call), shape.value(), next_sequence_, now, now + timeout,
                                               std::move(driver));
  operation->weight = weight_;
  operation->step_start = step_start_;
  if (alone()) {
    next_sequence_ += sends || receives ? 0 : 1;
    do_alone(operation);
  } else if (sends || receives) {
    const Call& issued = operation->call();
    const std::uint64_t id =
        sends ? point_to_point_.send(issued.root, issued.tag, issued.dtype, issued.inputs)
              : point_to_point_.receive(issued.any_source ? std::nullopt : std::optional(issued.root), issued.tag,
                                        issued.dtype, issued.outputs);
    transfers_.emplace(id, operation);
  } else {
    next_sequence_ += shape.value().pieces;
    queue_.push_back(operation);
  }
  return operation;
}

std::shared_ptr<Operation> Group::refuse(Call call, Status why, std::shared_ptr<OperationDriver> driver) {
  const Clock::time_point now = Clock::now();
  auto operation =
      std::make_shared<Operation>(std::move(call), CallShape{}, next_sequence_, now, now, std::move(driver));
  why.group = options_.name;
  operation->add_failure(std::move(why));
  operation->finish();
  host_.finished(operation);
  return operation;
}

bool Group::step() {
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

// Enters the next piece of the oldest op, if the window, the staging region and the view allow it.
bool Group::enter_next() {
  if (queue_.empty() || !machine_.may_enter(members_)) return false;
  if (machine_.next_sequence() == machine_.base() && !members_.all_connected(machine_.present())) return false;
  const std::shared_ptr<Operation> operation = queue_.front();
  const Call& call = operation->call();
  InFlight entry;
  entry.sequence = machine_.next_sequence();
  entry.operation = operation;
  entry.piece = operation->shape().piece(operation->pieces_entered);
  entry.plan = algorithm::make_plan(call.kind, call.dtype, call.reduce, is_rooted(call.kind) ? call.root : Rank{0},
                                    entry.piece.bytes, members_.size());
  CR_ASSERT(entry.plan.blocks() <= members_.own().shape().max_blocks);
  if (!entry.plan.inlined && !stage(entry)) return false;

  const std::uint64_t signature = signature_of(call, operation->shape(), operation->pieces_entered, machine_.policy(),
                                               options_.lowest_member_is_root);
  write_descriptor(entry, signature);
  copy_in(entry, call);
  machine_.enter({entry.sequence, entry.plan, signature, operation->step_start});
  members_.own().entered().store(entry.sequence + 1, std::memory_order_release);
  ring_pending_ = true;
  entries_.push_back(std::move(entry));
  if (++operation->pieces_entered == operation->shape().pieces) queue_.pop_front();
  return true;
}

// Takes room in the staging region. False while there is none.
bool Group::stage(InFlight& entry) {
  const algorithm::RegionBytes needed = algorithm::region_bytes(entry.plan, members_.size(), members_.self());
  if (needed.input > 0) {
    const std::optional<std::uint64_t> input = region_.allocate(needed.input);
    if (!input) return false;
    entry.input_offset = *input;
    entry.output_offset = *input;
  }
  if (!needed.shared && needed.output > 0) {
    const std::optional<std::uint64_t> output = region_.allocate(needed.output);
    if (!output) {
      if (needed.input > 0) region_.release(entry.input_offset, needed.input);
      return false;
    }
    entry.output_offset = *output;
  }
  entry.staged = needed;
  return true;
}

void Group::write_descriptor(const InFlight& entry, std::uint64_t signature) {
  const auto relaxed = std::memory_order_relaxed;
  const Call& call = entry.operation->call();
  transport::DescriptorSlot& slot = members_.own().descriptor_slot(entry.sequence);
  slot.sequence.store(entry.sequence, relaxed);
  slot.signature.store(signature, relaxed);
  slot.input_offset.store(entry.input_offset, relaxed);
  slot.output_offset.store(entry.output_offset, relaxed);
  slot.unit_bytes.store(entry.operation->shape().unit_bytes, relaxed);  // of the whole call: for error texts
  slot.blocks.store(entry.plan.blocks(), relaxed);
  slot.block_bytes.store(static_cast<std::uint32_t>(entry.plan.block_bytes), relaxed);
  slot.root.store(static_cast<std::uint16_t>(call.root.value()), relaxed);
  slot.weight.store(entry.operation->weight, relaxed);
  slot.kind.store(static_cast<std::uint8_t>(call.kind), relaxed);
  slot.dtype.store(static_cast<std::uint8_t>(call.dtype), relaxed);
  slot.reduce.store(static_cast<std::uint8_t>(call.reduce), relaxed);
  slot.policy.store(static_cast<std::uint8_t>(machine_.policy()), relaxed);
}

// The piece of each unit that this member brings, one after the other.
void Group::copy_in(const InFlight& entry, const Call& call) {
  transport::DescriptorSlot& slot = members_.own().descriptor_slot(entry.sequence);
  slot.payload_bytes.store(0, std::memory_order_relaxed);
  if (!gives_input(call.kind, call.root, facts())) return;
  const bool one_per_member = call.kind == OpKind::reduce_scatter || call.kind == OpKind::scatter;
  const std::uint32_t units = one_per_member ? members_.size() : 1;
  std::byte* to = entry.plan.inlined ? slot.payload.data() : members_.own().region() + entry.input_offset;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    copy_from(call.inputs, unit * entry.operation->shape().unit_bytes + entry.piece.offset,
              to + unit * entry.piece.bytes, entry.piece.bytes);
  }
  if (entry.plan.inlined)
    slot.payload_bytes.store(static_cast<std::uint16_t>(units * entry.piece.bytes), std::memory_order_relaxed);
}

// The finished piece of each unit, from the staging region into the caller's output.
void Group::copy_out(const InFlight& entry) const {
  const Call& call = entry.operation->call();
  if (entry.plan.inlined || call.outputs.empty()) return;
  const bool is_root = machine_.effective_root(entry.plan, entry.sequence) == members_.self();
  // Nothing has written into the root's region: where it broadcasts in place, the caller's memory is the result.
  if (call.kind == OpKind::broadcast && is_root && same_memory(call.inputs, call.outputs)) return;
  if (call.kind == OpKind::gather && !is_root) return;
  const bool one_per_member = call.kind == OpKind::all_gather || call.kind == OpKind::gather;
  const std::uint32_t units = one_per_member ? members_.size() : 1;
  const std::byte* from = members_.own().region() + entry.output_offset;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    copy_to(call.outputs, unit * entry.operation->shape().unit_bytes + entry.piece.offset,
            from + unit * entry.piece.bytes, entry.piece.bytes);
  }
}

Group::InFlight& Group::in_flight(std::uint64_t sequence) {
  CR_ASSERT(!entries_.empty() && sequence >= entries_.front().sequence);
  const std::uint64_t index = sequence - entries_.front().sequence;
  CR_ASSERT(index < entries_.size());
  return entries_[index];
}

// The lowest entry is over: its result goes to the caller, its staging memory to the next.
void Group::leave(const algorithm::Action& action) {
  CR_ASSERT(!entries_.empty() && entries_.front().sequence == action.sequence);
  const InFlight entry = std::move(entries_.front());
  entries_.pop_front();
  const std::shared_ptr<Operation>& operation = entry.operation;
  if (action.outcome == Fault::none) {
    copy_out(entry);
    const algorithm::RankSet counted = machine_.contributors(action.sequence);
    std::vector<Slot> slots;
    slots.reserve(members_.size());
    for (std::uint32_t r = 0; r < members_.size(); ++r) {
      if (counted[r]) slots.push_back(members_.slot(Rank{r}));
    }
    operation->add_contributors(slots);
    operation->repaired = operation->repaired || action.sequence < repaired_below_;
  } else {
    entry_failure_ = status_of(action.outcome, action.culprit, *operation, action.sequence);
    operation->add_failure(*entry_failure_);
  }
  if (entry.staged.input > 0) region_.release(entry.input_offset, entry.staged.input);
  if (!entry.staged.shared && entry.staged.output > 0) region_.release(entry.output_offset, entry.staged.output);
  if (++operation->pieces_done == operation->shape().pieces) finish(operation);
}

void Group::finish(const std::shared_ptr<Operation>& operation, Rank source) {
  operation->finish(source);
  if (operation->status().ok()) {
    last_contributors_ = operation->contributors();
    if (recent_.size() == remembered_ops) recent_.pop_front();
    recent_.push_back(
        {operation->sequence(), operation->call().kind, operation->shape().unit_bytes, unix_ns(), last_contributors_});
    if (operation->repaired && host_.coordinated()) {
      const std::uint64_t taken_over =
          machine_.blocks_taken_over() - std::exchange(taken_over_before_, machine_.blocks_taken_over());
      host_.repaired({host_.engine_options().worker, options_.name, operation->sequence(), describe_op(*operation),
                      last_contributors_.slots, static_cast<std::uint32_t>(taken_over)});
    }
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
    operation->add_contributors({members_.slot(transfer.source)});
    finish(operation, transfer.source);
  }
  return stored || !finished.empty();
}

}  // namespace closeranks::communicator
