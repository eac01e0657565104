#include "membership/events.h"

namespace closeranks::membership {

std::string_view name_of(EventKind kind) {
  switch (kind) {
    case EventKind::worker_registered:
      return "worker_registered";
    case EventKind::worker_left:
      return "worker_left";
    case EventKind::worker_suspected:
      return "worker_suspected";
    case EventKind::worker_fenced:
      return "worker_fenced";
    case EventKind::fence_overdue:
      return "fence_overdue";
    case EventKind::view_proposed:
      return "view_proposed";
    case EventKind::worker_excluded:
      return "worker_excluded";
    case EventKind::view_installed:
      return "view_installed";
    case EventKind::op_repaired:
      return "op_repaired";
    case EventKind::session_started:
      return "session_started";
    case EventKind::worker_joined:
      return "worker_joined";
    case EventKind::join_pending:
      return "join_pending";
    case EventKind::join_cancelled:
      return "join_cancelled";
    case EventKind::first_step:
      return "first_step";
    case EventKind::worker_hung:
      return "worker_hung";
    case EventKind::draining:
      return "draining";
    case EventKind::gave_up:
      return "gave_up";
    case EventKind::superseded:
      return "superseded";
  }
  return "unknown";
}

}  // namespace closeranks::membership
