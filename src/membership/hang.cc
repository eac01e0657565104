#include "membership/hang.h"

#include <algorithm>

namespace closeranks::membership {
namespace {

using std::chrono::milliseconds;

// Progress comes four times a second; on a busy machine a few are late.
constexpr Time fresh_for = std::chrono::seconds(3);
// The history counts from here on: the first steps compile, read data and warm caches.
constexpr std::uint64_t gaps_needed = 20;
constexpr int gap_factor = 20;

std::string seconds(Time time) {
  const auto tenths = std::chrono::duration_cast<milliseconds>(time).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

std::string text_of(const std::vector<Slot>& slots) {
  std::string text = slots.size() == 1 ? "slot " : "slots ";
  for (std::size_t index = 0; index < slots.size(); ++index) {
    text += (index == 0 ? "" : ", ") + std::to_string(slots[index].value());
  }
  return text;
}

bool contains(const std::vector<Slot>& slots, Slot slot) {
  return std::find(slots.begin(), slots.end(), slot) != slots.end();
}

std::uint64_t finished_in(const Progress& progress) {
  std::uint64_t sum = 0;
  for (const GroupProgress& group : progress.groups) sum += group.completed;
  return sum;
}

bool moved_on(const Progress& before, const Progress& after) {
  if (before.step != after.step || before.groups.size() != after.groups.size()) return true;
  for (std::size_t index = 0; index < before.groups.size(); ++index) {
    const GroupProgress& a = before.groups[index];
    const GroupProgress& b = after.groups[index];
    if (a.group != b.group || a.entered != b.entered || a.completed != b.completed) return true;
  }
  return false;
}

}  // namespace

// Who waits for whom, by place in the list of the present.
struct HangDetector::Graph {
  std::vector<std::vector<std::size_t>> waits_for;
  std::vector<const Known*> known;

