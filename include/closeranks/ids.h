// Identities used everywhere in closeranks. Each is its own type, so that a slot, a rank and a worker cannot be mixed
// up.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace closeranks {

// A number with a meaning. `Tag` only keeps two kinds apart; there is no arithmetic on purpose.
template <class Tag, class Representation>
class Identity {
 public:
  using representation = Representation;
  constexpr Identity() = default;
  constexpr explicit Identity(Representation value) : value_(value) {}
  [[nodiscard]] constexpr Representation value() const { return value_; }
  friend constexpr auto operator<=>(const Identity&, const Identity&) = default;

 private:
  Representation value_{};
};

// A stable position 0..N-1 of the job, the torch rank of the world group. Present or vacant; it never moves.
using Slot = Identity<struct SlotTag, std::uint32_t>;

// A position 0..n-1 inside one group. Rank r of a group is the slot `members[r]` of that group.
using Rank = Identity<struct RankTag, std::uint32_t>;

// One process that fills a slot, once. Never reused within a job: a replacement is another worker in the same slot.
using WorkerId = Identity<struct WorkerIdTag, std::uint64_t>;

// Number of one entry (an op, or one piece of a large op) in its group: 0, 1, 2, ... the same on every member.
using Sequence = Identity<struct SequenceTag, std::uint64_t>;

// Names a group on every member alike: a 64-bit hash of its name and of its members' slots (see group_key()).
using GroupKey = Identity<struct GroupKeyTag, std::uint64_t>;

// Number of a view. `term` is raised at each start of a coordinator, `n` with each view; the pair only grows
// (protocol rule 21: an old coordinator that wakes up must lose).
struct ViewNumber {
  std::uint32_t term = 0;
  std::uint64_t n = 0;
  friend constexpr auto operator<=>(const ViewNumber&, const ViewNumber&) = default;
};

}  // namespace closeranks

template <class Tag, class Representation>
struct std::hash<closeranks::Identity<Tag, Representation>> {
  std::size_t operator()(const closeranks::Identity<Tag, Representation>& id) const noexcept {
    return std::hash<Representation>{}(id.value());
  }
};
