#include "trace/deaths.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "trace/sentences.h"

namespace closeranks::trace {

using recorder::Event;
using recorder::EventKind;
using recorder::OpTrace;
using recorder::Role;
using recorder::WorkerTrace;

namespace {

// Clocks of two hosts are this far apart at most.
constexpr std::int64_t clock_slack_ns = 20'000'000;
// The kernel's count of kills for memory is polled: it may be seen that long after the kill, or before its reap.
constexpr std::int64_t count_slack_ns = 5'000'000'000;

bool is_fence_for_stop(const std::string& reason) { return reason.starts_with("stopped"); }
bool is_fence_for_kernel(const std::string& reason) { return reason.starts_with("in the kernel"); }
bool is_fence_for_hang(const std::string& reason) {
  return reason.starts_with("has not entered") || reason.starts_with("makes no progress") ||
         reason.find("hung") != std::string::npos;
}

// Whose end an event tells of. A worker's own events are about its own slot.
struct Key {
  Slot slot;
  std::optional<WorkerId> worker;
  friend auto operator<=>(const Key&, const Key&) = default;
};

class Collector {
 public:
  explicit Collector(const JobIndex& index) : index_(index) {}

  std::vector<Death> all() {
    for (const SeenEvent& seen : index_.events()) see(seen);
    for (const WorkerTrace* worker : index_.workers()) see_files(*worker);
    count_out_of_memory();
    std::vector<Death> found;
    for (auto& [key, death] : deaths_) {
      if (!ended_well(death)) found.push_back(std::move(death));
    }
    std::stable_sort(found.begin(), found.end(), [](const Death& a, const Death& b) { return a.at_ns < b.at_ns; });
    return found;
  }

 private:
  // Events that name no worker are about the last one of the slot.
  const WorkerTrace* file_of(Slot slot, std::optional<WorkerId> id) const {
    if (!id.has_value()) return index_.last(slot);
    for (const WorkerTrace* worker : index_.workers()) {
      if (worker->slot == slot && worker->worker == id) return worker;
    }
    const WorkerTrace* last = index_.last(slot);
    return last != nullptr && !last->worker.has_value() ? last : nullptr;
  }

  Death& death_of(Slot slot, std::optional<WorkerId> id, std::int64_t at_ns) {
    const WorkerTrace* worker = file_of(slot, id);
    if (worker != nullptr && worker->worker.has_value()) id = worker->worker;
    const auto [place, is_new] = deaths_.try_emplace(Key{slot, id});
    Death& death = place->second;
    if (is_new) {
      death.slot = slot;
      death.worker = worker;
      death.id = id;
      death.at_ns = at_ns;
    }
    death.at_ns = std::min(death.at_ns, at_ns);
    return death;
  }

  void see(const SeenEvent& seen) {
    const Event& event = *seen.event;
    switch (event.kind) {
      case EventKind::exception:
        if (seen.by->role == Role::worker && seen.by->slot.has_value()) see_exception(seen);
        break;
      case EventKind::ended:
        if (seen.by->role == Role::worker && seen.by->slot.has_value()) see_end(seen);
        break;
      case EventKind::worker_exited:
        if (!event.slots.empty()) see_exit(event);
        break;
      case EventKind::out_of_memory:
        if (!event.slots.empty()) {
          Death& death = death_of(event.slots.front(), event.worker, event.at_ns);
          death.out_of_memory = true;
          death.evidence.push_back("the kernel counted a kill for memory" + in_brackets(event.detail));
        } else {
          counted_.push_back(&event);
        }
        break;
      case EventKind::peer_lost:
        if (!event.slots.empty()) {
          Death& death = death_of(event.slots.front(), event.worker, event.at_ns);
          if (death.detail.empty()) death.detail = event.detail;
          const std::string by = seen.by->slot.has_value() ? name_slots({*seen.by->slot}) : "its host";
          death.evidence.push_back(by + " saw it go" + (event.detail.empty() ? "" : ": " + event.detail));
        }
        break;
      case EventKind::view:
        see_view(seen);
        break;
      case EventKind::stack:
        if (!event.slots.empty() && !event.stack.empty()) {
          stacks_[Key{event.slots.front(), id_of(event)}] = event.stack;
        }
        break;
      case EventKind::peer_state:
      case EventKind::excluded:
        if (!event.slots.empty()) fenced_[Key{event.slots.front(), id_of(event)}].push_back(&event);
        break;
      default:
        break;
    }
  }

