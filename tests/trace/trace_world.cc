#include "trace_world.h"

#include <algorithm>
#include <csignal>

namespace closeranks::trace {

using recorder::Event;
using recorder::EventKind;
using recorder::GroupTrace;
using recorder::OpCall;
using recorder::OpTrace;
using recorder::Role;
using recorder::WorkerTrace;

namespace {

constexpr int status_of(int exit) { return exit << 8; }

// Wrong in the way that the fault says.
OpCall spoil(OpCall call, SimulatedFault fault) {
  switch (fault) {
    case SimulatedFault::wrong_op:
      call.kind = call.kind == "reduce_scatter" ? "all_gather" : "reduce_scatter";
      call.reduce.clear();
      call.root.reset();
      break;
    case SimulatedFault::wrong_shape:
      call.shape = "[777, 3]";
      break;
    case SimulatedFault::wrong_dtype:
      call.dtype = "float64";
      break;
    case SimulatedFault::wrong_root:
      call.root = Rank(call.root->value() == 0 ? 1 : 0);
      break;
    default:
      break;
  }
  return call;
}

}  // namespace

World::World(const Plan& plan, Random& random) : plan_(plan), random_(random), workers_(plan.slots) {
  agent_.role = Role::agent;
  agent_.file = "agent";
  agent_.host = "host0";
  for (std::uint32_t slot = 0; slot < plan.slots; ++slot) make_worker(Slot(slot));
}

void World::make_worker(Slot slot) {
  Worker& made = worker(slot);
  WorkerTrace& trace = made.trace;
  const std::vector<GroupTrace> before = trace.groups;
  trace = {};
  trace.slot = slot;
  trace.worker = WorkerId(next_worker_++);
  trace.file = "worker-" + std::to_string(trace.worker->value());
  trace.host = "host" + std::to_string(slot.value() / 4);
  trace.pid = 1000 + static_cast<std::uint32_t>(trace.worker->value());
  trace.slots_in_job = plan_.slots;
  made.next.resize(plan_.groups.size());
  for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
    GroupTrace one;
    one.name = group == 0 ? "default_pg" : "group_" + std::to_string(group);
    one.key = 100 + group;
    one.members = plan_.groups[group];
    one.entered = one.completed = made.next[group];
    trace.groups.push_back(one);
  }
  if (before.empty()) at(random_.between(0, 5) * ms, [this, slot] { begin_step(slot); });
}

void World::at(std::int64_t time, std::function<void()> action) { queue_.push({time, order_++, std::move(action)}); }

void World::note(WorkerTrace& to, EventKind kind, const std::function<void(Event&)>& fill) {
  Event event;
  event.kind = kind;
  event.at_ns = now_;
  if (fill) fill(event);
  to.events.push_back(event);
  to.last_written_ns = now_;
}

bool World::is_member(std::size_t group, Slot slot) const {
  const auto& members = plan_.groups[group];
  return std::find(members.begin(), members.end(), slot) != members.end();
}

std::vector<Slot> World::present(std::size_t group) const {
  std::vector<Slot> slots;
  for (const Slot slot : plan_.groups[group]) {
    if (!vacant_.contains(slot)) slots.push_back(slot);
  }
  return slots;
}

std::vector<Slot> World::missing(std::size_t group, std::uint64_t sequence) {
  std::vector<Slot> slots = present(group);
  std::erase_if(slots, [&](Slot slot) { return ops_[{group, sequence}].arrivals.contains(slot); });
  return slots;
}

// Some other worker's file, or the agent's.
WorkerTrace& World::watcher_of(Slot slot) {
  if (plan_.has_agent) return agent_;
  for (Worker& one : workers_) {
    if (!one.gone && !one.frozen && one.trace.slot != slot) return one.trace;
  }
  return agent_;
}

void World::begin_step(Slot slot) {
  Worker& self = worker(slot);
  if (self.gone || self.frozen) return;
  if (plan_.repaired == slot && self.step == plan_.repaired_step && former_.empty() && !vacant_.contains(slot)) {
    replace(slot);
    if (vacant_.contains(slot)) return;
  }
  if (self.step == plan_.steps) {
    leave(slot, 0, "");
    return;
  }
  self.item = 0;
  if (plan_.has_steps) note(self.trace, EventKind::step, [&](Event& event) { event.number = self.step; });
  if (plan_.has_loader) {
    note(self.trace, EventKind::loading, [](Event& event) { event.number = 1; });
    const bool starved =
        plan_.fault == SimulatedFault::data_starved && plan_.culprit == slot && self.step == plan_.fault_step;
    if (starved && !faulted_) {
      faulted_ = true;
      freeze(slot);
      return;
    }
    at(now_ + random_.between(1, 5) * ms, [this, slot] {
      Worker& later = worker(slot);
      if (later.gone) return;
      note(later.trace, EventKind::loading, [](Event& event) { event.number = 0; });
      next_item(slot);
    });
    return;
  }
  next_item(slot);
}

