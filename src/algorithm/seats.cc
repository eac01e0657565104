#include "algorithm/seats.h"

#include "base/assert.h"

namespace closeranks::algorithm {

Seats::Seats(std::uint32_t members) : members_(members) {
  CR_ASSERT(members > 0);
  const std::uint32_t seats = members * seats_per_member;
  owners_.reserve(seats);
  for (std::uint32_t seat = 0; seat < seats; ++seat) {
    owners_.push_back(seat % members);
  }
}

void Seats::exclude(Rank gone, const RankSet& present, bool living_keep) {
  CR_ASSERT(gone.value() < members_ && present.size() == members_ && !present[gone.value()]);
  std::uint32_t heir = gone.value();
  for (std::uint32_t seat = 0; seat < count(); ++seat) {
    if (living_keep && owner(seat) != gone) {
      continue;
    }
    std::uint32_t steps = 0;
    do {
      heir = (heir + 1) % members_;
    } while (!present[heir] && ++steps < members_);
    if (!present[heir]) {
      return;  // nobody is left
    }
    owners_[seat] = heir;
  }
}

}  // namespace closeranks::algorithm
