// Who drives: a caller that waits, else the engine's own thread. One drives for all; the others look at their op, and
// sleep on the process's doorbell, which everybody rings who may have left something to do.
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "communicator/engine_core.h"
#include "communicator/not_finite.h"

namespace closeranks::communicator {
namespace {

// Deadlines of ops and of orphans are looked at this often at least.
constexpr std::chrono::milliseconds longest_look{500};
// A caller gives its core away again and again for this long before it sleeps: at the start, and when it was woken and
// found something to do.
constexpr std::chrono::microseconds first_yields{1000};
constexpr std::chrono::microseconds later_yields{200};
// A member without an address is asked for after this long.
constexpr std::chrono::seconds absence_patience{1};

// What came first is what matters; sums carry it to everybody.
constexpr std::uint32_t most_not_finite_said = 8;

}  // namespace

// A caller is in wait(): the engine's thread leaves the driving to him, so that bells need no system call while callers
// drive, and takes over when the last one leaves with ops still open.
class DriverPresence {
 public:
  explicit DriverPresence(EngineCore& core) : core_(core) {
    core_.drivers_.fetch_add(1, std::memory_order_seq_cst);
    // Asleep on the doorbell, it would make every bell a system call: send it back to its own place.
    if (core_.engine_thread_active_.load(std::memory_order_seq_cst)) core_.life_->doorbell().ring();
  }
  ~DriverPresence() {
    core_.drivers_.fetch_sub(1, std::memory_order_seq_cst);
    core_.look_again();
  }
  DriverPresence(const DriverPresence&) = delete;
  DriverPresence& operator=(const DriverPresence&) = delete;

