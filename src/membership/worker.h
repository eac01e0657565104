// A worker's side of the views, as a pure machine. No I/O, no clock, not thread-safe: the control thread calls it.
//
// The engine's part, for each result in this order:
//   addresses   remember where peers are
//   freeze      under the drive lock: stop every group that has a member in `excluding` (nothing is entered, reduced,
//               copied, completed or returned until install; ops issued meanwhile queue), read the `entered` words of
//               the excluded, then call frozen() with one status per such group. Freezing a frozen group again is
//               allowed and tells the same.
//   install     under the drive lock: give every group, frozen or not, resolution_for(install, ...), then unfreeze all
//   evicted     the worker is out: end every op with Fault::evicted, stop
//   send        to the coordinator, in order. Without a connection: drop; connected() says everything again
// A group made later starts from departures_of_new_group(excluded(), members).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "membership/group_status.h"
#include "membership/messages.h"
#include "membership/rules.h"

namespace closeranks::membership {

struct FreezeRequest {
  ViewNumber view;
  std::vector<ExcludedMember> excluding;
};

struct WorkerEffects {
  std::vector<WorkerAddress> addresses;
  std::optional<FreezeRequest> freeze;
  std::optional<Install> install;
  std::optional<Evicted> evicted;
  std::vector<FromWorker> send;
};

class Worker {
 public:
  // Legal transitions: joining -> active -> frozen -> {frozen (higher number), active}, any -> evicted.
  enum class State : std::uint8_t { joining, active, frozen, evicted };

  explicit Worker(WorkerAddress self, Rules rules = {});

  // The control connection is there (again): sends hello and repeats suspicions that still stand.
  WorkerEffects connected();
  WorkerEffects handle(const ToWorker& message);
  // The engine has frozen for `view`. Answers prepared; nothing if the view has been replaced meanwhile.
  WorkerEffects frozen(ViewNumber view, std::vector<GroupStatus> statuses);
  // `suspect` shows a sign of death. Sent once per suspect and view, and once more when an op begins to wait for it.
  WorkerEffects suspect(WorkerId suspect, std::string reason, bool in_op);
  // An op waits for `absent`, of which there is no sign at all, of life or of death (no address yet). Harmless while it
  // may still come; if it has ended in order, it is excluded for this. Sent once per view. Call it for one member at a
  // time (the first one missing): a large job that starts slowly would drown the coordinator otherwise.
  WorkerEffects waits_for(WorkerId absent, std::string reason);
  // The engine has stopped: no group, no op, no mapping is left.
  WorkerEffects goodbye();

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] ViewNumber view() const { return installed_; }  // {0,0} before the first welcome
  [[nodiscard]] const std::vector<ExcludedMember>& excluded() const { return excluded_; }
  [[nodiscard]] bool is_excluded(WorkerId worker) const;

 private:
  struct Raised {
    std::string reason;
    bool in_op = false;
    bool seems_gone = false;
  };
  WorkerEffects raise(WorkerId suspect, Raised raised);
  void say_raised(WorkerEffects& effects) const;

  WorkerEffects on_welcome(const Welcome& welcome);
  WorkerEffects on_propose(const Propose& propose);
  WorkerEffects on_install(const Install& install);
  WorkerEffects on_evicted(const Evicted& evicted);
  [[nodiscard]] bool from_old_term(std::uint32_t term) const;

  WorkerAddress self_;
  Rules rules_;
  State state_ = State::joining;
  std::uint32_t term_ = 0;  // highest seen
  ViewNumber installed_;
  ViewNumber promised_;  // highest proposal accepted (protocol rule 7)
  std::vector<ExcludedMember> excluded_;
  std::map<WorkerId, Raised> raised_;
  bool leaving_ = false;
};

// Departures of a group made when `excluded` was in force: nobody had entered anything, so last_op is 0.
std::vector<Departure> departures_of_new_group(const std::vector<ExcludedMember>& excluded,
                                               const std::vector<Slot>& members);

// What `install` means for one group of the receiver: its resolution if listed; else (the group was made after the
// receiver's answer, nobody had entered anything) departures with last_op 0 for members not yet departed, and `failed`
// as before.
GroupResolution resolution_for(const Install& install, const GroupStatus& group);

}  // namespace closeranks::membership
