#include "trace/history.h"

#include <algorithm>
#include <map>
#include <vector>

namespace closeranks::trace {

using recorder::Event;
using recorder::EventKind;
using recorder::OpTrace;
using recorder::WorkerTrace;

namespace {

// Step -> number of the first call on the group after its begin.
std::map<std::uint64_t, std::uint64_t> calls_by_step(const Standing& standing) {
  std::map<std::uint64_t, std::uint64_t> calls;
  if (standing.ops.empty()) return calls;
  const std::int64_t known_from = arrival_ns(*standing.ops.front()).value_or(0);
  for (const Event& event : standing.worker->events) {
    if (event.kind != EventKind::step || event.at_ns < known_from) continue;
    const auto first = std::find_if(standing.ops.begin(), standing.ops.end(),
                                    [&](const OpTrace* op) { return arrival_ns(*op).value_or(0) >= event.at_ns; });
    calls[event.number] = first == standing.ops.end() ? standing.next() : (*first)->sequence;
  }
  return calls;
}

}  // namespace

std::optional<std::uint64_t> last_step(const WorkerTrace& worker) {
  std::optional<std::uint64_t> step;
  for (const Event& event : worker.events) {
    if (event.kind == EventKind::step) step = event.number;
  }
  return step;
}

std::optional<SkippedCall> find_skipped_call(const GroupIndex& group, Slot slot) {
  const auto own = group.standing.find(slot);
  if (own == group.standing.end()) return std::nullopt;
  const auto mine = calls_by_step(own->second);
  std::vector<std::map<std::uint64_t, std::uint64_t>> theirs;
  for (const auto& [other, standing] : group.standing) {
    if (other != slot) theirs.push_back(calls_by_step(standing));
  }
  if (theirs.empty()) return std::nullopt;
  for (auto step = mine.begin(); step != mine.end() && std::next(step) != mine.end(); ++step) {
    const auto next = std::next(step);
    if (next->first != step->first + 1) continue;
    std::optional<std::uint64_t> expected;
    bool agreed = true;
    for (const auto& other : theirs) {
      const auto from = other.find(step->first);
      const auto to = other.find(next->first);
      if (from == other.end() || to == other.end() || from->second != step->second) {
        agreed = false;
        break;
      }
      agreed = agreed && (!expected.has_value() || *expected == to->second);
      expected = to->second;
    }
    if (!agreed || !expected.has_value()) continue;
    if (next->second < *expected) {
      return SkippedCall{step->first, next->second - step->second, *expected - step->second};
    }
  }
  return std::nullopt;
}

bool breaks_its_own_order(const WorkerTrace& worker) {
  struct Call {
    std::int64_t at_ns;
    std::uint32_t group;
    const OpTrace* op;
  };
  std::vector<Call> calls;
  const auto add = [&calls](const OpTrace& op) {
    if (!is_point_to_point(op.call) && arrival_ns(op).has_value()) calls.push_back({*arrival_ns(op), op.group, &op});
  };
  for (const OpTrace& op : worker.ops) add(op);
  for (const auto& group : worker.groups) {
    if (group.current.has_value()) add(*group.current);
  }
  std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.at_ns < b.at_ns; });
  if (calls.size() < 4) return false;
  const auto alike = [](const Call& a, const Call& b) { return a.group == b.group && a.op->call == b.op->call; };
  const Call& now = calls.back();
  const Call& before = calls[calls.size() - 2];
  const Call& two_before = calls[calls.size() - 3];
  // What it does for the first time breaks no order.
  const bool is_new =
      std::none_of(calls.begin(), calls.end() - 1, [&now](const Call& call) { return call.group == now.group; });
  if (is_new) return false;
  bool elsewhere = false;
  for (std::size_t at = calls.size() - 2; at-- > 1;) {
    if (!alike(calls[at], before) || !alike(calls[at - 1], two_before)) continue;
    if (calls[at + 1].group == now.group && calls[at + 1].op->call.kind == now.op->call.kind) return false;
    elsewhere = true;
  }
  return elsewhere;
}

}  // namespace closeranks::trace
