#include "agent/replacement_policy.h"

#include <algorithm>

namespace closeranks::agent {

ReplacementPolicy::ReplacementPolicy(std::uint32_t slots, ReplacementLimits limits)
    : limits_(limits), places_(slots), at_most_(slots) {}

std::uint32_t ReplacementPolicy::wanted() const {
  return static_cast<std::uint32_t>(std::count_if(places_.begin(), places_.end(), [](const Place& place) {
    return place.state == State::filled || place.state == State::waiting;
  }));
}

void ReplacementPolicy::worker_out(Slot slot, Out how, const std::string& reason, Time now) {
  Place& place = places_.at(slot.value());
  if (place.state != State::filled) return;
  place.state = State::waiting;
  place.due = now;
  place.last_error = reason;
  // A worker that was to leave and died on the way leaves a slot that nobody wants filled.
  if (how == Out::left || wanted() > at_most_) {
    place.state = State::idle;
    return;
  }
  if (how == Out::lost) {
    place.in_a_row = 0;
    return;
  }
  place.early.push_back(now);
  while (!place.early.empty() && now - place.early.front() > limits_.window) place.early.pop_front();
  if (place.early.size() >= limits_.most) {
    place.state = State::given_up;
    place.told = false;
    return;
  }
  auto backoff = limits_.first_backoff;
  for (std::uint32_t time = 0; time < place.in_a_row && backoff < limits_.longest_backoff; ++time) backoff *= 2;
  place.due = now + std::min(backoff, limits_.longest_backoff);
  ++place.in_a_row;
}

void ReplacementPolicy::put_off(Slot slot, Time when) {
  Place& place = places_.at(slot.value());
  place.state = State::waiting;
  place.due = when;
}

void ReplacementPolicy::first_step(Slot slot) { places_.at(slot.value()).in_a_row = 0; }

void ReplacementPolicy::resize(std::uint32_t present, Time now) {
  at_most_ = present;
  for (auto place = places_.rbegin(); place != places_.rend() && wanted() > present; ++place) {
    if (place->state == State::waiting) place->state = State::idle;
  }
  for (auto place = places_.begin(); place != places_.end() && wanted() < present; ++place) {
    if (place->state != State::idle && place->state != State::given_up) continue;
    *place = Place{};
    place->state = State::waiting;
    place->due = now;
  }
}

ReplacementPolicy::Actions ReplacementPolicy::act(Time now) {
  Actions actions;
  if (!replaces()) return actions;
  for (std::uint32_t at = 0; at < places_.size(); ++at) {
    Place& place = places_[at];
    if (place.state == State::given_up && !place.told) {
      place.told = true;
      actions.given_up.push_back({Slot(at), static_cast<std::uint32_t>(place.early.size()), place.last_error});
    } else if (place.state == State::waiting && place.due <= now) {
      place.state = State::filled;
      actions.start.emplace_back(at);
    }
  }
  return actions;
}

std::optional<ReplacementPolicy::Time> ReplacementPolicy::next() const {
  std::optional<Time> next;
  if (!replaces()) return next;
  for (const Place& place : places_) {
    if (place.state == State::waiting) next = next.has_value() ? std::min(*next, place.due) : place.due;
  }
  return next;
}

}  // namespace closeranks::agent
