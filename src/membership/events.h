// What the coordinator's machine reports to people: typed records first, log and JSON lines second.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "closeranks/ids.h"
#include "membership/messages.h"

namespace closeranks::membership {

enum class EventKind : std::uint8_t {
  worker_registered,  // first hello of a worker
  worker_left,        // in order: goodbye, or exit status 0
  worker_suspected,   // first sign; the fence follows. Once per worker, always before its exclusion
  worker_fenced,      // proof that it can touch nothing any more
  fence_overdue,      // the agent has given no proof by the deadline; it is asked again
  view_proposed,      // survivors are asked to freeze
  worker_excluded,    // with view_installed of the same view, before it
  view_installed,
  op_repaired,      // reported by a survivor
  session_started,  // some worker has boundaries: newcomers can be let in from now on. Once
  worker_joined,    // a newcomer is in; with view_installed of the same view, before it
  join_pending,     // somebody asks to be let in: the others are asked to hold
  join_cancelled,   // that round came to nothing; the newcomers ask again
  first_step,       // a newcomer has finished its first step
  worker_hung,      // it makes no progress and all others wait for it; with worker_suspected, before it
  draining,         // workers are asked to leave at their next boundary
  gave_up,          // below min_present, or a loss without shrink: the job must end. Once
  superseded,       // a worker knows a newer coordinator: this one must stop. Once
};

// So begins the reason of worker_left for one that left on purpose (Goodbye for_good): its exclusion follows, and it is
// not replaced.
inline constexpr std::string_view left_for_good = "left the job";

std::string_view name_of(EventKind kind);  // "worker_suspected", ...

// Fields that do not apply are empty. `view` is the view in force, or (proposed, installed, excluded) the new one.
struct Event {
  EventKind kind = EventKind::worker_registered;
  std::optional<WorkerId> worker;
  std::optional<Slot> slot;
  ViewNumber view;
  std::string reason;         // one sentence: what happened, "killed by signal 9"
  std::string detail;         // further facts for a person
  std::vector<Slot> present;  // view_installed: slots that are left, ascending
  std::optional<OpRepaired> repaired;
};

}  // namespace closeranks::membership
