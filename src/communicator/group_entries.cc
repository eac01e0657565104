// Entering an entry (its bytes are placed, described, published) and leaving it (its result goes to the caller).
#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "communicator/buffer_list.h"
#include "communicator/group.h"

namespace closeranks::communicator {

using transport::Place;

static_assert(transport::inline_payload_bytes == algorithm::inline_bytes);

namespace {

// Outputs of this many bytes are not read again before the caches have seen many other bytes.
constexpr std::uint64_t long_output_bytes = std::uint64_t{4} << 20;

recorder::Algorithm algorithm_of(const algorithm::EntryPlan& plan) {
  if (plan.inlined) return recorder::Algorithm::in_line;
  return plan.style() == algorithm::BlockStyle::share ? recorder::Algorithm::share : recorder::Algorithm::take;
}

}  // namespace

// Enters the next entry of the oldest op, if the window, the staging region and the view allow it.
bool Group::enter_next() {
  if (queue_.empty() || !machine_.may_enter(members_)) return false;
  if (machine_.next_sequence() == machine_.base() && !members_.all_connected(machine_.present())) return false;
  const std::shared_ptr<Operation>& operation = queue_.front();
  if (operation->entries_entered == operation->entries) return false;  // an all_to_all whose table is on its way
  const std::uint64_t sequence = machine_.next_sequence();
  InFlight& entry = entries_.push(sequence);
  describe_entry(entry, *operation);
  if (!place(entry)) {
    entries_.take_back();
    return false;
  }
  if (operation->entries_entered == 0) {
    operation->entered_as(sequence);
    operation->step_start = step_start_of(operation->step, sequence);
  }
  entry.operation = operation;
  if (operation->entries_entered == 0 && recorder_.on()) {
    recorder_.entered(*operation, algorithm_of(entry.plan));
    if (entries_.size() == 1) recorder_.current(operation.get());
  }
  const Call& call = operation->call();
  const std::uint64_t agreed_bytes = entry.table           ? 0
                                     : operation->exchange ? operation->cut.unit_bytes
                                                           : operation->shape().unit_bytes;
  const std::uint64_t signature =
      signature_of(call, agreed_bytes, operation->entries_entered, machine_.policy(), options_.lowest_member_is_root);
  copy_in(entry);
  publish(entry, call, operation->shape().unit_bytes, operation->weight, signature, operation->step_start);
  if (recorder_.on()) recorder_.entered_word(sequence + 1);
  --entries_queued_;
  ++operation->entries_entered;
  const bool all_known = !operation->exchange || operation->exchange->settled();
  if (operation->entries_entered == operation->entries && all_known) queue_.pop_front();
  return true;
}

// Data are written: describes the entry and says so. The stores into the line that others wait on come last and close
// behind each other: a waiter that takes the line in between would cost a second round of it.
void Group::publish(const InFlight& entry, const Call& call, std::uint64_t call_bytes, double weight,
                    std::uint64_t signature, std::uint64_t step_start) {
  const auto relaxed = std::memory_order_relaxed;
  const auto release = std::memory_order_release;
  machine_.enter(entry.sequence, entry.plan, signature, step_start);
  transport::DescriptorSlot& slot = members_.own().descriptor_slot(entry.sequence);
  slot.input_offset.store(entry.input.offset, relaxed);
  slot.output_offset.store(entry.output.offset, relaxed);
  slot.unit_bytes.store(call_bytes, relaxed);  // of the whole call: for error texts
  slot.fingerprint.store(call.fingerprint, relaxed);
  slot.blocks.store(entry.plan.blocks(), relaxed);
  slot.block_bytes.store(static_cast<std::uint32_t>(entry.plan.block_bytes), relaxed);
  slot.signature.store(signature, relaxed);
  slot.weight.store(weight, relaxed);
  slot.kind.store(static_cast<std::uint8_t>(call.kind), relaxed);
  slot.dtype.store(static_cast<std::uint8_t>(call.dtype), relaxed);
  slot.reduce.store(static_cast<std::uint8_t>(call.reduce), relaxed);
  slot.policy.store(static_cast<std::uint8_t>(machine_.policy()), relaxed);
  slot.root.store(static_cast<std::uint16_t>(call.root.value()), relaxed);
  slot.input_place.store(static_cast<std::uint8_t>(entry.input.place), relaxed);
  slot.output_place.store(static_cast<std::uint8_t>(entry.output.place), relaxed);
  members_.own().entered().store(entry.sequence + 1, release);
  slot.ready.store(entry.sequence + 1, release);
  ring_pending_ = true;
}

// The first entry of a step; `next_entry` if that is it. All members issue the same ops between the same two steps.
std::uint64_t Group::step_start_of(std::uint64_t step, std::uint64_t next_entry) {
  if (step != entered_step_) {
    entered_step_ = step;
    entered_step_start_ = next_entry;
  }
  return entered_step_start_;
}

// Which part of the op it is, and its plan.
void Group::describe_entry(InFlight& entry, const Operation& operation) const {
  const Call& call = operation.call();
  entry.table = operation.exchange.has_value() && !operation.exchange->settled();
  if (entry.table) {
    entry.piece = {0, ExchangeTable::row_bytes(members_.size())};
    entry.plan = algorithm::make_plan(OpKind::all_gather, DType::bytes, ReduceOp::sum, Rank{0}, entry.piece.bytes,
                                      members_.size());
  } else {
    entry.piece = operation.cut.piece(operation.entries_entered - (operation.exchange ? 1 : 0));
    entry.plan =
        algorithm::make_plan(call.kind, call.dtype, call.reduce, algorithm::is_rooted(call.kind) ? call.root : Rank{0},
                             entry.piece.bytes, members_.size());
  }
  CR_ASSERT(entry.plan.blocks() <= members_.own().shape().max_blocks);
}

// Decides where the entry's input is read and its output is written, and takes room in the staging region for what is
// not worked on in place. False while there is none.
bool Group::place(InFlight& entry) {
  entry.input = entry.output = {};
  entry.staged_bytes = entry.placed = 0;
  if (entry.plan.inlined) return true;
  const Operation& operation = *queue_.front();
  const algorithm::RegionBytes needed = algorithm::region_bytes(entry.plan, members_.size(), members_.self());
  const auto in_arena = [&](const std::optional<Buffer>& memory) -> std::optional<Side> {
    if (entry.table || !memory) return std::nullopt;
    const std::optional<std::uint64_t> offset = host_.arena().offset_of(memory->data, memory->bytes);
    if (!offset) return std::nullopt;
    return Side{Place::arena, *offset + entry.piece.offset};
  };
  const bool gives = entry.table || gives_input(operation.call().kind, operation.call().root, facts());
  const std::optional<Side> input = gives ? in_arena(operation.in_place.input) : Side{};
  const std::optional<Side> output = needed.output > 0 ? in_arena(operation.in_place.output) : Side{};
  const std::uint64_t staged = std::max(input ? 0 : needed.input, output ? 0 : needed.output);
  if (staged > 0) {
    const std::optional<std::uint64_t> offset = region_.allocate(staged);
    if (!offset) return false;
    entry.staged_offset = *offset;
    entry.staged_bytes = staged;
  }
  // A result may be written over the input that was staged: it is final before its first byte goes anywhere.
  entry.input = input.value_or(Side{Place::region, entry.staged_offset});
  entry.output = output.value_or(Side{Place::region, entry.staged_offset});
  return true;
}

// The piece of each unit that this member brings, one after the other, unless it is read in place.
void Group::copy_in(const InFlight& entry) {
  const Operation& operation = *entry.operation;
  const Call& call = operation.call();
  if (!entry.plan.inlined && entry.input.place != Place::region) return;
  std::byte* to = entry.plan.inlined ? members_.own().descriptor_slot(entry.sequence).payload.data()
                                     : members_.own().region() + entry.input.offset;
  if (entry.table) {
    copy_from(operation.exchange->row(), 0, to, entry.piece.bytes);
    return;
  }
  if (!gives_input(call.kind, call.root, facts())) return;
  const std::uint32_t units = input_is_list(call.kind) ? members_.size() : 1;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    std::uint64_t start = unit * operation.shape().unit_bytes;
    algorithm::Range part = entry.piece;
    if (operation.exchange) {
      start = operation.exchange->input_offset(Rank{unit});
      part = operation.exchange->from_self(Rank{unit}, part.offset, part.bytes);
    }
    copy_from(call.inputs, start + part.offset, to + unit * entry.plan.unit_bytes, part.bytes);
  }
}

