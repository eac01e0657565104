// What a group tells the flight recorder besides its ops' own records: who comes last, whom a long wait is for, and
// what the kernel says of those.
#include <algorithm>
#include <utility>

#include "communicator/group.h"

namespace closeranks::communicator {
namespace {

// A wait is told after this long, and again each time it has lasted twice as long.
constexpr std::chrono::milliseconds told_first{250};
// From here on the processes that it is for are looked at, too: at most so many.
constexpr std::chrono::milliseconds looked_at_after{900};
constexpr std::size_t most_looked_at = 4;

}  // namespace

// Who of the members that the first entry of an op waits for was seen missing last. Called again and again while it
// waits: one load, as long as that one has not come.
void Group::note_arrivals() {
  if (entries_.empty()) return;
  const InFlight& entry = entries_.front();
  OpTimes& times = entry.operation->times;
  if (times.all_here_ns != 0) return;
  const auto missing = [&](Rank rank) {
    return rank != members_.self() && members_.entered(rank) <= entry.sequence &&
           machine_.contributes(rank, entry.sequence);
  };
  if (times.somebody_missing && missing(times.last_arrival)) return;
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (!missing(Rank{r})) continue;
    times.somebody_missing = true;
    times.last_arrival = Rank{r};
    return;
  }
  if (!times.somebody_missing) times.last_arrival = members_.self();
  times.all_here_ns = times.somebody_missing ? recorder::now_ns() : times.entered_ns;
}

std::vector<Slot> Group::slots_of(const std::vector<Rank>& ranks) const {
  std::vector<Slot> slots;
  for (const Rank rank : ranks) slots.push_back(members_.slot(rank));
  return slots;
}

void Group::note_waiting(Clock::time_point now) {
  if (!recorder_.on() || broken_ || !open()) return;
  Operation& operation = *oldest();
  const auto waited = now - operation.issued();
  if (operation.times.number == 0 || waited < std::max<Clock::duration>(told_first, operation.times.told_again_after)) {
    return;
  }
  operation.times.told_again_after = waited * 2;
  const std::vector<Rank> waiting = awaited_by_any(operation);
  recorder_.event({.kind = recorder::EventKind::waiting,
                   .number = operation.sequence(),
                   .since_ns = operation.issued().time_since_epoch().count(),
                   .slots = slots_of(waiting),
                   .detail = waiting_text(operation, now)});
  if (waited >= looked_at_after) look_at_processes(waiting);
}

void Group::note_timeout(const Operation& operation, const Status& status) {
  if (!recorder_.on()) return;
  const std::vector<Rank> waiting = awaited_by_any(operation);
  recorder_.event({.kind = recorder::EventKind::timeout,
                   .number = operation.sequence(),
                   .since_ns = operation.issued().time_since_epoch().count(),
                   .slots = slots_of(waiting),
                   .detail = status.message(),
                   .use = recorder::NameUse::last_words});
  look_at_processes(waiting);
}

void Group::look_at_processes(const std::vector<Rank>& ranks) {
  for (std::size_t i = 0; i < std::min(ranks.size(), most_looked_at); ++i) {
    const std::shared_ptr<Peer>& peer = members_.peer(ranks[i]);
    if (!peer || peer->pid == 0) continue;
    const std::string state = peer->state_text();
    const Slot slot = members_.slot(ranks[i]);
    recorder_.event({.kind = recorder::EventKind::peer_state,
                     .slots = {&slot, 1},
                     .worker = peer->worker,
                     .detail = state,
                     .use = recorder::NameUse::last_words});
  }
}

}  // namespace closeranks::communicator
