// Communicator::run. A small op with nothing before it goes from its call to its result in one go, when all members are
// about: one descriptor written, the others' looked for, their payloads combined. No Operation, nothing allocated, no
// clock read. Whatever is not as usual (somebody is late, gone or calls something else, a view is changing) is left to
// the group machine: the entry is then one like any other.
#include <time.h>

#include "base/assert.h"
#include "communicator/buffer_list.h"
#include "communicator/group.h"
#include "communicator/inline_combine.h"

namespace closeranks::communicator {
namespace {

using algorithm::Action;

// To a few milliseconds: for the list of recent ops. A quarter of the price of the exact time.
std::int64_t coarse_unix_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

Buffer only(const std::vector<Buffer>& buffers) { return buffers.empty() ? Buffer{} : buffers.front(); }

}  // namespace

Group::Run Group::run(const Call& call, Patience& patience, const DriveLock& lock) {
  const SmallCall* small = nullptr;
  if (entries_.empty() && queue_.empty() && (usual_ || is_usual())) small = small_call(call);
  if (small == nullptr || !machine_.may_enter(members_)) return run_as_any(call);
  const std::uint64_t sequence = machine_.next_sequence();
  const std::uint32_t place = issuers_.note(true);
  const std::uint64_t step_start = step_start_of(step_, sequence);
  InFlight& entry = entries_.push(sequence);
  entry.plan = small->plan;
  entry.input = {};
  entry.output = {};
  if (small->input_bytes > 0) {
    copy_from(call.inputs, 0, members_.own().descriptor_slot(sequence).payload.data(), small->input_bytes);
  }
  OpRecorder::Small recorded{.sequence = sequence, .bytes = small->bytes, .facts = small->facts};
  recorded.facts.shape = call.shape;
  publish(entry, call, small->plan.unit_bytes, call.reduce == ReduceOp::premul_sum ? call.factor : weight_,
          small->signature, step_start);
  const Await others = await_all(sequence, patience, lock, recorded);
  if (others == Await::all_here && finish_small(call, *small, sequence, recorded)) {
    entries_.take_back();
    return {true, false, nullptr};
  }
  // An op as any other from here on.
  entry.table = false;
  entry.piece = {0, small->plan.unit_bytes};
  entry.staged_bytes = 0;
  entry.operation = spare_operation();
  begin_copy(*entry.operation, call, {small->plan.unit_bytes, small->plan.unit_bytes, 1}, sequence);
  entry.operation->step_start = step_start;
  entry.operation->entries_entered = 1;
  entry.operation->place = place;
  if (recorder_.on()) {
    recorder_.issued(*entry.operation, recorded.start_ns);
    recorder_.entered(*entry.operation, recorder::Algorithm::in_line, recorded.start_ns);
    recorder_.current(entry.operation.get());
    recorder_.entered_word(sequence + 1);
  }
  return {false, others == Await::over, entry.operation};
}

Group::Run Group::run_as_any(const Call& call) {
  const Result<CallShape> shape = shape_of(call, facts());
  if (!shape.ok()) return {false, false, refuse(call, shape.status(), nullptr)};
  if (broken_) return {false, false, refuse(call, *broken_, nullptr)};
  std::shared_ptr<Operation> operation = spare_operation();
  begin_copy(*operation, call, shape.value(), next_sequence());
  begin(operation);
  return {false, false, std::move(operation)};
}

std::shared_ptr<Operation> Group::spare_operation() {
  return spare_ != nullptr && spare_.use_count() == 1 ? std::move(spare_) : std::make_shared<Operation>(nullptr);
}

void Group::give_back(std::shared_ptr<Operation> operation) { spare_ = std::move(operation); }

void Group::begin_copy(Operation& operation, const Call& call, const CallShape& shape, std::uint64_t sequence) {
  const Clock::time_point now = Clock::now();
  operation.begin_copy_of(call, shape, sequence, now,
                          now + (call.timeout.count() > 0 ? call.timeout : options_.timeout));
  operation.weight = call.reduce == ReduceOp::premul_sum ? call.factor : weight_;
  operation.step = step_;
}

// Remembers a yes until the members or the policy change: those present are those whose input counts, now and later,
// and policy exact expects nobody else.
bool Group::is_usual() {
  if (broken_ || alone() || !members_.all_connected(machine_.present())) return false;
  const algorithm::RankSet& present = machine_.present();
  const std::uint64_t sequence = machine_.next_sequence();
  rings_.assign(members_.size(), nullptr);
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (present[r] != machine_.contributes(Rank{r}, sequence)) return false;
    if (!present[r] && machine_.policy() == Policy::exact) return false;
    if (present[r]) rings_[r] = &members_.segment(Rank{r})->descriptor_slot(0);
  }
  ring_mask_ = members_.own().shape().window - 1;
  static_cast<void>(contributors_of(sequence));
  small_calls_.fill({});
  usual_ = true;
  return true;
}

