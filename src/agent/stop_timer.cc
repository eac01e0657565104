#include "agent/stop_timer.h"

namespace closeranks::agent {

std::optional<std::chrono::milliseconds> StopTimer::look(Time now, bool stopped, bool moved) {
  const bool looker_was_away = last_.has_value() && now - *last_ > gap;
  last_ = now;
  if (!stopped) {
    since_.reset();
    return std::nullopt;
  }
  if (!since_.has_value() || moved || looker_was_away) since_ = now;
  const auto stopped_for = std::chrono::duration_cast<std::chrono::milliseconds>(now - *since_);
  if (told_ || stopped_for < limit_) return std::nullopt;
  told_ = true;
  return stopped_for;
}

}  // namespace closeranks::agent
