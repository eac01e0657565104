#include "trace/perfetto.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "trace/job_index.h"
#include "trace/sentences.h"

namespace closeranks::trace {

using nlohmann::ordered_json;
using recorder::Event;
using recorder::EventKind;
using recorder::OpTrace;
using recorder::WorkerTrace;

namespace {

// All that has no slot: agents and observers.
constexpr std::uint32_t agents_track = 1'000'000;
constexpr std::int64_t shortest_slice_ns = 1'000;

const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::started:
      return "started";
    case EventKind::ended:
      return "ended";
    case EventKind::exception:
      return "exception";
    case EventKind::step:
      return "step";
    case EventKind::group_made:
      return "group made";
    case EventKind::group_ended:
      return "group ended";
    case EventKind::view:
      return "view";
    case EventKind::boundary:
      return "boundary";
    case EventKind::state_transfer:
      return "state transfer";
    case EventKind::mark:
      return "mark";
    case EventKind::loading:
      return "loading";
    case EventKind::waiting:
      return "waiting";
    case EventKind::peer_state:
      return "peer state";
    case EventKind::peer_lost:
      return "peer lost";
    case EventKind::worker_exited:
      return "worker exited";
    case EventKind::out_of_memory:
      return "out of memory";
    case EventKind::stack:
      return "stack";
    case EventKind::excluded:
      return "excluded";
    case EventKind::mismatch:
      return "mismatch";
    case EventKind::not_finite:
      return "not finite";
    case EventKind::timeout:
      return "timeout";
  }
  return "event";
}

class Writer {
 public:
  Writer(const recorder::JobTrace& job, const Verdict& verdict) : job_(job), verdict_(verdict), index_(job) {}

  std::string write() {
    for (const WorkerTrace& worker : job_.workers) find_start(worker);
    if (start_ns_ == std::numeric_limits<std::int64_t>::max()) start_ns_ = 0;
    name_tracks();
    for (const WorkerTrace& worker : job_.workers) {
      for (const OpTrace& op : worker.ops) add_op(worker, op);
      for (const auto& group : worker.groups) {
        if (group.current.has_value()) add_op(worker, *group.current);
      }
      for (const Event& event : worker.events) add_event(worker, event);
    }
    add_arrows();
    ordered_json all;
    all["traceEvents"] = std::move(events_);
    all["displayTimeUnit"] = "ns";
    all["otherData"] = {{"verdict", trace::name_of(verdict_.kind)}, {"sentence", verdict_.sentence}};
    return all.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }

 private:
  static std::uint32_t track_of(const WorkerTrace& worker) {
    return worker.slot.has_value() ? worker.slot->value() + 1 : agents_track;
  }
  double microseconds(std::int64_t ns) const { return static_cast<double>(ns - start_ns_) / 1e3; }

  void find_start(const WorkerTrace& worker) {
    for (const OpTrace& op : worker.ops) start_ns_ = std::min(start_ns_, arrival_ns(op).value_or(start_ns_));
    for (const Event& event : worker.events) start_ns_ = std::min(start_ns_, event.at_ns);
    for (const auto& group : worker.groups) {
      if (group.current.has_value()) start_ns_ = std::min(start_ns_, arrival_ns(*group.current).value_or(start_ns_));
    }
  }

  void name_tracks() {
    std::map<std::uint32_t, std::string> names;
    for (const WorkerTrace& worker : job_.workers) {
      names[track_of(worker)] = worker.slot.has_value() ? name_slots({*worker.slot}) : "agents";
    }
    for (const auto& [track, name] : names) {
      events_.push_back(
          {{"ph", "M"}, {"pid", track}, {"tid", 0}, {"name", "process_name"}, {"args", {{"name", name}}}});
      events_.push_back(
          {{"ph", "M"}, {"pid", track}, {"tid", 0}, {"name", "process_sort_index"}, {"args", {{"sort_index", track}}}});
    }
    // Ops of two groups may overlap: slices of one thread must not, so each group of a slot has a thread.
    for (const WorkerTrace& worker : job_.workers) {
      for (std::size_t group = 0; group < worker.groups.size(); ++group) {
        events_.push_back({{"ph", "M"},
                           {"pid", track_of(worker)},
                           {"tid", group + 1},
                           {"name", "thread_name"},
                           {"args", {{"name", worker.groups[group].name}}}});
      }
    }
  }