// What is known of a call from the last one of its kind, if that was the same; nullptr: it is not small, or not sound.
const Group::SmallCall* Group::small_call(const Call& call) {
  if (call.inputs.size() > 1 || call.outputs.size() > 1 || call.stack != 0) return nullptr;
  const Buffer input = only(call.inputs);
  const Buffer output = only(call.outputs);
  SmallCall& known = small_calls_[static_cast<std::size_t>(call.kind)];
  const bool same = known.valid && known.plan.dtype == call.dtype && known.reduce == call.reduce &&
                    known.root == call.root && known.input.bytes == input.bytes && known.output.bytes == output.bytes &&
                    known.fingerprint == call.fingerprint;
  // Sound memory is all that another call of the same sizes may lack.
  const bool memory = (input.data != nullptr || input.bytes == 0) && (output.data != nullptr || output.bytes == 0);
  if (same) return memory ? &known : nullptr;
  if (call.kind == OpKind::all_to_all || call.kind == OpKind::send || call.kind == OpKind::recv) return nullptr;
  const Result<CallShape> shape = shape_of(call, facts());
  if (!shape.ok() || shape.value().unit_bytes > algorithm::inline_bytes) return nullptr;
  const Rank root = algorithm::is_rooted(call.kind) ? call.root : Rank{0};
  const algorithm::EntryPlan plan =
      algorithm::make_plan(call.kind, call.dtype, call.reduce, root, shape.value().unit_bytes, members_.size());
  if (!plan.inlined) return nullptr;
  // Without its root the op fails, on all alike.
  const bool any_root =
      !algorithm::is_rooted(call.kind) || (call.kind == OpKind::broadcast && options_.lowest_member_is_root);
  if (!any_root && rings_[root.value()] == nullptr) return nullptr;
  const bool for_root = call.kind == OpKind::gather || call.kind == OpKind::reduce;
  known = {true, call.reduce, call.root, input, output, call.fingerprint, plan};
  known.signature = signature_of(call, plan.unit_bytes, 0, machine_.policy(), options_.lowest_member_is_root);
  known.input_bytes = gives_input(call.kind, call.root, facts())
                          ? plan.unit_bytes * (input_is_list(call.kind) ? members_.size() : 1)
                          : 0;
  known.facts = OpRecorder::facts_of(call);
  known.bytes = std::max(input.bytes, output.bytes);
  known.has_output = plan.unit_bytes > 0 && (!for_root || call.root == members_.self());
  return &known;
}

// Until all present members have entered. Whoever wants the lock meanwhile gets it.
Group::Await Group::await_all(std::uint64_t sequence, Patience& patience, const DriveLock& lock,
                              OpRecorder::Small& recorded) {
  last_arrival_ = members_.self();
  for (std::uint32_t r = 0; r < rings_.size(); ++r) {
    if (rings_[r] == nullptr || Rank{r} == members_.self()) continue;
    const transport::DescriptorSlot& slot = rings_[r][sequence & ring_mask_];
    while (slot.ready.load(std::memory_order_acquire) != sequence + 1) {
      last_arrival_ = Rank{r};
      if (recorder_.on()) recorder_.small_waits(recorded);
      if (lock.wanted()) return Await::wanted;
      if (!patience.pause()) return Await::over;
    }
  }
  return Await::all_here;
}

// What the machine would ask for in the usual case, in its order. False: it is not usual.
bool Group::finish_small(const Call& call, const SmallCall& small, std::uint64_t sequence,
                         const OpRecorder::Small& recorded) {
  sources_.resize(rings_.size());
  weights_.resize(rings_.size());
  for (std::uint32_t r = 0; r < rings_.size(); ++r) {
    sources_[r] = nullptr;
    weights_[r] = 0;
    if (rings_[r] == nullptr) continue;
    const transport::DescriptorSlot& slot = rings_[r][sequence & ring_mask_];
    if (slot.signature.load(std::memory_order_relaxed) != small.signature) return false;
    weights_[r] = slot.weight.load(std::memory_order_relaxed);
    if (small.plan.reduce == ReduceOp::avg && !is_weight(weights_[r])) return false;
    sources_[r] = slot.payload.data();
  }
  Action action;
  action.sequence = sequence;
  if (machine_.policy() == Policy::fail) {
    action.kind = Action::Kind::decide;
    action.decision = algorithm::Decision::success;
    decide(action);
    const auto decided = algorithm::DecisionWord::unpack(members_.decision_word(sequence));
    if (decided.sequence == sequence && decided.decision == algorithm::Decision::failed) return false;
  }
  if (small.has_output) {
    combine_inline(small.plan, sources_, weights_, machine_.effective_root(small.plan, sequence), members_.self(),
                   call.outputs, {0, small.plan.unit_bytes});
  }
  action.kind = Action::Kind::complete;
  machine_.done(action);
  members_.own().completed().store(sequence + 1, std::memory_order_release);
  action.kind = Action::Kind::publish_completed;
  machine_.done(action);
  const std::int64_t ended_unix_ns =
      recorder_.on() ? recorder_.small_ends(recorded, last_arrival_, contributors_) : coarse_unix_ns();
  memory_.add(sequence, small.plan.kind, small.plan.unit_bytes, ended_unix_ns, contributors_);
  return true;
}

}  // namespace closeranks::communicator