// What others have written for this member: from the staging region into the caller's output, or the caller's own
// memory, as they see it. And the own broadcast of a root whose output is not its input: it takes nothing.
void Group::copy_out(const InFlight& entry) {
  const Call& call = entry.operation->call();
  const Reuse reuse = reuse_of_output(entry);
  if (entry.output.place == Place::region) {
    copy_out_of_region(entry);
  } else if (entry.output.place == Place::arena) {
    host_.arena().fetch(entry.output.offset, entry.piece.bytes);
  } else if (call.kind == OpKind::broadcast && !entry.plan.inlined && !same_memory(call.inputs, call.outputs) &&
             machine_.effective_root(entry.plan, entry.sequence) == members_.self()) {
    const std::byte* own = members_.memory(members_.self(), entry.input.place, entry.input.offset, entry.piece.bytes);
    CR_ASSERT(own != nullptr);
    copy_to(call.outputs, entry.piece.offset, own, entry.piece.bytes, reuse);
  }
}

// What is not in its place yet.
void Group::copy_out_of_region(const InFlight& entry) {
  const std::byte* region = members_.own().region() + entry.output.offset;
  std::uint64_t from = 0;
  const auto copy_until = [&](std::uint64_t to) {
    copy_to(entry.operation->call().outputs, entry.piece.offset + from, region + from, to - from,
            reuse_of_output(entry));
  };
  for (std::uint64_t placed = entry.placed; placed != 0; placed &= placed - 1) {
    const auto block = static_cast<std::uint32_t>(std::countr_zero(placed));
    const algorithm::Range range = algorithm::block_plan(entry.plan, block).range;
    if (range.offset > from) copy_until(range.offset);
    from = range.offset + range.bytes;
  }
  if (from < entry.piece.bytes) copy_until(entry.piece.bytes);
}

