// Who owns which seat: a pure function of the group's size and the order of exclusions.
// A claimed block lies on a seat of the member that claimed it; seat s starts with rank s mod members. When a member is
// excluded its seats pass to the present members in turn, starting with the first one after it; living owners keep
// theirs (protocol rule 2). Several exclusions by one view are replayed one by one, so the batches in which views came
// do not matter.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithm/plan.h"
#include "closeranks/ids.h"

namespace closeranks::algorithm {

// Set of ranks, in rank order. Groups of up to 1,024 members on one host.
using RankSet = std::vector<bool>;

class Seats {
 public:
  explicit Seats(std::uint32_t members);

  // `gone` has just left; `present` says who is left. Nobody left: its seats stay with it.
  // `living_keep`: see Rules::living_owners_keep_seats.
  void exclude(Rank gone, const RankSet& present, bool living_keep = true);

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(owners_.size()); }
  [[nodiscard]] Rank owner(std::uint32_t seat) const { return Rank{owners_[seat]}; }
  // Whose a block is now that `member` has claimed, or has finished in its scratch. The rank comes from memory that
  // other processes write: whatever it is, nothing outside the seats is read.
  [[nodiscard]] Rank heir(Rank member, std::uint32_t block) const {
    return owner(member.value() % members_ + members_ * (block / members_ % seats_per_member));
  }

 private:
  std::uint32_t members_;
  std::vector<std::uint32_t> owners_;  // [seats]
};

}  // namespace closeranks::algorithm
