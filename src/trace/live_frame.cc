#include "trace/live_frame.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "trace/history.h"
#include "trace/sentences.h"

namespace closeranks::trace {

using recorder::Event;
using recorder::EventKind;
using recorder::OpTrace;
using recorder::WorkerTrace;

namespace {

constexpr std::size_t least_columns = 24;
constexpr std::size_t steps_counted = 21;
constexpr std::size_t least_doing_columns = 20;

std::optional<std::int64_t> median_step_time(const WorkerTrace& worker) {
  std::vector<std::int64_t> starts;
  for (const Event& event : worker.events) {
    if (event.kind == EventKind::step) starts.push_back(event.at_ns);
  }
  if (starts.size() > steps_counted) starts.erase(starts.begin(), starts.end() - steps_counted);
  std::vector<std::int64_t> times;
  for (std::size_t i = 1; i < starts.size(); ++i) times.push_back(starts[i] - starts[i - 1]);
  if (times.empty()) return std::nullopt;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// The op that it has not finished yet, the oldest; nullptr: none.
const OpTrace* open_op(const JobIndex& index, const WorkerTrace& worker, std::string& group_name) {
  const OpTrace* oldest = nullptr;
  for (const GroupIndex& group : index.groups()) {
    const auto found = group.standing.find(*worker.slot);
    if (found == group.standing.end() || found->second.worker != &worker) continue;
    for (const OpTrace* op : {found->second.pending, found->second.point_to_point}) {
      if (op == nullptr || !op->failure.empty()) continue;
      if (oldest != nullptr && arrival_ns(*oldest).value_or(0) <= arrival_ns(*op).value_or(0)) continue;
      oldest = op;
      group_name = group.name;
    }
  }
  return oldest;
}

// The part of [from, to] that lies in the op's wait, which ends with `until`.
std::int64_t overlap(std::int64_t start, std::int64_t end, std::int64_t from, std::int64_t to) {
  return std::max<std::int64_t>(0, std::min(end, to) - std::max(start, from));
}

double waiting_part(const WorkerTrace& worker, const OpTrace* open, std::int64_t now_ns, std::int64_t window_ns) {
  // A worker younger than the window is measured by its own age.
  std::int64_t from = now_ns - window_ns;
  if (!worker.events.empty()) from = std::max(from, worker.events.front().at_ns);
  if (from >= now_ns) return 0;
  std::int64_t waited = 0;
  for (const OpTrace& op : worker.ops) {
    if (&op == open || !op.finished_ns.has_value()) continue;
    waited += overlap(*op.finished_ns - op.waited_ns, *op.finished_ns, from, now_ns);
  }
  if (open != nullptr) waited += overlap(arrival_ns(*open).value_or(now_ns), now_ns, from, now_ns);
  return std::min(1.0, static_cast<double>(waited) / static_cast<double>(now_ns - from));
}

std::string state_of(const JobIndex& index, Slot slot) {
  std::string state;
  for (const SeenEvent& seen : index.events_about(slot)) {
    if (seen.event->kind == EventKind::peer_state) state = seen.event->detail;
    if (seen.event->kind == EventKind::worker_exited) return seen.event->detail;
  }
  const bool of_note =
      state.starts_with("stopped") || state.starts_with("traced") || state.starts_with("in the kernel");
  return of_note ? state : "";
}

std::string doing(const JobIndex& index, const WorkerTrace& worker, const OpTrace* open, const std::string& group,
                  std::int64_t now_ns) {
  std::string state = state_of(index, *worker.slot);
  if (!state.empty()) return state;
  if (worker.ended_in_order) return "has ended";
  if (worker.running == false) return "is gone";
  if (open != nullptr) {
    return "in " + name_op(open->call.kind, open->sequence, group) + " for " +
           duration(now_ns - arrival_ns(*open).value_or(now_ns));
  }
  bool loading = false;
  for (const Event& event : worker.events) {
    if (event.kind == EventKind::loading) loading = event.number == 1;
  }
  if (loading) return "waits for its data loader";
  const OpTrace* last = nullptr;
  for (const OpTrace& op : worker.ops) {
    if (op.finished_ns.has_value() && (last == nullptr || *op.finished_ns >= *last->finished_ns)) last = &op;
  }
  if (last == nullptr || last->group >= worker.groups.size()) return "no op yet";
  return name_op(last->call.kind, last->sequence, worker.groups[last->group].name) +
         (last->failure.empty() ? " done " : " failed ") + duration(now_ns - *last->finished_ns) + " ago";
}

// Characters, not bytes: host and group names may be of any script.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string cut(const std::string& text, std::size_t columns) {
  std::string kept;
  std::size_t width = 0;
  for (const char c : text) {
    const bool starts = (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (starts && ++width > columns) break;
    // A name may hold anything; a terminal is not to obey it.
    kept += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  return kept;
}

std::string padded(const std::string& text, std::size_t columns, bool right) {
  const std::string kept = cut(text, columns);
  const std::string fill(columns - std::min(columns, width_of(kept)), ' ');
  return right ? fill + kept : kept + fill;
}

void add_wrapped(std::vector<std::string>& lines, const std::string& text, std::size_t columns) {
  std::string line;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = cut(text.substr(at, end - at), columns);
    at = end + 1;
    if (word.empty()) continue;
    if (!line.empty() && width_of(line) + 1 + width_of(word) > columns) {
      lines.push_back(line);
      line = "  ";
    }
    if (width_of(line) + width_of(word) + 1 > columns && line == "  ") line.clear();
    line += (line.empty() || line == "  " ? "" : " ") + word;
  }
  if (!line.empty()) lines.push_back(cut(line, columns));
}

struct Column {
  const char* title;
  std::size_t columns;
  int worth;  // what a narrow terminal shows last of all
  std::string (*text)(const SlotPace&);
};

std::string percent(const std::optional<double>& part) {
  if (!part.has_value()) return "-";
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.0f %%", *part * 100);
  return text.data();
}

const std::array<Column, 6> all_columns{{
    {"slot", 4, 9, [](const SlotPace& pace) { return std::to_string(pace.slot.value()); }},
    {"worker", 6, 1,
     [](const SlotPace& pace) {
       return pace.worker != nullptr && pace.worker->worker ? std::to_string(pace.worker->worker->value()) : "-";
     }},
    {"pid", 8, 2,
     [](const SlotPace& pace) {
       return pace.worker != nullptr && pace.worker->pid != 0 ? std::to_string(pace.worker->pid) : "-";
     }},
    {"step", 8, 8, [](const SlotPace& pace) { return pace.step ? std::to_string(*pace.step) : "-"; }},
    {"step time", 9, 4, [](const SlotPace& pace) { return pace.step_time ? duration(*pace.step_time) : "-"; }},
    {"waiting", 7, 6, [](const SlotPace& pace) { return percent(pace.waiting); }},
}};

// Those for which there is room beside what the slot is doing.
std::set<std::size_t> columns_shown(std::size_t columns) {
  std::set<std::size_t> shown;
  std::size_t used = 0;
  for (std::size_t i = 0; i < all_columns.size(); ++i) {
    shown.insert(i);
    used += all_columns[i].columns + 2;
  }
  while (!shown.empty() && used + least_doing_columns > columns) {
    const auto least = std::min_element(shown.begin(), shown.end(), [](std::size_t a, std::size_t b) {
      return all_columns[a].worth < all_columns[b].worth;
    });
    if (all_columns[*least].worth == 9) break;
    used -= all_columns[*least].columns + 2;
    shown.erase(least);
  }
  return shown;
}

std::string head_of(const recorder::JobTrace& job, const JobIndex& index, const std::string& clock) {
  std::string name;
  std::set<std::string> hosts;
  std::size_t slots = index.slots().size();
  for (const WorkerTrace& worker : job.workers) {
    if (!worker.job.empty()) name = worker.job;
    if (!worker.host.empty()) hosts.insert(worker.host);
    slots = std::max<std::size_t>(slots, worker.slots_in_job);
  }
  std::string text = "job " + (name.empty() ? "without a name" : name);
  if (hosts.size() == 1) text += " on " + *hosts.begin();
  if (hosts.size() > 1) text += " on " + count_of(hosts.size(), "host");
  text += "; " + count_of(slots, "slot");
  // Views are the same on all; the one that knows the newest counts.
  const Event* view = nullptr;
  std::size_t views = 0;
  for (const WorkerTrace& worker : job.workers) {
    std::set<std::uint64_t> numbers;
    for (const Event& event : worker.events) {
      if (event.kind != EventKind::view) continue;
      numbers.insert(event.number);
      if (view == nullptr || event.number > view->number) view = &event;
    }
    views = std::max(views, numbers.size());
  }
  if (view != nullptr) {
    text += ", " + std::to_string(view->slots.size()) + " present in view " + std::to_string(view->number) + " (" +
            count_of(views, "view") + (view->detail.empty() ? "" : "; last: " + view->detail) + ")";
  }
  return clock.empty() ? text : text + "; " + clock;
}

}  // namespace

SlotPace pace_of(const JobIndex& index, Slot slot, std::int64_t now_ns, std::int64_t window_ns) {
  SlotPace pace;
  pace.slot = slot;
  pace.worker = index.last(slot);
  if (pace.worker == nullptr) {
    pace.doing = "no file yet";
    return pace;
  }
  pace.step = last_step(*pace.worker);
  pace.step_time = median_step_time(*pace.worker);
  std::string group;
  const OpTrace* open = open_op(index, *pace.worker, group);
  if (!pace.worker->groups.empty()) pace.waiting = waiting_part(*pace.worker, open, now_ns, window_ns);
  pace.doing = doing(index, *pace.worker, open, group, now_ns);
  return pace;
}

std::vector<std::string> live_frame(const recorder::JobTrace& job, const Verdict& verdict,
                                    const FrameOptions& options) {
  const std::size_t columns = std::max(options.columns, least_columns);
  const JobIndex index(job);
  const std::int64_t now_ns = options.now_ns != 0 ? options.now_ns : index.latest_ns();
  std::vector<std::string> lines;
  add_wrapped(lines, head_of(job, index, options.clock), columns);
  // While a job starts there is nothing to judge.
  const bool began = std::any_of(job.workers.begin(), job.workers.end(),
                                 [](const WorkerTrace& worker) { return worker.role == recorder::Role::worker; });
  if (!began) {
    lines.push_back(cut("no worker has written a file yet", columns));
    return lines;
  }
  add_wrapped(lines, (verdict.kind == Kind::ok ? "verdict: " : "VERDICT: ") + verdict.sentence, columns);

  const std::set<std::size_t> shown = columns_shown(columns);
  std::string title;
  for (const std::size_t i : shown) title += padded(all_columns[i].title, all_columns[i].columns, true) + "  ";
  lines.push_back(cut(title + "doing", columns));

  std::vector<SlotPace> paces;
  for (const Slot slot : index.slots()) paces.push_back(pace_of(index, slot, now_ns, options.window_ns));
  std::size_t left_out = 0;
  if (options.lines > 0 && lines.size() + paces.size() > options.lines) {
    const std::size_t room = options.lines > lines.size() + 1 ? options.lines - lines.size() - 1 : 1;
    left_out = paces.size() - std::min(room, paces.size());
    // Who waits least holds the others up.
    std::stable_sort(paces.begin(), paces.end(), [](const SlotPace& a, const SlotPace& b) {
      return a.waiting.value_or(0) < b.waiting.value_or(0);
    });
    paces.resize(paces.size() - left_out);
    std::sort(paces.begin(), paces.end(), [](const SlotPace& a, const SlotPace& b) { return a.slot < b.slot; });
  }
  for (const SlotPace& pace : paces) {
    std::string line;
    for (const std::size_t i : shown) line += padded(all_columns[i].text(pace), all_columns[i].columns, true) + "  ";
    lines.push_back(cut(line + pace.doing, columns));
  }
  if (left_out > 0) lines.push_back(cut(std::to_string(left_out) + " more, that wait more than these", columns));
  return lines;
}

}  // namespace closeranks::trace
