// Who hangs: a worker that still runs and answers, but does not get on while everybody waits for it. Heartbeats prove
// nothing; what counts is progress, which every worker tells four times a second. Pure: the coordinator's machine owns
// it and fences whom it names.
//
// The one that many wait for is not the culprit (protocol rule 22): B waits for C, C for D, D for nobody: D is. So the
// waits are followed to their sinks. A sink is in no op, or in one that waits for nobody. It hangs when
//   - it has finished an op before (start-up takes as long as it takes), has not said that it pauses, and its words are
//     fresh: one that has fallen silent is stopped, which is its agent's to tell
//   - every other present worker waits for it, directly or through others (or is such a sink itself)
//   - this has held, and it has got nowhere, for the timeout
// Workers that wait for each other in a circle are reported, and nobody is fenced: none of them is the cause. They find
// a circle themselves, long before, and its ops fail (communicator/order_cycle.h); what is left to report here are
// waits that their boards do not show, on a future for example.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadlines.h"
#include "closeranks/ids.h"
#include "membership/messages.h"
#include "membership/roster.h"

namespace closeranks::membership {

struct HangConfig {
  std::chrono::milliseconds timeout = deadlines::hang;
  // Go below it where the job's own history allows: 20 times the longest gap between finished ops, at least `least`.
  bool adaptive = true;
  std::chrono::milliseconds least = deadlines::hang_least;
};

class HangDetector {
 public:
  struct Hung {
    WorkerId worker;
    std::string reason;  // "has not entered all_reduce #12 of group 'world', in which slots 0, 1 have waited for ..."
  };
  struct Verdict {
    std::vector<Hung> hung;
    std::optional<std::string> circle;  // told once
  };
  // Workers that wait at a boundary for others, in a round of joining.
  struct Boundary {
    std::uint64_t step = 0;
    std::vector<Slot> arrived;
    std::vector<Slot> missing;
  };

  explicit HangDetector(HangConfig config) : config_(config) {}

  void progress(const Progress& progress, Time now);
  void paused(const Pause& pause, Time now);
  void forget(WorkerId worker) { known_.erase(worker); }
  // A view change, or a stall of the coordinator: what was waited for then says nothing of anybody.
  void disturbed();
  // Call it often (four times a second): a hang is what holds between one call and the next.
  Verdict judge(const std::vector<Filled>& present, const std::optional<Boundary>& boundary, Time now);
  [[nodiscard]] std::chrono::milliseconds timeout() const;

 private:
  struct Known {
    Progress last;
    Time heard{};
    Time moved{};  // step, entered or completed changed
    std::uint64_t finished = 0;
    bool has_finished = false;  // an op, since it is known
    std::optional<Time> paused_until;
    std::optional<Time> blamed;  // since when everybody waits for it
  };
  struct Graph;

  void remember_gap(Time now);
  [[nodiscard]] bool is_fresh(const Known& known, Time now) const;
  [[nodiscard]] std::string reason_for(const Graph& graph, std::size_t sink, const std::vector<Filled>& present,
                                       const std::optional<Boundary>& boundary, Time now) const;

  HangConfig config_;
  std::map<WorkerId, Known> known_;
  std::optional<Time> first_finish_;
  std::optional<Time> last_finish_;
  Time longest_gap_{};
  std::uint64_t gaps_ = 0;
  std::optional<Time> circle_since_;
  bool circle_told_ = false;
};

}  // namespace closeranks::membership
