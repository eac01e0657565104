#include "coordinator/refusals.h"

#include <utility>

namespace closeranks::coordinator {

void Refusals::roll(Time now) {
  if (began_ && now - *began_ < interval) return;
  began_ = now;
  told_ = 0;
  due_ += std::exchange(untold_, 0);
}

bool Refusals::tell(Time now) {
  roll(now);
  if (told_ < lines_per_interval) {
    ++told_;
    return true;
  }
  ++untold_;
  return false;
}

std::optional<std::uint64_t> Refusals::left_out(Time now) {
  roll(now);
  if (due_ == 0) return std::nullopt;
  return std::exchange(due_, 0);
}

}  // namespace closeranks::coordinator