 private:
  EngineCore& core_;
};

std::shared_ptr<Operation> EngineCore::issue(Group& group, Call call, std::shared_ptr<OperationDriver> driver) {
  if (checks_finite_) check_finite(group, call);
  const bool wait_follows = call.wait_follows;
  std::shared_ptr<Operation> operation;
  std::vector<std::shared_ptr<Operation>> ended;
  {
    const std::lock_guard lock(lock_);
    open_ops_.fetch_add(1, std::memory_order_relaxed);
    operation = group.issue(std::move(call), std::move(driver));
    // The first piece goes out at once: others can begin with it while this caller goes on.
    group.step();
    group.flush();
    ended.swap(finished_);
  }
  settle(ended);
  // Perhaps everybody else had entered already: then no bell of theirs will come for this op.
  life_->doorbell().ring();
  if (!wait_follows && !operation->settled() && drivers_.load(std::memory_order_seq_cst) == 0) wake_engine_thread();
  return operation;
}

// Says where a NaN or an infinity came into the job; the call goes on.
void EngineCore::check_finite(Group& group, const Call& call) {
  const std::optional<NotFinite> found = first_not_finite(call);
  if (!found || not_finite_said_.fetch_add(1, std::memory_order_relaxed) >= most_not_finite_said) return;
  const std::string what = describe(*found, call);
  const std::lock_guard lock(lock_);
  const std::uint64_t sequence = group.next_sequence();
  log::warning(options_.member_word + " " + std::to_string(options_.slot.value()) + ": " + what + " of its input of " +
               std::string(name_of(call.kind)) + " #" + std::to_string(sequence) + " of group '" +
               group.options().name + "'");
  if (!group.recorder().on()) return;
  group.recorder().event({.kind = recorder::EventKind::not_finite,
                          .number = sequence,
                          .slots = {&options_.slot, 1},
                          .detail = what,
                          .use = recorder::NameUse::last_words});
}

Status EngineCore::run(Group& group, const Call& call) {
  if (checks_finite_) check_finite(group, call);
  Group::Run run;
  bool patient = true;
  {
    const std::lock_guard lock(lock_);
    // The lock is kept while it waits for the others, unless there is something else to drive.
    const bool only_one = open_ops_.load(std::memory_order_relaxed) == 0;
    Patience patience(spins_, only_one ? first_yields : std::chrono::microseconds{0});
    run = group.run(call, patience, lock_);
    group.flush();
    if (run.done) return {};
    patient = !run.waited || !only_one;
    open_ops_.fetch_add(1, std::memory_order_relaxed);
  }
  // Perhaps everybody else had entered already: then no bell of theirs will come for this op.
  life_->doorbell().ring();
  Status status = wait_for(group, *run.operation, std::chrono::milliseconds{0}, patient);
  const std::lock_guard lock(lock_);
  group.give_back(std::move(run.operation));
  return status;
}

Status EngineCore::wait_for(Group& group, Operation& operation, std::chrono::milliseconds timeout, bool patient) {
  if (fork_guard_.in_child()) return ForkGuard::status();
  const Clock::time_point limit = timeout.count() > 0 ? Clock::now() + timeout : Clock::time_point::max();
  const DriverPresence presence(*this);
  // A short op is done within these: nothing else is set up for it.
  if (drive_until(operation, {spins_, patient ? first_yields : std::chrono::microseconds{0}})) {
    return operation.status();
  }
  const auto poll = [&] { return operation.settled() || drive(&operation) || operation.settled(); };
  std::vector<const transport::PeerLife*> lives;
  const auto watch = [&]() -> std::span<const transport::PeerLife* const> {
    lives = watched();
    return lives;
  };
  transport::Waiter waiter(life_->doorbell(), transport::sleep_at_once);
  BlockedWait blocked(*this, group, operation, limit >= operation.deadline());
  while (!operation.settled()) {
    const Clock::time_point now = Clock::now();
    if (now >= limit) {
      const std::lock_guard lock(lock_);
      if (!operation.done()) return group.timed_out(operation, now);
    }
    const transport::Wake wake = waiter.wait(poll, watch, std::min({limit, next_look(now), blocked.next_look()}));
    if (wake == transport::Wake::ready) {
      // What it was woken for may be the first of many steps.
      drive_until(operation, {spins_, later_yields});
    } else {
      attend();
    }
    blocked.look();
  }
  return operation.status();
}

// Drives, and looks for more to do, until `operation` is settled or `patience` is at its end. True: it is settled. The
// lock is kept from look to look, until somebody wants it or an op is done.
bool EngineCore::drive_until(Operation& operation, Patience patience) {
  std::vector<std::shared_ptr<Operation>> ended;
  for (bool patient = true; patient;) {
    if (operation.settled()) return true;
    if (!lock_.try_lock()) {
      // Another caller drives for all, or somebody changes something.
      patient = patience.pause();
      continue;
    }
    {
      const std::lock_guard lock(lock_, std::adopt_lock);
      while (finished_.empty() && !operation.done() && !lock_.wanted()) {
        if (drive_groups(&operation)) {
          patience.renew();
        } else if (!(patient = patience.pause())) {
          break;
        }
      }
      ended.swap(finished_);
    }
    settle(ended);
    ended.clear();
  }
  return operation.settled();
}

// Does what there is to do, unless somebody else drives or wants the lock. True: something was done.
bool EngineCore::drive(const Operation* target) {
  if (!lock_.try_lock()) return false;
  std::vector<std::shared_ptr<Operation>> ended;
  bool progress = false;
  {
    const std::lock_guard lock(lock_, std::adopt_lock);
    progress = drive_groups(target);
    ended.swap(finished_);
  }
  settle(ended);
  return progress || !ended.empty();
}

// Steps all groups until none has anything to do, somebody wants the lock, or `target` is done. True: there was
// something.
bool EngineCore::drive_groups(const Operation* target) {
  bool progress = false;
  for (bool again = true; again;) {
    again = false;
    for (const auto& group : groups_) {
      while (group->open() && group->step()) {
        again = progress = true;
        const bool wanted = lock_.wanted();
        if (!wanted && (target == nullptr || !target->done())) continue;
        if (wanted) lock_.leave_work();
        group->flush();
        return true;
      }
      group->flush();
    }
    // One group's step opens nothing in another: a second pass is only for what peers have done meanwhile.
    again = again && groups_.size() > 1;
  }
  return progress;
}

void EngineCore::settle(const std::vector<std::shared_ptr<Operation>>& operations) {
  if (operations.empty()) return;
  {
    const InCallbacks callbacks;
    for (const auto& operation : operations) operation->settle();
  }
  open_ops_.fetch_sub(static_cast<std::int64_t>(operations.size()), std::memory_order_seq_cst);
  // Other threads of this process may sleep until one of these is done.
  life_->doorbell().ring();
}

// After a change under the lock, which anything may follow from.
void EngineCore::changed() {
  if (!control_->is_current()) {
    std::vector<std::shared_ptr<Operation>> ended;
    {
      const std::lock_guard lock(lock_);
      ended.swap(finished_);
    }
    settle(ended);
  }
  look_again();
}

// Whoever sleeps while ops are open, or was turned away at the lock, must look at the state once more.
void EngineCore::look_again() {
  life_->doorbell().ring();
  if (open_ops_.load(std::memory_order_seq_cst) > 0 && drivers_.load(std::memory_order_seq_cst) == 0) {
    wake_engine_thread();
  }
}

void EngineCore::wake_engine_thread() {
  {
    const std::lock_guard lock(idle_mutex_);
    if (woken_) return;
    woken_ = true;
  }
  idle_.notify_one();
}

std::vector<const transport::PeerLife*> EngineCore::watched() {
  const std::lock_guard lock(lock_);
  std::vector<const transport::PeerLife*> lives;
  for (const auto& group : groups_) {
    for (const transport::PeerLife* life : group->watched()) {
      if (std::find(lives.begin(), lives.end(), life) == lives.end()) lives.push_back(life);
    }
  }
  return lives;
}

EngineCore::Clock::time_point EngineCore::next_look(Clock::time_point now) {
  const std::lock_guard lock(lock_);
  Clock::time_point next = now + longest_look;
  for (const auto& group : groups_) next = std::min(next, group->next_deadline());
  return next;
}

// What a driver does that found nothing to do for a while.
void EngineCore::attend() {
  std::vector<Slot> absent;
  change([&] {
    const Clock::time_point now = Clock::now();
    look_for_verdicts();
    for (const auto& group : groups_) {
      if (!group->open()) continue;
      group->look_for_deaths();
      group->note_waiting(now);
      group->look_for_deadlines(now);
      group->flush();
      if (coordinated()) {
        for (const Slot slot : group->waiting_without_address(now, absence_patience)) absent.push_back(slot);
      }
    }
    if (coordinated()) look_for_orphanhood(now);
  });
  for (const Slot slot : absent) {
    control_->post([this, slot] {
      const WorkerId worker = change([&] { return worker_of(slot); });
      carry_out(machine_->waits_for(worker, "an op waits for it and it has not come"));
    });
  }
}

void EngineCore::run_engine_thread() {
  ::pthread_setname_np(::pthread_self(), "closeranks-eng");
  transport::Waiter waiter(life_->doorbell(), transport::sleep_at_once);
  const auto nothing_open = [this] { return open_ops_.load(std::memory_order_seq_cst) == 0; };
  const auto relieved = [&] {
    return stopping_.load(std::memory_order_seq_cst) || drivers_.load(std::memory_order_seq_cst) > 0;
  };
  const auto poll = [&] {
    if (relieved()) return true;
    while (drive(nullptr) && !relieved()) {
    }
    return nothing_open();
  };
  std::vector<const transport::PeerLife*> lives;
  const auto watch = [&]() -> std::span<const transport::PeerLife* const> {
    lives = watched();
    return lives;
  };
  while (!stopping_.load(std::memory_order_seq_cst)) {
    {
      std::unique_lock idle(idle_mutex_);
      idle_.wait_for(idle, longest_look, [this] { return woken_; });
      woken_ = false;
    }
    engine_thread_active_.store(true, std::memory_order_seq_cst);
    while (!relieved() && !nothing_open()) {
      const transport::Wake wake = waiter.wait(poll, watch, next_look(Clock::now()));
      if (wake != transport::Wake::ready) attend();
    }
    engine_thread_active_.store(false, std::memory_order_seq_cst);
  }
}

void EngineCore::finished(std::shared_ptr<Operation> operation) { finished_.push_back(std::move(operation)); }

void EngineCore::repaired(membership::OpRepaired event) {
  if (link_) static_cast<void>(link_->send(event));  // for the event log only: a lost line is no fault
}

void EngineCore::suspect(const Peer& peer, std::string reason) {
  control_->post(
      [this, worker = peer.worker, reason = std::move(reason)] { carry_out(machine_->suspect(worker, reason, true)); });
}

}  // namespace closeranks::communicator