  void add_op(const WorkerTrace& worker, const OpTrace& op) {
    const auto start = arrival_ns(op);
    if (!start.has_value() || op.group >= worker.groups.size()) return;
    const std::int64_t end = op.finished_ns.value_or(std::max(index_.latest_ns(), *start));
    ordered_json arguments{
        {"sequence", op.sequence}, {"group", worker.groups[op.group].name}, {"call", describe(op.call)}};
    if (op.waited_ns > 0) arguments["waited_us"] = static_cast<double>(op.waited_ns) / 1e3;
    if (op.last_arrival.has_value()) arguments["last_arrival"] = op.last_arrival->value();
    if (!op.failure.empty()) arguments["failure"] = op.failure;
    if (!op.stack.empty()) arguments["stack"] = op.stack;
    if (!op.finished_ns.has_value()) arguments["unfinished"] = true;
    events_.push_back({{"ph", "X"},
                       {"pid", track_of(worker)},
                       {"tid", op.group + 1},
                       {"ts", microseconds(*start)},
                       {"dur", static_cast<double>(std::max(end - *start, shortest_slice_ns)) / 1e3},
                       {"name", op.call.kind + " #" + std::to_string(op.sequence)},
                       {"cat", op.failure.empty() ? "op" : "failed"},
                       {"args", std::move(arguments)}});
  }

  void add_event(const WorkerTrace& worker, const Event& event) {
    std::string text = name_of(event.kind);
    if (event.kind == EventKind::step) text += " " + std::to_string(event.number);
    ordered_json arguments{{"detail", event.detail}};
    if (!event.slots.empty()) arguments["slot"] = event.slots.front().value();
    if (!event.stack.empty()) arguments["stack"] = event.stack;
    events_.push_back({{"ph", "i"},
                       {"s", "p"},
                       {"pid", track_of(worker)},
                       {"tid", 0},
                       {"ts", microseconds(event.at_ns)},
                       {"name", text},
                       {"cat", "event"},
                       {"args", std::move(arguments)}});
  }

  // From the begin of the last arrival's slice to the end of each that waited for it.
  void add_arrows() {
    std::uint64_t id = 1;
    for (const GroupIndex& group : index_.groups()) {
      for (const auto& [slot, standing] : group.standing) {
        for (const OpTrace* op : standing.ops) {
          if (!op->last_arrival.has_value() || *op->last_arrival == slot || !op->finished_ns.has_value()) continue;
          const auto last = group.standing.find(*op->last_arrival);
          const OpTrace* theirs = last == group.standing.end() ? nullptr : last->second.op(op->sequence);
          if (theirs == nullptr || !arrival_ns(*theirs).has_value()) continue;
          add_arrow(*last->second.worker, theirs->group, *arrival_ns(*theirs), "s", id);
          add_arrow(*standing.worker, op->group, *op->finished_ns - 1, "f", id);
          ++id;
        }
      }
    }
  }
  void add_arrow(const WorkerTrace& worker, std::uint32_t group, std::int64_t at_ns, const char* phase,
                 std::uint64_t id) {
    ordered_json arrow{{"ph", phase},
                       {"pid", track_of(worker)},
                       {"tid", group + 1},
                       {"ts", microseconds(at_ns)},
                       {"name", "last arrival"},
                       {"cat", "arrival"},
                       {"id", id}};
    if (*phase == 'f') arrow["bp"] = "e";
    events_.push_back(std::move(arrow));
  }

  const recorder::JobTrace& job_;
  const Verdict& verdict_;
  const JobIndex index_;
  std::int64_t start_ns_ = std::numeric_limits<std::int64_t>::max();
  ordered_json events_ = ordered_json::array();
};

}  // namespace

std::string to_perfetto(const recorder::JobTrace& job, const Verdict& verdict) { return Writer(job, verdict).write(); }

}  // namespace closeranks::trace