  static std::string in_brackets(const std::string& text) { return text.empty() ? "" : " (" + text + ")"; }

  std::optional<WorkerId> id_of(const Event& event) const {
    const WorkerTrace* worker = file_of(event.slots.front(), event.worker);
    return worker != nullptr && worker->worker.has_value() ? worker->worker : event.worker;
  }

  void see_exception(const SeenEvent& seen) {
    const Event& event = *seen.event;
    Death& death = death_of(*seen.by->slot, seen.by->worker, event.at_ns);
    if (death.how == Death::How::exception) return;
    death.how = Death::How::exception;
    death.detail = last_line(event.detail);
    death.stack = event.stack;
    death.evidence.insert(death.evidence.begin(), "its last line: " + death.detail);
  }

  // "slot 1 is out (worker 1): killed by signal 9 (SIGKILL)": what the coordinator told every survivor.
  void see_view(const SeenEvent& seen) {
    const std::string& text = seen.event->detail;
    unsigned slot = 0;
    unsigned long long worker = 0;
    int signal = 0;
    if (std::sscanf(text.c_str(), "slot %u is out (worker %llu): killed by signal %d", &slot, &worker, &signal) != 3)
      return;
    Death& death = death_of(Slot(slot), WorkerId(worker), seen.event->at_ns);
    if (death.how != Death::How::gone) return;
    death.how = Death::How::signal;
    death.signal = signal;
    death.evidence.push_back("the coordinator told " +
                             (seen.by->slot.has_value() ? name_slots({*seen.by->slot}) : "it") + ": " + text);
  }

  void see_end(const SeenEvent& seen) {
    const int status = exit_status(seen.event->detail);
    if (status == 0) return;
    Death& death = death_of(*seen.by->slot, seen.by->worker, seen.event->at_ns);
    death.status = status;
    if (death.how == Death::How::gone) death.how = Death::How::status;
  }

  void see_exit(const Event& event) {
    const auto status = static_cast<int>(event.number);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const auto reason = fence_before(event);
    Death& death = death_of(event.slots.front(), event.worker, event.at_ns);
    const std::string how = !event.detail.empty() ? event.detail
                            : WIFSIGNALED(status) ? "killed by signal " + std::to_string(WTERMSIG(status))
                                                  : "exited with status " + std::to_string(WEXITSTATUS(status));
    death.evidence.push_back("the agent reaped it: " + how);
    if (WIFSIGNALED(status)) {
      death.signal = WTERMSIG(status);
      // An exception that was on its way out, or a fence: the kill is what came of it.
      if (death.how == Death::How::exception) return;
      death.how = death.signal == SIGKILL && reason.has_value() ? reason->how : Death::How::signal;
      if (reason.has_value() && death.how == reason->how) {
        death.detail = reason->detail;
        death.at_ns = std::min(death.at_ns, reason->at_ns);
        death.evidence.insert(death.evidence.begin(), "before it was killed: " + death.detail);
        if (death.stack.empty()) death.stack = stacks_[Key{event.slots.front(), id_of(event)}];
      }
    } else {
      death.status = WEXITSTATUS(status);
      if (death.how == Death::How::gone) death.how = Death::How::status;
    }
  }

  struct Fence {
    Death::How how;
    std::string detail;
    std::int64_t at_ns;
  };

  static std::optional<Fence> fence_of(const std::string& why, std::int64_t at_ns, bool may_be_hang) {
    if (is_fence_for_stop(why)) return Fence{Death::How::fenced_stopped, why, at_ns};
    if (is_fence_for_kernel(why)) return Fence{Death::How::fenced_kernel, why, at_ns};
    if (may_be_hang && is_fence_for_hang(why)) return Fence{Death::How::fenced_hung, why, at_ns};
    return std::nullopt;
  }