void World::next_item(Slot slot) {
  const std::int64_t late = plan_.slow == slot && random_.chance(30) ? random_.between(50, 300) * ms : 0;
  at(now_ + random_.between(100, 9'000) * 1'000 + late, [this, slot] { do_item(slot); });
}

void World::do_item(Slot slot) {
  Worker& self = worker(slot);
  if (self.gone || self.frozen) return;
  if (self.item == plan_.items.size()) {
    ++self.step;
    begin_step(slot);
    return;
  }
  Item item = plan_.items[self.item];
  const bool here = plan_.culprit == slot && self.step == plan_.fault_step && self.item == plan_.fault_item;
  if (here && !faulted_ && plan_.fault != SimulatedFault::none && plan_.fault != SimulatedFault::data_starved) {
    faulted_ = true;
    if (strike(slot, item)) return;
  } else if (self.swapped.has_value() && *self.swapped + 1 == self.item) {
    item = plan_.items[*self.swapped];
    self.swapped.reset();
  }
  ++self.item;
  if (!is_member(item.group, slot)) {
    do_item(slot);
    return;
  }
  arrive(slot, item);
}

bool World::strike(Slot slot, Item& item) {
  Worker& self = worker(slot);
  const auto inside = [&] {
    if (plan_.inside) arrive(slot, item);
  };
  switch (plan_.fault) {
    case SimulatedFault::killed:
    case SimulatedFault::out_of_memory: {
      self.frozen = true;  // the op cannot end with it
      inside();
      const bool memory = plan_.fault == SimulatedFault::out_of_memory;
      leave(slot, memory || random_.chance(50) ? SIGKILL : SIGSEGV, "");
      if (memory) {
        WorkerTrace& watcher = watcher_of(slot);
        const bool known = random_.chance(50);
        note(watcher, EventKind::out_of_memory, [&](Event& event) {
          event.number = 1;
          if (known) event.slots = {slot};
        });
      }
      return true;
    }
    case SimulatedFault::exception:
      leave(slot, status_of(1), "ValueError: no such key");
      return true;
    case SimulatedFault::status:
      leave(slot, status_of(3), "");
      return true;
    case SimulatedFault::stopped:
      self.frozen = true;
      inside();
      freeze(slot);
      return true;
    case SimulatedFault::stuck:
    case SimulatedFault::uninterruptible:
      freeze(slot);
      return true;
    case SimulatedFault::left_early:
      leave(slot, 0, "");
      return true;
    case SimulatedFault::missing_call:
      ++self.item;
      next_item(slot);
      return true;
    case SimulatedFault::wrong_order:
      self.swapped = self.item;
      item = plan_.items[self.item + 1];
      return false;
    case SimulatedFault::nan:
      self.poisoned = true;
      return false;
    default:
      item.call = spoil(item.call, plan_.fault);
      return false;
  }
}

void World::arrive(Slot slot, const Item& item) {
  Worker& self = worker(slot);
  const std::size_t group = item.group;
  const std::uint64_t sequence = self.next[group]++;
  GroupTrace& known = self.trace.groups[group];
  known.entered = sequence + 1;
  OpTrace op;
  op.group = static_cast<std::uint32_t>(group);
  op.sequence = sequence;
  op.call = item.call;
  op.issued_ns = op.entered_ns = now_;
  known.current = op;
  self.in = {group, sequence};
  self.trace.last_written_ns = now_;
  if (self.poisoned && item.call.kind == "all_reduce") {
    note(self.trace, EventKind::not_finite, [&](Event& event) {
      event.group = static_cast<std::uint32_t>(group);
      event.number = sequence;
      event.slots = {slot};
      event.detail = "NaN at element 17";
    });
  }
  Op& all = ops_[{group, sequence}];
  all.arrivals[slot] = {now_, item.call};
  const auto still = [this, slot, group, sequence] {
    const Worker& later = worker(slot);
    return !later.gone && !later.frozen && later.in == std::pair(group, sequence);
  };
  if (plan_.reports_waits) {
    at(now_ + 250 * ms, [this, slot, still] {
      if (still()) tell_wait(slot, EventKind::waiting);
    });
  }
  if (plan_.timeout.has_value()) {
    at(now_ + *plan_.timeout, [this, slot, still] {
      if (!still()) return;
      tell_wait(slot, EventKind::timeout);
      fail(slot, "Timeout: not all members came");
    });
  }
  const auto gone = [this](Slot member) { return worker(member).gone; };
  const auto members = present(group);
  if (std::any_of(members.begin(), members.end(), gone)) {
    at(now_ + ms, [this, slot, still] {
      if (still()) fail(slot, "PeerLost: a member of the group is gone");
    });
    return;
  }
  settle(group, sequence);
}

void World::tell_wait(Slot slot, EventKind kind) {
  Worker& self = worker(slot);
  const auto [group, sequence] = *self.in;
  const auto slots = missing(group, sequence);
  note(self.trace, kind, [&](Event& event) {
    event.group = static_cast<std::uint32_t>(group);
    event.number = sequence;
    event.slots = slots;
  });
}

void World::settle(std::size_t group, std::uint64_t sequence) {
  Op& op = ops_[{group, sequence}];
  const OpCall& first = op.arrivals.begin()->second.call;
  op.mismatched = std::any_of(op.arrivals.begin(), op.arrivals.end(),
                              [&](const auto& arrival) { return !(arrival.second.call == first); });
  if (op.mismatched) {
    if (!plan_.finds_mismatches) return;
    for (const auto& [slot, arrival] : op.arrivals) {
      if (worker(slot).in == std::pair(group, sequence)) fail(slot, "Mismatch: the members' calls differ");
    }
    return;
  }
  const auto holds_up = [this](Slot slot) { return worker(slot).frozen || worker(slot).gone; };
  const auto members = present(group);
  if (op.ended || !missing(group, sequence).empty() || std::any_of(members.begin(), members.end(), holds_up)) return;
  complete(group, sequence);
}

void World::complete(std::size_t group, std::uint64_t sequence) {
  Op& op = ops_[{group, sequence}];
  op.ended = true;
  std::pair<std::int64_t, Slot> last{0, Slot(0)};
  bool poisoned = false;
  for (const auto& [slot, arrival] : op.arrivals) {
    last = std::max(last, {arrival.at, slot});
    poisoned = poisoned || worker(slot).poisoned;
  }
  for (const Slot slot : present(group)) {
    Worker& self = worker(slot);
    GroupTrace& known = self.trace.groups[group];
    OpTrace done = *known.current;
    done.finished_ns = now_ + 20'000;
    done.waited_ns = now_ - *done.entered_ns;
    done.last_arrival = last.second;
    if (present(group).size() < plan_.groups[group].size()) done.contributors = present(group);
    self.trace.ops.push_back(done);
    known.current.reset();
    known.completed = sequence + 1;
    self.in.reset();
    const bool spreads = poisoned && done.call.kind == "all_reduce";
    if (spreads && self.poisoned && slot == plan_.culprit && random_.chance(20)) {
      at(now_ + ms, [this, slot] { leave(slot, status_of(1), "FloatingPointError: loss is nan"); });
      continue;
    }
    self.poisoned = self.poisoned || spreads;
    at(now_ + 30'000, [this, slot] { next_item(slot); });
  }
}

void World::fail(Slot slot, const std::string& why) {
  Worker& self = worker(slot);
  if (!self.in.has_value()) return;
  GroupTrace& known = self.trace.groups[self.in->first];
  OpTrace failed = *known.current;
  failed.finished_ns = now_;
  failed.failure = why;
  self.trace.ops.push_back(failed);
  known.current.reset();
  self.in.reset();
  at(now_ + random_.between(1, 50) * ms, [this, slot, why] {
    const bool named = random_.chance(70);
    leave(slot, status_of(1), named ? "closeranks." + why : "RuntimeError: training failed");
  });
}

void World::lose(Slot slot) {
  for (std::size_t group = 0; group < plan_.groups.size(); ++group) {
    if (!is_member(group, slot)) continue;
    for (const Slot peer : plan_.groups[group]) {
      Worker& other = worker(peer);
      if (peer == slot || other.gone || other.frozen || !other.in.has_value() || other.in->first != group) continue;
      const auto in = other.in;
      at(now_ + random_.between(1, 5) * ms, [this, slot, peer, in] {
        Worker& later = worker(peer);
        if (later.gone || later.frozen || later.in != in) return;
        note(later.trace, EventKind::peer_lost, [&](Event& event) {
          event.slots = {slot};
          event.worker = worker(slot).trace.worker;
          event.detail = "its life word says that its owner died";
        });
        fail(peer, "PeerLost: slot " + std::to_string(slot.value()) + " is gone");
      });
    }
  }
}

void World::leave(Slot slot, int wait_status, const std::string& exception) {
  Worker& self = worker(slot);
  if (self.gone) return;
  self.gone = true;
  const bool by_signal = (wait_status & 0x7f) != 0;
  if (!exception.empty()) {
    note(self.trace, EventKind::exception, [&](Event& event) { event.detail = exception; });
  }
  // A recorder may close its file on any way out that is not a kill.
  if (!by_signal && (wait_status == 0 || random_.chance(50))) {
    self.trace.ended_in_order = true;
    note(self.trace, EventKind::ended,
         [&](Event& event) { event.detail = "exit status " + std::to_string(wait_status >> 8); });
  }
  self.trace.running = false;
  const std::int64_t reaped_ns = now_ + random_.between(1, 200) * ms;
  if (plan_.has_agent) {
    at(reaped_ns, [this, slot, wait_status, id = self.trace.worker] {
      note(agent_, EventKind::worker_exited, [&](Event& event) {
        event.slots = {slot};
        event.worker = id;
        event.number = static_cast<std::uint64_t>(wait_status);
      });
    });
  }
  at(now_ + random_.between(0, 30) * ms, [this, slot] { lose(slot); });
}

void World::freeze(Slot slot) {
  worker(slot).frozen = true;
  const SimulatedFault fault = plan_.fault;
  const std::string state = fault == SimulatedFault::stopped           ? "stopped (T)"
                            : fault == SimulatedFault::uninterruptible ? "in the kernel: fuse_simple_request"
                                                                       : "";
  if (!state.empty()) {
    at(now_ + 500 * ms, [this, slot, state] {
      note(watcher_of(slot), EventKind::peer_state, [&](Event& event) {
        event.slots = {slot};
        event.detail = state;
      });
    });
  } else if (random_.chance(50)) {
    at(now_ + random_.between(1'000, 5'000) * ms, [this, slot] {
      note(watcher_of(slot), EventKind::stack, [&](Event& event) {
        event.slots = {slot};
        event.stack = "File \"train.py\", line 7 in load\nFile \"train.py\", line 9 in <module>\n";
      });
    });
  }
  if (!plan_.fence.has_value() || fault == SimulatedFault::data_starved) return;
  at(now_ + *plan_.fence, [this, slot, state] {
    note(agent_, EventKind::excluded, [&](Event& event) {
      event.slots = {slot};
      event.worker = worker(slot).trace.worker;
      event.detail = state.starts_with("stopped") ? "stopped for 5.0 s"
                     : !state.empty()             ? state
                                      : "has not entered all_reduce #3 of group 'default_pg', in which others wait";
    });
    leave(slot, SIGKILL, "");
  });
}

void World::replace(Slot slot) {
  Worker& self = worker(slot);
  self.trace.running = false;
  if (plan_.replaced) former_.push_back(self.trace);
  if (plan_.has_agent) {
    note(agent_, EventKind::worker_exited, [&](Event& event) {
      event.slots = {slot};
      event.worker = self.trace.worker;
      event.number = SIGKILL;
    });
  } else {
    note(watcher_of(slot), EventKind::peer_lost, [&](Event& event) {
      event.slots = {slot};
      event.worker = self.trace.worker;
    });
  }
  if (plan_.replaced) {
    make_worker(slot);
    return;
  }
  vacant_.insert(slot);
  self.gone = true;
  std::vector<std::pair<std::size_t, std::uint64_t>> open;
  for (const auto& [key, op] : ops_) {
    if (!op.ended && !op.arrivals.empty()) open.push_back(key);
  }
  for (const auto& [group, sequence] : open) settle(group, sequence);
}

void World::end_by_hand() {
  const int signal = random_.chance(50) ? SIGINT : SIGTERM;
  for (std::uint32_t slot = 0; slot < plan_.slots; ++slot) {
    Worker& one = workers_[slot];
    if (one.gone) continue;
    const bool hard = one.frozen && plan_.fault != SimulatedFault::stuck && plan_.fault != SimulatedFault::data_starved;
    at(now_ + (hard ? 10'000 * ms : random_.between(1, 20) * ms),
       [this, slot, hard, signal] { leave(Slot(slot), hard ? SIGKILL : signal, ""); });
  }
}

recorder::JobTrace World::run() {
  bool ended_by_hand = false;
  const auto somebody_lives = [this] {
    return std::any_of(workers_.begin(), workers_.end(), [](const Worker& one) { return !one.gone; });
  };
  while (true) {
    while (!queue_.empty() && (!plan_.read_at.has_value() || queue_.top().time <= *plan_.read_at)) {
      const Pending next = queue_.top();
      queue_.pop();
      now_ = next.time;
      next.action();
    }
    if (plan_.read_at.has_value() || ended_by_hand || !somebody_lives()) break;
    now_ += plan_.watched;
    if (!plan_.interrupted) break;
    ended_by_hand = true;
    end_by_hand();
  }
  if (plan_.read_at.has_value()) now_ = std::max(now_, *plan_.read_at);
  recorder::JobTrace job;
  for (Worker& one : workers_) {
    if (!one.gone) one.trace.running = true;
    job.workers.push_back(one.trace);
  }
  job.workers.insert(job.workers.end(), former_.begin(), former_.end());
  if (plan_.has_agent || !agent_.events.empty()) job.workers.push_back(agent_);
  job.read_ns = now_;
  return job;
}

}  // namespace closeranks::trace
