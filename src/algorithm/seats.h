// Who owns which seat, and who did before: a pure function of the group's size and the order of exclusions.
// Block b of an entry belongs to a seat (plan.h); seat s starts with rank s mod members. When a member is excluded its
// seats pass to the present members in turn, starting with the first one after it; living owners keep theirs (protocol
// rule 2). Several exclusions by one view are replayed one by one, so the batches in which views came do not matter.
#pragma once

#include <cstdint>
#include <vector>

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

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(heads_.size()); }
  [[nodiscard]] Rank owner(std::uint32_t seat) const { return Rank{links_[heads_[seat]].owner}; }

  // Visits the owners of `seat`, newest first, until `visit` returns false.
  template <class Visitor>
  void for_each_owner(std::uint32_t seat, Visitor&& visit) const {
    for (std::uint32_t link = heads_[seat]; link != no_link; link = links_[link].earlier) {
      if (!visit(Rank{links_[link].owner})) {
        return;
      }
    }
  }

 private:
  static constexpr std::uint32_t no_link = ~std::uint32_t{0};
  struct Link {
    std::uint32_t owner;
    std::uint32_t earlier;  // link of the owner before, or no_link
  };
  void pass(std::uint32_t seat, std::uint32_t owner);

  std::uint32_t members_;
  std::vector<std::uint32_t> heads_;  // [seats] newest link of each
  std::vector<Link> links_;
};

}  // namespace closeranks::algorithm
