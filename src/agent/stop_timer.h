// How long a worker has been stopped (SIGSTOP, Ctrl-Z), told from looks at it now and then. Pure; no clock of its own.
#pragma once

#include <chrono>
#include <optional>

namespace closeranks::agent {

class StopTimer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit StopTimer(std::chrono::milliseconds limit) : limit_(limit) {}

  // One look at time `now`: `stopped`: its state is T; `moved`: it was continued, or stopped anew, since the last look
  // (a tool that throttles with SIGSTOP and SIGCONT is no stop). Looks that come late (`gap` after the last one, or
  // more) say that the looker itself was stopped: the clock starts anew. Returns how long it has been stopped, once,
  // when the limit is passed.
  std::optional<std::chrono::milliseconds> look(Time now, bool stopped, bool moved);

 private:
  static constexpr std::chrono::milliseconds gap{2000};
  std::chrono::milliseconds limit_;
  std::optional<Time> since_;
  std::optional<Time> last_;
  bool told_ = false;
};

}  // namespace closeranks::agent
