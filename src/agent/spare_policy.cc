#include "agent/spare_policy.h"

#include <algorithm>

namespace closeranks::agent {

void SparePolicy::enable(Time now) {
  if (!due_.has_value()) due_ = now;
}

void SparePolicy::taken(Time now, bool successor) {
  if (successor) return;
  if (running_ > 0) --running_;
  due_ = now + deadlines::spare_after_newcomer;
}

void SparePolicy::newcomer_trains(Time now) {
  // A wait after deaths of spares is no newcomer's to shorten.
  if (due_.has_value() && deaths_ == 0) due_ = std::min(*due_, now);
}

void SparePolicy::died(Time now) {
  if (running_ > 0) --running_;
  auto backoff = deadlines::spare_backoff;
  for (std::uint32_t time = 0; time < deaths_ && backoff < deadlines::spare_backoff_longest; ++time) backoff *= 2;
  ++deaths_;
  due_ = now + std::min(backoff, deadlines::spare_backoff_longest);
}

std::uint32_t SparePolicy::act(Time now) {
  if (!due_.has_value() || *due_ > now || running_ >= wanted_) return 0;
  const std::uint32_t starts = wanted_ - running_;
  running_ = wanted_;
  return starts;
}

std::optional<SparePolicy::Time> SparePolicy::next() const {
  if (running_ >= wanted_) return std::nullopt;
  return due_;
}

}  // namespace closeranks::agent