  // Why it was fenced, if the kill that followed was a fence.
  std::optional<Fence> fence_before(const Event& exit) const {
    std::optional<Fence> reason;
    const auto found = fenced_.find(Key{exit.slots.front(), id_of(exit)});
    if (found != fenced_.end()) {
      for (const Event* event : found->second) {
        const auto fence = fence_of(event->detail, event->at_ns, event->kind == EventKind::excluded);
        // A state that says nothing: it runs again.
        if (fence.has_value() || event->kind == EventKind::peer_state) reason = fence;
      }
    }
    if (reason.has_value()) return reason;
    // A job that ends with it excludes nobody: "killed by signal 9 (SIGKILL): has not entered ..."
    const std::size_t end = exit.detail.find(": ");
    return end == std::string::npos ? std::nullopt : fence_of(exit.detail.substr(end + 2), exit.at_ns, true);
  }

  // A file that was not closed, of a process that is not there.
  void see_files(const WorkerTrace& worker) {
    if (!worker.slot.has_value() || worker.ended_in_order || worker.running != false) return;
    // Signs of its end say when it was; its file says no more than that it was later than its last word.
    if (deaths_.contains(Key{*worker.slot, worker.worker})) return;
    Death& death = death_of(*worker.slot, worker.worker, worker.last_written_ns);
    death.evidence.emplace_back("its process is gone, and its file was not closed");
  }

  // The kernel's count names nobody: it is the one SIGKILL near it.
  void count_out_of_memory() {
    for (const Event* event : counted_) {
      Death* near = nullptr;
      for (auto& [key, death] : deaths_) {
        const bool killed = death.how == Death::How::signal && death.signal == SIGKILL;
        if (!killed || std::abs(death.at_ns - event->at_ns) > count_slack_ns) continue;
        if (near == nullptr || death.at_ns < near->at_ns) near = &death;
      }
      if (near == nullptr) continue;
      near->out_of_memory = true;
      near->evidence.insert(near->evidence.begin(), "the kernel counted " + count_of(event->number, "kill") +
                                                        " for memory" + in_brackets(event->detail));
    }
  }

  // What peers took for a death was an end in order.
  static bool ended_well(const Death& death) {
    return death.how == Death::How::gone && death.worker != nullptr && death.worker->ended_in_order;
  }

  const JobIndex& index_;
  std::map<Key, Death> deaths_;
  std::map<Key, std::vector<const Event*>> fenced_;
  std::map<Key, std::string> stacks_;  // the newest that an agent has asked for
  std::vector<const Event*> counted_;
};

// How far the dead one was in a group, by its own file: nobody completes a later number without a repair.
std::optional<std::uint64_t> next_of(const WorkerTrace* worker, const GroupIndex& group) {
  if (worker == nullptr) return std::nullopt;
  for (const auto& one : worker->groups) {
    if (one.name == group.name && one.members == group.members) {
      return std::max(one.entered, one.current.has_value() ? one.current->sequence + 1 : 0);
    }
  }
  return std::nullopt;
}

// The others have completed, without it, ops that it was a member of.
bool went_on_without(const JobIndex& index, const Death& death) {
  for (const GroupIndex& group : index.groups()) {
    if (std::find(group.members.begin(), group.members.end(), death.slot) == group.members.end()) continue;
    const auto next = next_of(death.worker, group);
    for (const auto& [slot, standing] : group.standing) {
      if (standing.worker == death.worker) continue;
      for (const OpTrace* op : standing.ops) {
        if (!op->finished_ns.has_value() || !op->failure.empty()) continue;
        const bool later = *op->finished_ns > death.at_ns + clock_slack_ns;
        if (next.has_value() ? op->sequence >= *next : later) return true;
      }
    }
  }
  return false;
}

// A later worker of the slot took part in the job.
bool was_replaced(const JobIndex& index, const Death& death) {
  // Whoever watched has seen what became of a later worker of the slot.
  const bool seen_later = std::any_of(index.events().begin(), index.events().end(), [&](const SeenEvent& seen) {
    const Event& event = *seen.event;
    return !event.slots.empty() && event.slots.front() == death.slot && death.id.has_value() &&
           event.worker.has_value() && *event.worker > *death.id;
  });
  if (seen_later) return true;
  const WorkerTrace* last = index.last(death.slot);
  if (last == nullptr || last == death.worker) return false;
  if (death.worker == nullptr && (!death.id.has_value() || !last->worker.has_value() || *death.id >= *last->worker)) {
    return false;
  }
  return std::any_of(last->ops.begin(), last->ops.end(), [&](const OpTrace& op) {
    return op.finished_ns.has_value() && op.failure.empty() && last->groups.at(op.group).members.size() > 1 &&
           *op.finished_ns > death.at_ns;
  });
}

bool is_got_over(const JobIndex& index, const Death& death) {
  return was_replaced(index, death) || went_on_without(index, death);
}

// When the first op failed that was not got over, of anybody but the slot.
std::int64_t first_failure_ns(const JobIndex& index, Slot slot) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const GroupIndex& group : index.groups()) {
    for (const auto& [other, standing] : group.standing) {
      if (other == slot || standing.pending == nullptr || standing.pending->failure.empty()) continue;
      first = std::min(first, standing.pending->finished_ns.value_or(first));
    }
  }
  return first;
}

