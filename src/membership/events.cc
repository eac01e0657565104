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
    case EventKind::gave_up:
      return "gave_up";
    case EventKind::superseded:
      return "superseded";
  }
  return "unknown";
}

}  // namespace closeranks::membership