Reuse Group::reuse_of_output(const InFlight& entry) {
  return entry.operation->shape().unit_bytes >= long_output_bytes ? Reuse::late : Reuse::soon;
}

// The lowest entry is over: its result goes to the caller, its staging memory to the next.
void Group::leave(const algorithm::Action& action) {
  InFlight& entry = entries_.at(action.sequence);
  CR_ASSERT(&entry == &entries_.front());
  const std::shared_ptr<Operation> operation = entry.operation;
  if (action.outcome == Fault::none) {
    copy_out(entry);
    const std::shared_ptr<const Contributors>& contributors = contributors_of(action.sequence);
    if (entry.table) take_in_table(*operation);
    if (!entry.table || operation->entries == 1) operation->add_contributors(contributors);
    operation->repaired = operation->repaired || action.sequence < repaired_below_;
    // Not when it is published: that may wait for the next op.
    if (recorder_.on()) recorder_.completed_word(action.sequence + 1);
  } else {
    if (action.outcome == Fault::peer_lost) record_loss(action.culprit);
    if (machine_.failure()) abandon(entry, false);
    entry_failure_ = status_of(action.outcome, action.culprit, *operation, action.sequence);
    operation->add_failure(*entry_failure_);
    if (entry.table) queue_.pop_front();
  }
  if (entry.staged_bytes > 0) region_.release(entry.staged_offset, entry.staged_bytes);
  entries_.pop();
  if (++operation->entries_done == operation->entries) finish(operation);
}

// All members have the sizes of an all_to_all now, and find the same in them.
void Group::take_in_table(Operation& operation) {
  CR_ASSERT(!queue_.empty() && queue_.front().get() == &operation);
  ExchangeTable& table = *operation.exchange;
  table.settle(contributing_);
  if (table.disagreement()) {
    Status status = disagreement_status(*table.disagreement(), describe_op(operation));
    status.sequence = operation.sequence();
    operation.add_failure(std::move(status));
  } else if (table.longest_pair_bytes() > 0) {
    operation.cut = cut(OpKind::all_to_all, operation.call().dtype, table.longest_pair_bytes(), facts());
    operation.entries += operation.cut.pieces;
    operation.in_place = in_place(operation.call(), operation.shape(), facts());
    entries_queued_ += operation.cut.pieces;
    return;
  }
  queue_.pop_front();
}

// The entry ends in a failure while living members may still write its result, or (`input`) go on reading what this
// member gave, for it ends for this one alone: from here on they have pages of their own. (Staging memory of a failed
// group is not used again.)
void Group::abandon(const InFlight& entry, bool input) {
  const auto old = input ? transport::OldPages::kept : transport::OldPages::given_back;
  const auto detach = [&](std::uint64_t offset, std::uint64_t bytes) {
    const Status detached = bytes == 0 ? Status{} : host_.arena().detach(offset, bytes, old);
    if (detached.ok()) return;
    log::error("group '" + options_.name + "': the memory of " + describe_op(*entry.operation) +
               " may still change, it could not be taken from the other members: " + detached.message());
  };
  if (entry.output.place == Place::arena) detach(entry.output.offset, entry.piece.bytes);
  const bool same = entry.output.place == Place::arena && entry.output.offset == entry.input.offset;
  if (!input || entry.input.place != Place::arena || same) return;
  const Operation& operation = *entry.operation;
  const std::uint32_t units = input_is_list(entry.plan.kind) ? members_.size() : 1;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    if (operation.exchange) {
      const algorithm::Range part = operation.exchange->from_self(Rank{unit}, entry.piece.offset, entry.piece.bytes);
      detach(entry.input.offset + operation.exchange->input_offset(Rank{unit}), part.bytes);
    } else {
      detach(entry.input.offset + unit * operation.shape().unit_bytes, entry.piece.bytes);
    }
  }
}

// Those whose input counts in the entry, as the caller is told it.
const std::shared_ptr<const Contributors>& Group::contributors_of(std::uint64_t sequence) {
  bool same = contributors_ != nullptr;
  for (std::uint32_t r = 0; same && r < members_.size(); ++r) {
    same = contributing_[r] == machine_.contributes(Rank{r}, sequence);
  }
  if (!same) {
    contributing_ = machine_.contributors(sequence);
    Contributors now;
    for (std::uint32_t r = 0; r < members_.size(); ++r) {
      if (contributing_[r]) now.slots.push_back(members_.slot(Rank{r}));
    }
    now.slots_in_all = now.slots;
    contributors_ = std::make_shared<const Contributors>(std::move(now));
  }
  return contributors_;
}

}  // namespace closeranks::communicator
