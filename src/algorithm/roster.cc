#include "algorithm/roster.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/assert.h"

namespace closeranks::algorithm {

namespace {
constexpr std::uint64_t every_op = std::numeric_limits<std::uint64_t>::max();
}

Roster::Roster(std::vector<Slot> slots)
    : slots_(std::move(slots)),
      present_(slots_.size(), true),
      last_op_(slots_.size(), every_op),
      seats_(static_cast<std::uint32_t>(slots_.size())) {}

Roster::Roster(std::vector<Slot> slots, const membership::GroupResolution& decision, const Rules& rules)
    : Roster(std::move(slots)) {
  base_ = decision.base;
  for (const Rank vacant : apply(decision, rules)) {
    CR_ASSERT(last_op_[vacant.value()] <= base_);
  }
}

std::vector<Rank> Roster::apply(const membership::GroupResolution& resolution, const Rules& rules) {
  std::vector<Rank> excluded;
  for (const membership::Departure& departure : resolution.departures) {
    const std::optional<Rank> rank = rank_of(departure.slot);
    if (!rank) {
      continue;
    }
    if (!present(*rank)) {
      if (!rules.last_op_decided_once) {
        last_op_[rank->value()] = departure.last_op;
      }
      continue;
    }
    present_[rank->value()] = false;
    last_op_[rank->value()] = departure.last_op;
    seats_.exclude(*rank, present_, rules.living_owners_keep_seats);
    departures_.push_back(departure);
    excluded.push_back(*rank);
  }
  return excluded;
}

bool Roster::expected(Rank member, std::uint64_t step_start) const {
  if (present(member)) return true;
  const std::uint64_t last_op = last_op_[member.value()];
  // One that entered nothing in this epoch may have been vacant when it began: survivors cannot tell alike.
  return last_op > base_ && last_op >= step_start;
}

Rank Roster::lowest_contributor(std::uint64_t sequence) const {
  const auto first =
      std::find_if(last_op_.begin(), last_op_.end(), [sequence](std::uint64_t last_op) { return last_op > sequence; });
  CR_ASSERT(first != last_op_.end());
  return Rank{static_cast<std::uint32_t>(first - last_op_.begin())};
}

std::optional<Rank> Roster::lost_root(const EntryPlan& plan, std::uint64_t sequence, bool lowest_member_is_root) const {
  const bool any_root = plan.kind == OpKind::broadcast && lowest_member_is_root;
  if (is_rooted(plan.kind) && !any_root && !contributes(plan.root, sequence)) {
    return plan.root;
  }
  return std::nullopt;
}

std::uint64_t Roster::departed_at(Slot slot) const {
  const std::optional<Rank> rank = rank_of(slot);
  CR_ASSERT(rank.has_value());
  return last_op_[rank->value()];
}

std::optional<Rank> Roster::rank_of(Slot slot) const {
  const auto found = std::find(slots_.begin(), slots_.end(), slot);
  if (found == slots_.end()) {
    return std::nullopt;
  }
  return Rank{static_cast<std::uint32_t>(found - slots_.begin())};
}

}  // namespace closeranks::algorithm
