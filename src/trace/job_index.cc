#include "trace/job_index.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace closeranks::trace {

using recorder::Event;
using recorder::EventKind;
using recorder::GroupTrace;
using recorder::OpTrace;
using recorder::Role;
using recorder::WorkerTrace;

namespace {

std::string identity_of(const GroupTrace& group) {
  return group.key != 0 ? "key " + std::to_string(group.key) : "name " + group.name;
}

// A failure that was followed by a success is got over.
const OpTrace* pending_of(const std::vector<const OpTrace*>& ops) {
  const OpTrace* pending = nullptr;
  for (const OpTrace* op : ops) {
    const bool succeeded = op->finished_ns.has_value() && op->failure.empty();
    if (succeeded) {
      pending = nullptr;
    } else if (pending == nullptr && (!op->failure.empty() || !op->finished_ns.has_value())) {
      pending = op;
    }
  }
  return pending;
}

Standing standing_of(const WorkerTrace& worker, std::uint32_t index) {
  Standing standing;
  standing.worker = &worker;
  standing.group = &worker.groups[index];
  std::vector<const OpTrace*> point_to_point;
  const auto add = [&](const OpTrace& op) {
    (is_point_to_point(op.call) ? point_to_point : standing.ops).push_back(&op);
  };
  for (const OpTrace& op : worker.ops) {
    if (op.group == index) add(op);
  }
  if (standing.group->current.has_value()) add(*standing.group->current);
  // The current op may have a record as well: it ended as the file was read. The record says more.
  const auto before = [](const OpTrace* a, const OpTrace* b) { return a->sequence < b->sequence; };
  const auto same = [](const OpTrace* a, const OpTrace* b) { return a->sequence == b->sequence; };
  std::stable_sort(standing.ops.begin(), standing.ops.end(), before);
  standing.ops.erase(std::unique(standing.ops.begin(), standing.ops.end(), same), standing.ops.end());
  standing.pending = pending_of(standing.ops);
  // Sends and receives end in any order: only the newest says where the worker was.
  if (!point_to_point.empty() && pending_of({point_to_point.back()}) != nullptr) {
    standing.point_to_point = point_to_point.back();
  }
  return standing;
}

}  // namespace

bool is_point_to_point(const recorder::OpCall& call) { return call.kind == "send" || call.kind == "recv"; }

std::optional<std::int64_t> arrival_ns(const OpTrace& op) {
  return op.issued_ns.has_value() ? op.issued_ns : op.entered_ns;
}

bool Standing::arrived(std::uint64_t sequence) const { return next() > sequence; }

const OpTrace* Standing::op(std::uint64_t sequence) const {
  const auto found = std::lower_bound(ops.begin(), ops.end(), sequence,
                                      [](const OpTrace* one, std::uint64_t number) { return one->sequence < number; });
  return found != ops.end() && (*found)->sequence == sequence ? *found : nullptr;
}

std::uint64_t Standing::next() const {
  const std::uint64_t recorded = ops.empty() ? 0 : ops.back()->sequence + 1;
  return std::max(group->entered, recorded);
}

JobIndex::JobIndex(const recorder::JobTrace& job) {
  std::set<Slot> slots;
  latest_ns_ = job.read_ns;
  for (const WorkerTrace& worker : job.workers) {
    latest_ns_ = std::max(latest_ns_, worker.last_written_ns);
    for (std::uint32_t slot = 0; slot < worker.slots_in_job; ++slot) slots.insert(Slot(slot));
    for (const GroupTrace& group : worker.groups) slots.insert(group.members.begin(), group.members.end());
    for (const Event& event : worker.events) {
      events_.push_back({&event, &worker});
      latest_ns_ = std::max(latest_ns_, event.at_ns);
    }
    if (worker.role != Role::worker) continue;
    workers_.push_back(&worker);
    if (!worker.slot.has_value()) continue;
    slots.insert(*worker.slot);
    const WorkerTrace*& last = last_[*worker.slot];
    const auto age = [](const WorkerTrace& one) {
      return std::tuple(one.worker.value_or(WorkerId(0)), one.last_written_ns);
    };
    if (last == nullptr || age(*last) < age(worker)) last = &worker;
  }
  slots_.assign(slots.begin(), slots.end());
  std::stable_sort(events_.begin(), events_.end(),
                   [](const SeenEvent& a, const SeenEvent& b) { return a.event->at_ns < b.event->at_ns; });
  add_groups();
}

void JobIndex::add_groups() {
  std::map<std::string, std::size_t> places;
  for (const auto& [slot, worker] : last_) {
    for (std::uint32_t index = 0; index < worker->groups.size(); ++index) {
      const GroupTrace& group = worker->groups[index];
      const auto [place, is_new] = places.try_emplace(identity_of(group), groups_.size());
      if (is_new) groups_.push_back({group.name, {}, {}});
      GroupIndex& all = groups_[place->second];
      if (group.members.size() > all.members.size()) all.members = group.members;
      all.standing[slot] = standing_of(*worker, index);
    }
  }
}

const WorkerTrace* JobIndex::last(Slot slot) const {
  const auto found = last_.find(slot);
  return found == last_.end() ? nullptr : found->second;
}

bool JobIndex::is_last(const WorkerTrace& worker) const {
  return worker.slot.has_value() && last(*worker.slot) == &worker;
}

std::vector<SeenEvent> JobIndex::events_about(Slot slot) const {
  const WorkerTrace* worker = last(slot);
  std::vector<SeenEvent> found;
  for (const SeenEvent& seen : events_) {
    const Event& event = *seen.event;
    if (worker != nullptr && seen.by == worker && event.slots.empty()) {
      found.push_back(seen);
      continue;
    }
    if (event.slots.empty() || event.slots.front() != slot) continue;
    // What was said of an earlier worker of the slot is not about this one.
    const bool other =
        event.worker.has_value() && worker != nullptr && worker->worker.has_value() && *event.worker != *worker->worker;
    if (!other) found.push_back(seen);
  }
  return found;
}

bool JobIndex::is_whole(const WorkerTrace& worker) { return worker.remarks.empty() && worker.damaged == 0; }

std::int64_t JobIndex::last_action_ns(const WorkerTrace& worker) {
  std::int64_t last = 0;
  for (const OpTrace& op : worker.ops) last = std::max({last, op.finished_ns.value_or(0), arrival_ns(op).value_or(0)});
  for (const Event& event : worker.events) {
    const bool own = event.slots.empty() || (worker.slot.has_value() && event.slots.front() == *worker.slot);
    if (own) last = std::max(last, event.at_ns);
  }
  for (const GroupTrace& group : worker.groups) {
    if (group.current.has_value()) last = std::max(last, arrival_ns(*group.current).value_or(0));
  }
  return last;
}

}  // namespace closeranks::trace