  [[nodiscard]] std::vector<bool> reach(std::size_t sink) const {
    std::vector<std::vector<std::size_t>> waited_by(waits_for.size());
    for (std::size_t from = 0; from < waits_for.size(); ++from) {
      for (const std::size_t to : waits_for[from]) waited_by[to].push_back(from);
    }
    std::vector<bool> reached(waits_for.size());
    std::vector<std::size_t> open{sink};
    reached[sink] = true;
    while (!open.empty()) {
      const std::size_t at = open.back();
      open.pop_back();
      for (const std::size_t from : waited_by[at]) {
        if (reached[from]) continue;
        reached[from] = true;
        open.push_back(from);
      }
    }
    return reached;
  }
};

void HangDetector::progress(const Progress& progress, Time now) {
  const auto [place, is_new] = known_.try_emplace(progress.from);
  Known& known = place->second;
  const std::uint64_t finished = finished_in(progress);
  if (is_new || moved_on(known.last, progress)) known.moved = now;
  if (!is_new && finished > known.finished) {
    known.has_finished = true;
    remember_gap(now);
  }
  known.finished = finished;
  known.heard = now;
  known.last = progress;
}

void HangDetector::remember_gap(Time now) {
  if (!first_finish_) first_finish_ = now;
  if (last_finish_ && now > *last_finish_) {
    longest_gap_ = std::max(longest_gap_, now - *last_finish_);
    ++gaps_;
  }
  last_finish_ = now;
}

void HangDetector::paused(const Pause& pause, Time now) {
  Known& known = known_[pause.from];
  known.paused_until = now + milliseconds(pause.up_to_ms);
  if (pause.up_to_ms > 0) return;
  known.paused_until.reset();
  known.moved = now;  // it begins to count again from here
}

void HangDetector::disturbed() {
  last_finish_.reset();
  circle_since_.reset();
  for (auto& [worker, known] : known_) known.blamed.reset();
}

milliseconds HangDetector::timeout() const {
  if (!config_.adaptive || gaps_ < gaps_needed || !last_finish_ || *last_finish_ - *first_finish_ < config_.timeout) {
    return config_.timeout;
  }
  const auto allowed = std::chrono::duration_cast<milliseconds>(gap_factor * longest_gap_);
  return std::clamp(allowed, std::min(config_.least, config_.timeout), config_.timeout);
}

bool HangDetector::is_fresh(const Known& known, Time now) const { return now - known.heard <= fresh_for; }

HangDetector::Verdict HangDetector::judge(const std::vector<Filled>& present, const std::optional<Boundary>& boundary,
                                          Time now) {
  Verdict verdict;
  const std::size_t size = present.size();
  Graph graph;
  graph.waits_for.resize(size);
  std::map<Slot, std::size_t> place;
  for (std::size_t index = 0; index < size; ++index) place[present[index].slot] = index;
  bool anybody_unknown = size < 2;
  for (std::size_t index = 0; index < size; ++index) {
    const auto found = known_.find(present[index].worker);
    const bool usable = found != known_.end() && is_fresh(found->second, now);
    anybody_unknown = anybody_unknown || !usable;
    graph.known.push_back(usable ? &found->second : nullptr);
    if (!usable) continue;
    const auto wait_for = [&](const std::vector<Slot>& slots) {
      for (const Slot slot : slots) {
        const auto other = place.find(slot);
        if (other != place.end() && other->second != index) graph.waits_for[index].push_back(other->second);
      }
    };
    for (const GroupProgress& group : found->second.last.groups) {
      if (group.waiting) wait_for(group.waits_for);
    }
    if (boundary && contains(boundary->arrived, present[index].slot)) wait_for(boundary->missing);
  }

  // Everybody is accounted for: as a sink that may be judged, or as waiting for one.
  std::vector<std::size_t> sinks;
  bool judged = !anybody_unknown;
  for (std::size_t index = 0; judged && index < size; ++index) {
    if (!graph.waits_for[index].empty()) continue;
    const Known& known = *graph.known[index];
    sinks.push_back(index);
    if (!known.has_finished || (known.paused_until && now < *known.paused_until)) judged = false;
  }
  std::vector<bool> accounted(size);
  for (const std::size_t sink : sinks) {
    if (!judged) break;
    const std::vector<bool> reached = graph.reach(sink);
    if (std::count(reached.begin(), reached.end(), true) == 1) judged = false;  // nobody waits for it
    for (std::size_t index = 0; index < size; ++index) accounted[index] = accounted[index] || reached[index];
  }
  const bool all = judged && std::all_of(accounted.begin(), accounted.end(), [](bool one) { return one; });
  for (std::size_t index = 0; index < size; ++index) {
    const auto found = known_.find(present[index].worker);
    if (found == known_.end()) continue;
    const bool blamed = all && !sinks.empty() && graph.waits_for[index].empty();
    if (!blamed) {
      found->second.blamed.reset();
      continue;
    }
    if (!found->second.blamed) found->second.blamed = now;
    if (now - std::max(found->second.moved, *found->second.blamed) < timeout()) continue;
    verdict.hung.push_back({present[index].worker, reason_for(graph, index, present, boundary, now)});
  }
  if (verdict.hung.size() < sinks.size())
    verdict.hung.clear();  // one of them still gets on: the others may wait for it

  const bool circle = judged && sinks.empty();
  if (!circle) {
    circle_since_.reset();
    circle_told_ = false;
  } else {
    if (!circle_since_) circle_since_ = now;
    Time moved = *circle_since_;
    for (const Known* known : graph.known) moved = std::max(moved, known->moved);
    if (!circle_told_ && now - moved >= timeout()) {
      circle_told_ = true;
      std::string text = "all present workers wait for each other";
      for (std::size_t index = 0; index < size && text.size() < 1'000; ++index) {
        for (const GroupProgress& group : graph.known[index]->last.groups) {
          if (!group.waiting || group.waits_for.empty()) continue;
          text += "; slot " + std::to_string(present[index].slot.value()) + " in " + group.op + " of group '" +
                  group.name + "' for " + text_of(group.waits_for);
        }
      }
      verdict.circle = text;
    }
  }
  return verdict;
}

std::string HangDetector::reason_for(const Graph& graph, std::size_t sink, const std::vector<Filled>& present,
                                     const std::optional<Boundary>& boundary, Time now) const {
  const Slot slot = present[sink].slot;
  const Known& known = *graph.known[sink];
  // The op that is waited for longest, and all who wait in it.
  const GroupProgress* waited = nullptr;
  for (std::size_t index = 0; index < graph.known.size(); ++index) {
    for (const GroupProgress& group : graph.known[index]->last.groups) {
      if (!group.waiting || !contains(group.waits_for, slot)) continue;
      if (waited == nullptr || group.waited_ms > waited->waited_ms) waited = &group;
    }
  }
  std::string text;
  if (waited != nullptr) {
    std::vector<Slot> who;
    for (std::size_t index = 0; index < graph.known.size(); ++index) {
      for (const GroupProgress& group : graph.known[index]->last.groups) {
        const bool in_it = group.waiting && group.group == waited->group && contains(group.waits_for, slot);
        if (in_it) who.push_back(present[index].slot);
      }
    }
    text = "has not entered " + waited->op + " of group '" + waited->name + "', in which " + text_of(who) +
           (who.size() == 1 ? " has" : " have") + " waited for " + seconds(milliseconds(waited->waited_ms));
  } else if (boundary && contains(boundary->missing, slot)) {
    text = "has not come to the boundary before step " + std::to_string(boundary->step) + ", where " +
           text_of(boundary->arrived) + (boundary->arrived.size() == 1 ? " waits" : " wait");
  } else {
    text = "has made no progress for " + seconds(now - known.moved) + " while others wait for it";
  }
  text += "; it is in step " + std::to_string(known.last.step);
  std::string inside;
  for (const GroupProgress& group : known.last.groups) {
    if (group.waiting) inside = group.op + " of group '" + group.name + "'";
  }
  return text + ", inside " + (inside.empty() ? "no op" : inside);
}

}  // namespace closeranks::membership