bool is_consequence(const JobIndex& index, const Death& death) {
  if (death.how == Death::How::exception && is_about_peers(death.detail)) return true;
  // A cause comes before what it makes.
  if (!speaks_for_itself(death) && first_failure_ns(index, death.slot) + clock_slack_ns < death.at_ns) return true;
  if (death.worker == nullptr || !index.is_last(*death.worker)) return false;
  for (const GroupIndex& group : index.groups()) {
    const auto found = group.standing.find(death.slot);
    if (found == group.standing.end()) continue;
    for (const OpTrace* op : {found->second.pending, found->second.point_to_point}) {
      if (op == nullptr || op->failure.empty()) continue;
      if (op->finished_ns.value_or(0) <= death.at_ns) return true;
    }
  }
  return false;
}

}  // namespace

int exit_status(const std::string& detail) {
  static constexpr std::string_view start = "exit status ";
  if (!detail.starts_with(start)) return 0;
  int status = 0;
  std::from_chars(detail.data() + start.size(), detail.data() + detail.size(), status);
  return status;
}

bool speaks_for_itself(const Death& death) {
  if (death.how == Death::How::signal) return true;
  if (death.how == Death::How::status || death.how == Death::How::exception || death.how == Death::How::gone) {
    return death.worker != nullptr && JobIndex::is_whole(*death.worker);
  }
  return true;
}

bool Death::was_asked() const {
  return how == How::gone ||
         (how == How::signal && !out_of_memory && (signal == SIGTERM || signal == SIGINT || signal == SIGHUP));
}

bool is_about_peers(const std::string& text) {
  // A wrong call of its own is nobody else's doing.
  if (text.find("InvalidCall") != std::string::npos || text.find("Unsupported") != std::string::npos) return false;
  static constexpr std::array<std::string_view, 9> marks{"closeranks.",
                                                         "DistBackendError",
                                                         "DistNetworkError",
                                                         "Connection closed by peer",
                                                         "Connection reset by peer",
                                                         "Timed out waiting",
                                                         "Broken pipe",
                                                         "gloo/transport",
                                                         "ncclRemoteError"};
  return std::any_of(marks.begin(), marks.end(),
                     [&text](std::string_view mark) { return text.find(mark) != std::string::npos; });
}

std::vector<Death> find_deaths(const JobIndex& index) {
  std::vector<Death> found;
  for (Death& death : Collector(index).all()) {
    if (is_got_over(index, death)) continue;
    death.consequence = is_consequence(index, death);
    found.push_back(std::move(death));
  }
  return found;
}

std::vector<Slot> vacant_slots(const JobIndex& index) {
  std::vector<Slot> slots;
  for (const Death& death : Collector(index).all()) {
    const WorkerTrace* last = index.last(death.slot);
    if ((last == nullptr || last == death.worker) && is_got_over(index, death)) slots.push_back(death.slot);
  }
  return slots;
}

std::vector<std::string> repaired_deaths(const JobIndex& index) {
  std::vector<std::string> sentences;
  for (const Death& death : Collector(index).all()) {
    if (!is_got_over(index, death)) continue;
    std::string how = death.how == Death::How::signal ? "was killed by " + name_signal(death.signal)
                      : death.detail.empty()          ? "was lost"
                                                      : "was lost: " + death.detail;
    sentences.push_back(name_worker(death.slot, death.worker) + " " + how + ", and the job went on");
  }
  return sentences;
}

}  // namespace closeranks::trace
