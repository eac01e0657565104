#include "trace/waits.h"

#include <algorithm>
#include <limits>
#include <set>

#include "trace/deaths.h"
#include "trace/history.h"
#include "trace/sentences.h"

namespace closeranks::trace {

using recorder::Event;
using recorder::EventKind;
using recorder::GroupTrace;
using recorder::OpTrace;
using recorder::WorkerTrace;

namespace {

bool contains(const std::vector<Slot>& slots, Slot slot) {
  return std::find(slots.begin(), slots.end(), slot) != slots.end();
}

// What observers last saw of it, as a kind: stopped, uninterruptible, or none of them.
std::optional<std::pair<Kind, std::string>> state_of(const JobIndex& index, Slot slot) {
  std::optional<std::pair<Kind, std::string>> state;
  for (const SeenEvent& seen : index.events_about(slot)) {
    if (seen.event->kind != EventKind::peer_state) continue;
    const std::string& detail = seen.event->detail;
    if (detail.starts_with("stopped")) {
      state = {Kind::stopped, detail};
    } else if (detail.starts_with("in the kernel")) {
      state = {Kind::uninterruptible, detail};
    } else {
      state.reset();
    }
  }
  return state;
}

// It lives, as far as is known, and has not finished any op.
bool starts_up(const JobIndex& index, Slot slot) {
  const WorkerTrace* worker = index.last(slot);
  if (worker == nullptr || state_of(index, slot).has_value()) return false;
  const auto done = [](const GroupTrace& group) { return group.completed > 0; };
  const auto finished = [](const OpTrace& op) { return op.finished_ns.has_value(); };
  return std::none_of(worker->groups.begin(), worker->groups.end(), done) &&
         std::none_of(worker->ops.begin(), worker->ops.end(), finished);
}

bool is_loading(const WorkerTrace& worker) {
  bool loading = false;
  for (const Event& event : worker.events) {
    if (event.kind == EventKind::loading) loading = event.number == 1;
  }
  return loading;
}

bool has_left(const WorkerTrace& worker) {
  const auto is_error = [](const Event& event) {
    return event.kind == EventKind::exception ||
           (event.kind == EventKind::ended &&
            (exit_status(event.detail) != 0 || event.detail.find("exception") != std::string::npos));
  };
  return worker.ended_in_order && std::none_of(worker.events.begin(), worker.events.end(), is_error);
}

// It has destroyed the group, its process goes on.
bool has_left(const GroupIndex& group, Slot slot) {
  const auto found = group.standing.find(slot);
  return found != group.standing.end() && found->second.group->ended_ns.has_value();
}

// The others have completed an op that this file has not even entered: a later worker of the slot has, without a file.
bool is_outdated(const GroupIndex& group, const Standing& standing) {
  return std::any_of(group.standing.begin(), group.standing.end(), [&](const auto& other) {
    return std::any_of(other.second.ops.begin(), other.second.ops.end(), [&](const OpTrace* op) {
      return op->sequence >= standing.next() && op->finished_ns.has_value() && op->failure.empty();
    });
  });
}

// "finished all_reduce #11 of group 'world'", what the worker last did.
std::string last_action(const WorkerTrace& worker) {
  const OpTrace* last = nullptr;
  for (const OpTrace& op : worker.ops) {
    if (op.finished_ns.has_value() && (last == nullptr || *op.finished_ns > *last->finished_ns)) last = &op;
  }
  if (last == nullptr || last->group >= worker.groups.size()) return "";
  return "finished " + name_op(last->call.kind, last->sequence, worker.groups[last->group].name);
}

}  // namespace

Waits::Waits(const JobIndex& index, const VerdictOptions& options)
    : index_(index), options_(options), vacant_(vacant_slots(index)) {
  for (const GroupIndex& group : index.groups()) {
    for (const auto& [slot, standing] : group.standing) {
      if (contains(vacant_, slot)) continue;
      if (standing.pending != nullptr) add(slot, &group, *standing.pending, group.name);
      if (standing.point_to_point != nullptr) add(slot, &group, *standing.point_to_point, group.name);
    }
  }
  // What began after the first had given up is a consequence of that.
  std::int64_t first_failure_ns = std::numeric_limits<std::int64_t>::max();
  for (const Wait& wait : waits_) {
    if (!wait.op->failure.empty() && wait.until_ns - wait.since_ns >= options_.patience_ns) {
      first_failure_ns = std::min(first_failure_ns, wait.until_ns);
    }
  }
  std::erase_if(waits_, [&](const Wait& wait) { return wait.since_ns > first_failure_ns; });
}

void Waits::add(Slot slot, const GroupIndex* group, const OpTrace& op, const std::string& name) {
  Wait wait{slot, group, &op, name, arrival_ns(op).value_or(0), index_.latest_ns(), {}, {}};
  if (!op.failure.empty()) wait.until_ns = op.finished_ns.value_or(wait.until_ns);
  if (is_point_to_point(op.call)) {
    wait.group = nullptr;
    const auto peer = op.call.root;
    if (peer.has_value() && peer->value() < group->members.size()) {
      wait.for_slots.push_back(group->members[peer->value()]);
    }
  } else {
    add_missing(wait, *group);
  }
  waits_.push_back(std::move(wait));
}

void Waits::add_missing(Wait& wait, const GroupIndex& group) const {
  const std::uint64_t sequence = wait.op->sequence;
  // Who waited has read the others' words in shared memory: it knows of those, too, that left no file.
  std::optional<std::vector<Slot>> seen_missing;
  for (const auto& [slot, standing] : group.standing) {
    for (const Event& event : standing.worker->events) {
      if (event.kind != EventKind::waiting && event.kind != EventKind::timeout) continue;
      if (event.number != sequence || !event.group.has_value() || *event.group >= standing.worker->groups.size())
        continue;
      if (&standing.worker->groups[*event.group] == standing.group) seen_missing = event.slots;
    }
  }
  for (const Slot member : group.members) {
    if (member == wait.slot || contains(vacant_, member)) continue;
    const auto found = group.standing.find(member);
    const WorkerTrace* worker = index_.last(member);
    const bool tells = found != group.standing.end() ? !is_outdated(group, found->second)
                                                     : worker != nullptr && JobIndex::is_whole(*worker);
    if (!tells) {
      if (seen_missing.has_value() && !contains(*seen_missing, member)) continue;
      wait.unknown.push_back(member);
      continue;
    }
    const OpTrace* theirs = found == group.standing.end() ? nullptr : found->second.op(sequence);
    // It came after this one had given up.
    const bool late = theirs != nullptr && !wait.op->failure.empty() &&
                      arrival_ns(*theirs).value_or(0) > wait.until_ns &&
                      wait.until_ns - wait.since_ns >= options_.patience_ns;
    if (found == group.standing.end() || late || !found->second.arrived(sequence)) wait.for_slots.push_back(member);
  }
}

bool Waits::is_long(const Wait& wait) const {
  if (!wait.op->failure.empty()) return true;
  const bool starts =
      std::any_of(wait.for_slots.begin(), wait.for_slots.end(), [this](Slot slot) { return starts_up(index_, slot); });
  const std::int64_t patience_ns =
      starts ? std::max(options_.patience_ns, options_.startup_patience_ns) : options_.patience_ns;
  return wait.until_ns - wait.since_ns >= patience_ns;
}

std::vector<const Wait*> Waits::waits_of(Slot slot) const {
  std::vector<const Wait*> found;
  for (const Wait& wait : waits_) {
    if (wait.slot == slot) found.push_back(&wait);
  }
  return found;
}

std::optional<Hang> Waits::find_hang() const {
  std::vector<Slot> reached;
  std::map<Slot, const Wait*> missed_in;  // who is reached, by which wait first
  std::set<Slot> silent;
  const Wait* first = nullptr;
  const Wait* in_flight = nullptr;
  for (const Wait& wait : waits_) {
    if (!is_long(wait)) continue;
    if (first == nullptr || wait.since_ns < first->since_ns) first = &wait;
    if (!contains(reached, wait.slot)) reached.push_back(wait.slot);
  }
  if (first == nullptr) return std::nullopt;
  for (std::size_t at = 0; at < reached.size(); ++at) {
    for (const Wait* wait : waits_of(reached[at])) {
      silent.insert(wait->unknown.begin(), wait->unknown.end());
      if (wait->for_slots.empty() && wait->unknown.empty()) in_flight = wait;
      for (const Slot slot : wait->for_slots) {
        missed_in.try_emplace(slot, wait);
        if (!contains(reached, slot)) reached.push_back(slot);
      }
    }
  }
  std::vector<Hang> sinks;
  for (const auto& [slot, wait] : missed_in) {
    if (!waits_of(slot).empty()) continue;
    Hang hang = judge_sink(slot);
    // The record of an op that it is in, or of why it ended, may be among those that are lost.
    const bool by_absence =
        hang.kind == Kind::stuck || hang.kind == Kind::left_early || hang.kind == Kind::data_starved;
    if (by_absence && (index_.last(slot) == nullptr || !JobIndex::is_whole(*index_.last(slot)))) {
      silent.insert(slot);
      continue;
    }
    hang.wait = wait;
    hang.at_ns = wait->since_ns;
    std::string how;
    if ((hang.kind == Kind::stuck || hang.kind == Kind::left_early) && has_gone_on(slot, *wait, how)) {
      hang.kind = Kind::missing_call;
      hang.evidence.insert(hang.evidence.begin(), how);
    }
    if (hang.kind == Kind::stuck && wait->group != nullptr && has_left(*wait->group, slot))
      hang.kind = Kind::left_early;
    sinks.push_back(std::move(hang));
  }
  // What the files say outright of one weighs more than that another has not come.
  const auto is_weak = [](const Hang& hang) { return hang.kind == Kind::stuck; };
  const bool strong = std::any_of(sinks.begin(), sinks.end(), [&](const Hang& hang) { return !is_weak(hang); });
  if (strong) std::erase_if(sinks, is_weak);
  if (sinks.size() > 1 && !strong) {
    // Of those that have not come, one that still does something is only late.
    const auto is_busy = [&](const Hang& hang) {
      const WorkerTrace* worker = index_.last(hang.culprits.front());
      return index_.latest_ns() - JobIndex::last_action_ns(*worker) < options_.patience_ns;
    };
    const auto busy = static_cast<std::size_t>(std::count_if(sinks.begin(), sinks.end(), is_busy));
    if (busy < sinks.size()) std::erase_if(sinks, is_busy);
  }
  if (strong || (!sinks.empty() && silent.empty())) {
    if (sinks.size() == 1 || strong) {
      return *std::min_element(sinks.begin(), sinks.end(),
                               [](const Hang& a, const Hang& b) { return a.at_ns < b.at_ns; });
    }
  }
  Hang unknown;
  unknown.wait = first;
  unknown.at_ns = first->since_ns;
  if (sinks.empty() && silent.empty()) {
    // Everybody is in the op: one that is stopped in the middle of it holds the others up.
    for (const Slot slot : reached) {
      const auto state = state_of(index_, slot);
      if (!state.has_value() || in_flight == nullptr) continue;
      unknown.kind = state->first;
      unknown.state = state->second;
      unknown.culprits.push_back(slot);
      unknown.wait = in_flight;
      return unknown;
    }
    if (in_flight == nullptr) {
      if (auto circle = find_circle(reached)) return circle;
    }
    return unknown;
  }
  for (const Hang& sink : sinks) unknown.culprits.push_back(sink.culprits.front());
  unknown.silent.assign(silent.begin(), silent.end());
  return unknown;
}

Hang Waits::judge_sink(Slot slot) const {
  Hang hang;
  hang.culprits.push_back(slot);
  hang.kind = Kind::stuck;
  const WorkerTrace* worker = index_.last(slot);
  if (worker == nullptr) return hang;
  for (const SeenEvent& seen : index_.events_about(slot)) {
    if (seen.event->kind == EventKind::stack && !seen.event->stack.empty()) hang.stack = seen.event->stack;
  }
  const auto state = state_of(index_, slot);
  const std::string last = last_action(*worker);
  if (!last.empty()) {
    hang.evidence.push_back("it last " + last + ", " +
                            duration(index_.latest_ns() - JobIndex::last_action_ns(*worker)) + " before the files end");
  }
  if (state.has_value()) {
    hang.kind = state->first;
    hang.state = state->second;
  } else if (has_left(*worker)) {
    hang.kind = Kind::left_early;
  } else if (is_loading(*worker)) {
    hang.kind = Kind::data_starved;
  }
  return hang;
}

bool Waits::has_gone_on(Slot slot, const Wait& wait, std::string& how) const {
  if (wait.group == nullptr) return false;
  const auto standing = wait.group->standing.find(slot);
  const auto skipped = find_skipped_call(*wait.group, slot);
  if (skipped.has_value()) {
    how = "in step " + std::to_string(skipped->step) + " it made " + count_of(skipped->made, "call") + " on group '" +
          wait.group_name + "' where the others made " + std::to_string(skipped->expected);
    return true;
  }
  const auto step = last_step(*index_.last(slot));
  const auto theirs = last_step(*index_.last(wait.slot));
  if (standing != wait.group->standing.end() && step.has_value() && theirs.has_value() && *step > *theirs) {
    how = "it is in step " + std::to_string(*step) + " already, without that call; the others wait in step " +
          std::to_string(*theirs);
    return true;
  }
  return false;
}

std::optional<Hang> Waits::find_circle(const std::vector<Slot>& reached) const {
  // Everybody who is reached waits for somebody who does: following the first of each ends in a circle.
  std::vector<const Wait*> path;
  Slot at = reached.front();
  while (true) {
    const auto again = std::find_if(path.begin(), path.end(), [&](const Wait* wait) { return wait->slot == at; });
    if (again != path.end()) {
      path.erase(path.begin(), again);
      break;
    }
    const auto waits = waits_of(at);
    if (waits.empty() || waits.front()->for_slots.empty()) return std::nullopt;
    path.push_back(waits.front());
    at = waits.front()->for_slots.front();
  }
  Hang hang;
  hang.kind = Kind::wrong_order;
  for (const Wait* wait : path) {
    hang.at_ns = std::max(hang.at_ns, wait->since_ns);
    hang.circle.push_back(wait->slot);
    hang.evidence.push_back(name_worker(index_, wait->slot) + " is in " +
                            name_op(wait->op->call.kind, wait->op->sequence, wait->group_name) +
                            at_its_line(*wait->op) + " and waits for " + name_slots(wait->for_slots));
  }
  hang.wait = path.front();
  decide_circle(hang);
  return hang;
}

void Waits::decide_circle(Hang& hang) const {
  // The two ops of the circle, and who of those that owe both has gone to which first.
  const Wait* one = nullptr;
  const Wait* other = nullptr;
  for (const Slot slot : hang.circle) {
    const Wait* wait = waits_of(slot).front();
    if (wait->group == nullptr) return;
    if (one == nullptr) {
      one = wait;
    } else if (wait->group != one->group) {
      if (other != nullptr && other->group != wait->group) return;  // three groups: nobody's order is the odd one
      other = wait;
    }
  }
  if (one == nullptr || other == nullptr) return;
  std::vector<Slot> to_one;
  std::vector<Slot> to_other;
  for (const Slot slot : one->group->members) {
    if (!contains(other->group->members, slot)) continue;
    for (const Wait* wait : waits_of(slot)) {
      if (wait->group == one->group && wait->op->sequence == one->op->sequence) to_one.push_back(slot);
      if (wait->group == other->group && wait->op->sequence == other->op->sequence) to_other.push_back(slot);
    }
  }
  if (to_one.empty() || to_other.empty()) return;
  const auto broke = [&](const std::vector<Slot>& slots) {
    std::size_t count = 0;
    for (const Slot slot : slots) count += breaks_its_own_order(*index_.last(slot)) ? 1 : 0;
    return count;
  };
  const std::size_t one_broke = broke(to_one);
  const std::size_t other_broke = broke(to_other);
  if (one_broke > 0 && other_broke == 0) {
    hang.culprits = to_one;
    hang.wait = one;
  } else if (other_broke > 0 && one_broke == 0) {
    hang.culprits = to_other;
    hang.wait = other;
  } else if (one_broke == 0 && to_one.size() != to_other.size()) {
    hang.culprits = to_one.size() < to_other.size() ? to_one : to_other;
    hang.wait = to_one.size() < to_other.size() ? one : other;
  } else {
    return;
  }
  hang.evidence.insert(hang.evidence.begin(),
                       one_broke + other_broke > 0
                           ? name_slots(hang.culprits) + " went the other way round in the rounds before"
                           : name_slots(to_one.size() < to_other.size() ? to_other : to_one) +
                                 " went the other way, and are the majority of those that owe both calls");
}

}  // namespace closeranks::trace
