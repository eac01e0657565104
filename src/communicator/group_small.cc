// Communicator::run. A small op with nothing before it goes from its call to its result in one go, when all members are
// about: one descriptor written, the others' looked for, their payloads combined. No Operation, nothing allocated, no
// clock read. Whatever is not as usual (somebody is late, gone or calls something else, a view is changing) is left to
// the group machine: the entry is then one like any other.
#include <time.h>

#include "communicator/buffer_list.h"
#include "communicator/group.h"

namespace closeranks::communicator {
namespace {

using algorithm::Action;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// To a few milliseconds: for the list of recent ops. A tenth of the price of the exact time.
std::int64_t coarse_unix_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

bool may_be_small(OpKind kind, std::uint64_t unit_bytes) {
  return unit_bytes <= algorithm::inline_bytes && kind != OpKind::all_to_all && kind != OpKind::send &&
         kind != OpKind::recv;
}

}  // namespace

Group::Run Group::run(const Call& call, std::uint32_t looks, const DriveLock& lock) {
  const Result<CallShape> shape = shape_of(call, facts());
  if (!shape.ok()) return {false, refuse(call, shape.status(), nullptr)};
  if (broken_) return {false, refuse(call, *broken_, nullptr)};
  const std::uint64_t unit_bytes = shape.value().unit_bytes;
  InFlight* entry = nullptr;
  std::uint32_t place = 0;
  const std::uint64_t sequence = machine_.next_sequence();
  if (may_be_small(call.kind, unit_bytes) && may_run_small(sequence)) {
    const algorithm::EntryPlan plan =
        algorithm::make_plan(call.kind, call.dtype, call.reduce, algorithm::is_rooted(call.kind) ? call.root : Rank{0},
                             unit_bytes, members_.size());
    if (plan.inlined) {
      const std::uint64_t signature =
          signature_of(call, unit_bytes, 0, machine_.policy(), options_.lowest_member_is_root);
      entry = &entries_.push(sequence);
      entry->table = false;
      entry->piece = {0, unit_bytes};
      entry->plan = plan;
      entry->input = entry->output = {};
      entry->staged_bytes = 0;
      write_descriptor(*entry, call, unit_bytes, call.reduce == ReduceOp::premul_sum ? call.factor : weight_,
                       signature);
      if (gives_input(call.kind, call.root, facts())) {
        const std::uint64_t units = input_is_list(call.kind) ? members_.size() : 1;
        copy_from(call.inputs, 0, members_.own().descriptor_slot(sequence).payload.data(), units * unit_bytes);
      }
      place = issuers_.note(true);
      enter(*entry, signature, step_start_of(step_, sequence));
      if (await_all(sequence, looks, lock) && finish_small(call, plan, sequence, signature)) {
        entries_.take_back();
        return {true, nullptr};
      }
    }
  }
  const Clock::time_point now = Clock::now();
  const auto timeout = call.timeout.count() > 0 ? call.timeout : options_.timeout;
  std::shared_ptr<Operation> operation =
      spare_ != nullptr && spare_.use_count() == 1 ? std::move(spare_) : std::make_shared<Operation>(nullptr);
  operation->begin_copy_of(call, shape.value(), entry != nullptr ? sequence : next_sequence(), now, now + timeout);
  if (entry == nullptr) {
    begin(operation);
    return {false, std::move(operation)};
  }
  operation->weight = call.reduce == ReduceOp::premul_sum ? call.factor : weight_;
  operation->step = step_;
  operation->step_start = entered_step_start_;
  operation->entries_entered = 1;
  operation->place = place;
  entry->operation = operation;
  return {false, std::move(operation)};
}

void Group::give_back(std::shared_ptr<Operation> operation) { spare_ = std::move(operation); }

// The members present are those whose input counts, and no entry of theirs can be in anybody's way.
bool Group::may_run_small(std::uint64_t sequence) {
  if (alone() || !entries_.empty() || !queue_.empty() || !machine_.may_enter(members_)) return false;
  if (sequence == machine_.base() && !members_.all_connected(machine_.present())) return false;
  const algorithm::RankSet& present = machine_.present();
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (present[r] != machine_.contributes(Rank{r}, sequence)) return false;
    if (!present[r] && machine_.policy() == Policy::exact) return false;
  }
  return true;
}

// True when all present members have entered. Whoever wants the lock meanwhile gets it.
bool Group::await_all(std::uint64_t sequence, std::uint32_t looks, const DriveLock& lock) const {
  const algorithm::RankSet& present = machine_.present();
  std::uint32_t r = 0;
  for (std::uint32_t look = 0;; ++look) {
    for (; r < members_.size(); ++r) {
      if (!present[r] || Rank{r} == members_.self()) continue;
      const transport::DescriptorSlot& slot = members_.segment(Rank{r})->descriptor_slot(sequence);
      if (slot.ready.load(std::memory_order_acquire) != sequence + 1) break;
    }
    if (r == members_.size()) return true;
    if (look >= looks || lock.wanted()) return false;
    relax();
  }
}

// What the machine would ask for in the usual case, in its order. False: it is not usual.
bool Group::finish_small(const Call& call, const algorithm::EntryPlan& plan, std::uint64_t sequence,
                         std::uint64_t signature) {
  const algorithm::RankSet& present = machine_.present();
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (present[r] && members_.signature(Rank{r}, sequence) != signature) return false;
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
  const bool for_root = plan.kind == OpKind::gather || plan.kind == OpKind::reduce;
  const bool has_output = plan.unit_bytes > 0 && (!for_root || plan.root == members_.self());
  if (has_output && !combine(plan, sequence, call.outputs)) return false;
  action.kind = Action::Kind::complete;
  machine_.done(action);
  members_.own().completed().store(sequence + 1, std::memory_order_release);
  action.kind = Action::Kind::publish_completed;
  machine_.done(action);
  memory_.add(sequence, plan.kind, plan.unit_bytes, coarse_unix_ns(), contributors_of(sequence));
  return true;
}

}  // namespace closeranks::communicator
