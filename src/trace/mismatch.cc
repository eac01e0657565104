#include "trace/mismatch.h"

#include <algorithm>
#include <map>
#include <set>

#include "trace/sentences.h"

namespace closeranks::trace {

using recorder::OpCall;
using recorder::OpTrace;

namespace {

// How far back the pattern of calls is looked for: a training step has fewer calls than this.
constexpr std::uint64_t longest_pattern = 4096;

bool shape_is_shared(const std::string& kind) {
  return kind == "all_reduce" || kind == "broadcast" || kind == "reduce" || kind == "all_gather" ||
         kind == "reduce_scatter";
}

bool differs(const std::string& a, const std::string& b) { return !a.empty() && !b.empty() && a != b; }

// The first thing in which two calls differ that members must agree on.
std::optional<Kind> difference(const OpCall& a, const OpCall& b) {
  if (differs(a.kind, b.kind) || differs(a.reduce, b.reduce)) return Kind::wrong_op;
  if (a.root.has_value() && b.root.has_value() && *a.root != *b.root) return Kind::wrong_root;
  if (differs(a.dtype, b.dtype)) return Kind::wrong_dtype;
  if (shape_is_shared(a.kind) && differs(a.shape, b.shape)) return Kind::wrong_shape;
  return std::nullopt;
}

struct Side {
  const OpCall* call = nullptr;
  std::vector<Slot> slots;
};

std::vector<Side> sides_at(const GroupIndex& group, std::uint64_t sequence) {
  std::vector<Side> sides;
  for (const auto& [slot, standing] : group.standing) {
    const OpTrace* op = standing.op(sequence);
    if (op == nullptr || op->call.kind.empty()) continue;
    auto side = std::find_if(sides.begin(), sides.end(),
                             [&](const Side& one) { return !difference(*one.call, op->call).has_value(); });
    if (side == sides.end()) side = sides.insert(sides.end(), {&op->call, {}});
    side->slots.push_back(slot);
  }
  return sides;
}

const OpCall* agreed_call(const GroupIndex& group, std::uint64_t sequence) {
  const auto sides = sides_at(group, sequence);
  return sides.size() == 1 ? sides.front().call : nullptr;
}

// Somebody is still in it, or was told that it failed.
bool is_unfinished(const GroupIndex& group, std::uint64_t sequence) {
  bool unfinished = false;
  for (const auto& [slot, standing] : group.standing) {
    const OpTrace* op = standing.op(sequence);
    if (op == nullptr) continue;
    if (op->finished_ns.has_value() && op->failure.empty()) return false;
    unfinished = unfinished || standing.pending == op;
  }
  return unfinished;
}

std::int64_t time_of(const GroupIndex& group, std::uint64_t sequence) {
  std::int64_t last = 0;
  for (const auto& [slot, standing] : group.standing) {
    const OpTrace* op = standing.op(sequence);
    if (op != nullptr) last = std::max(last, arrival_ns(*op).value_or(0));
  }
  return last;
}

CallMismatch judge_sides(const GroupIndex& group, std::uint64_t sequence, std::vector<Side> sides) {
  std::stable_sort(sides.begin(), sides.end(),
                   [](const Side& a, const Side& b) { return a.slots.size() > b.slots.size(); });
  CallMismatch found;
  found.group = &group;
  found.sequence = sequence;
  found.at_ns = time_of(group, sequence);
  const OpCall* expected = expected_call(group, sequence);
  const auto matches = [&](const Side& side) { return expected != nullptr && !difference(*side.call, *expected); };
  std::size_t right = 0;
  bool known = sides[0].slots.size() > sides[1].slots.size();
  if (known) {
    found.why = name_slots(sides[0].slots) + (sides[0].slots.size() == 1 ? " is" : " are") + " the majority";
  } else {
    const auto expected_side = std::find_if(sides.begin(), sides.end(), matches);
    known = expected_side != sides.end();
    if (known) {
      right = static_cast<std::size_t>(expected_side - sides.begin());
      found.why = "after the same call before, the group went on with " + describe(*expected);
    }
  }
  std::swap(sides[0], sides[right]);
  found.right = *sides[0].call;
  found.wrong = *sides[1].call;
  found.others = sides[0].slots;
  found.kind = difference(found.right, found.wrong).value_or(Kind::wrong_op);
  for (std::size_t i = 1; i < sides.size(); ++i) {
    std::vector<Slot>& to = known ? found.culprits : found.others;
    to.insert(to.end(), sides[i].slots.begin(), sides[i].slots.end());
  }
  if (!known) return found;
  std::sort(found.culprits.begin(), found.culprits.end());
  // A call that has always come after the one that the others are in: it left that one out.
  for (std::uint64_t back = 2; back <= std::min(sequence, longest_pattern); ++back) {
    const OpCall* earlier = agreed_call(group, sequence - back);
    if (earlier == nullptr || difference(*earlier, found.right).has_value()) continue;
    const OpCall* after = agreed_call(group, sequence - back + 1);
    if (after != nullptr && !difference(*after, found.wrong).has_value()) found.kind = Kind::missing_call;
    break;
  }
  return found;
}

}  // namespace

const OpCall* expected_call(const GroupIndex& group, std::uint64_t sequence) {
  if (sequence == 0) return nullptr;
  const OpCall* before = agreed_call(group, sequence - 1);
  if (before == nullptr) return nullptr;
  // The same call may be followed by different ones: with the call before it, too, there is more to go by. A past that
  // does not agree with itself says nothing.
  const OpCall* two_before = sequence >= 2 ? agreed_call(group, sequence - 2) : nullptr;
  const OpCall* after_one = nullptr;
  const OpCall* after_two = nullptr;
  bool one_agrees = true;
  bool two_agree = true;
  const auto note = [](const OpCall*& known, bool& agrees, const OpCall* after) {
    agrees = agrees && (known == nullptr || !difference(*known, *after).has_value());
    known = after;
  };
  for (std::uint64_t back = 2; back <= std::min(sequence, longest_pattern); ++back) {
    const OpCall* earlier = agreed_call(group, sequence - back);
    if (earlier == nullptr || difference(*earlier, *before).has_value()) continue;
    const OpCall* after = agreed_call(group, sequence - back + 1);
    if (after == nullptr) continue;
    note(after_one, one_agrees, after);
    const OpCall* context = sequence > back ? agreed_call(group, sequence - back - 1) : nullptr;
    const bool same_context =
        two_before != nullptr && context != nullptr && !difference(*context, *two_before).has_value();
    if (same_context) note(after_two, two_agree, after);
  }
  if (after_two != nullptr) return two_agree ? after_two : nullptr;
  return one_agrees ? after_one : nullptr;
}

std::optional<CallMismatch> find_mismatch(const JobIndex& index) {
  std::optional<CallMismatch> first;
  for (const GroupIndex& group : index.groups()) {
    // Only what somebody ended in can be it: everything before was finished.
    std::set<std::uint64_t> candidates;
    for (const auto& [slot, standing] : group.standing) {
      if (standing.pending != nullptr) candidates.insert(standing.pending->sequence);
    }
    for (const std::uint64_t sequence : candidates) {
      if (!is_unfinished(group, sequence)) continue;
      auto sides = sides_at(group, sequence);
      if (sides.size() < 2) continue;
      CallMismatch found = judge_sides(group, sequence, std::move(sides));
      if (!first.has_value() || found.at_ns < first->at_ns) first = std::move(found);
      break;
    }
  }
  return first;
}

}  // namespace closeranks::trace
