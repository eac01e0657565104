// A worker's side of the views, as a pure machine. No I/O, no clock, not thread-safe: the control thread calls it.
//
// The engine's part, for each result in this order:
//   addresses   remember where peers are
//   install     under the drive lock: give every group, frozen or not, resolution_for(install, ...), then unfreeze all.
//               A resolution with an epoch above the group's own starts the group anew at `base`, with the members of
//               install.members; a newcomer's groups are alone no more
//   round_over  under the drive lock: gate.release(round); what is still frozen is unfrozen and goes on as it was; the
//               transient group is closed; at_boundary, finish_transfer and request_join learn `joined`. Of a round
//               that the gate does not know: nothing
//   hold        under the drive lock: step = gate.hold(round) (boundary_gate.h); then call holding(round, step)
//   admit       a member: under the drive lock gate.admit(round, step). When the training thread reaches that boundary
//               (BoundaryGate::Answer::freeze; at once if it waits there) freeze every group, whatever its policy, as
//               in `freeze` but without looking at anybody's words, and call frozen(round, statuses of all groups), on
//               the control thread. A group with an op open: call join_failed(round, reason) instead; the gate stays
//               frozen until round_over.
//               a newcomer (is_newcomer()): it waits in request_join; call frozen(round, one `alone` status per group)
//   freeze      under the drive lock: stop every group that has a member in `excluding` (nothing is entered, reduced,
//               copied, completed or returned until install; ops issued meanwhile queue), read the `entered` words of
//               the excluded, then call frozen() with one status per such group. Freezing a frozen group again is
//               allowed and tells the same. Groups frozen at a boundary stay frozen, all of them. A newcomer's groups
//               that are still alone: `alone` statuses, of all of them.
//   transfer    everybody is frozen at the boundary: make the transient group of sources and newcomers and let the
//               training thread move the state; then call state_served() (a source), state_received() (a newcomer) or
//               join_failed()
//   evicted     the worker is out: end every op with Fault::evicted, stop
//   leave       the next boundary returns Boundary::leave
//   job_finished  a newcomer ends with status 0: the job is over
//   send        to the coordinator, in order. Without a connection: drop; connected() says everything again
// Results of frozen(), holding(), connection_lost() and all others are carried out in the same way.
// A group made later starts from departures_of_new_group(excluded(), members of the group, members()); one that a
// newcomer makes is alone, until it is in.
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

// How a round of joining ended for this worker.
struct RoundOver {
  ViewNumber round;
  bool joined = false;  // its newcomers are members now; else everything is as before the round
  std::string reason;   // when not joined
};

struct WorkerEffects {
  std::vector<WorkerAddress> addresses;
  std::optional<Install> install;
  std::optional<RoundOver> round_over;
  std::optional<Hold> hold;
  std::optional<Admit> admit;
  std::optional<FreezeRequest> freeze;
  std::optional<Transfer> transfer;
  std::optional<Evicted> evicted;
  std::optional<Leave> leave;
  bool job_finished = false;
  std::vector<FromWorker> send;
};

class Worker {
 public:
  // Legal transitions: joining -> active -> frozen -> {frozen (higher number), active}, any -> evicted. Frozen: it has
  // promised a number, of a view change or of a round.
  enum class State : std::uint8_t { joining, active, frozen, evicted };

  explicit Worker(WorkerAddress self, Rules rules = {});

  // The control connection is there (again): sends hello and repeats suspicions that still stand.
  WorkerEffects connected();
  // The connection broke: a hold that has not led to prepared is void (protocol rule 20).
  WorkerEffects connection_lost();
  WorkerEffects handle(const ToWorker& message);
  // The engine has frozen for `view`, a view change or a round. Answers prepared; nothing if a view change has replaced
  // it meanwhile; round_over if the round has been voided meanwhile.
  WorkerEffects frozen(ViewNumber view, std::vector<GroupStatus> statuses);
  // `suspect` shows a sign of death. Sent once per suspect and view, and once more when an op begins to wait for it.
  WorkerEffects suspect(WorkerId suspect, std::string reason, bool in_op);
  // An op waits for `absent`, of which there is no sign at all, of life or of death (no address yet). Harmless while it
  // may still come; if it has ended in order, it is excluded for this. Sent once per view. Call it for one member at a
  // time (the first one missing): a large job that starts slowly would drown the coordinator otherwise.
  WorkerEffects waits_for(WorkerId absent, std::string reason);
  // The engine has stopped: no group, no op, no mapping is left. `for_good`: it leaves the job, the others go on.
  WorkerEffects goodbye(bool for_good = false);

  // -- joining ------------------------------------------------------------------------------------------------------
  // A newcomer is at its first boundary. Said again after every hello until it is in.
  WorkerEffects request_join(std::vector<GroupIntroduction> groups);
  WorkerEffects holding(ViewNumber round, std::uint64_t step);
  WorkerEffects state_served(ViewNumber round);
  WorkerEffects state_received(ViewNumber round);
  // The round cannot go on here. The coordinator cancels it for everybody.
  WorkerEffects join_failed(ViewNumber round, std::string reason);
  // No progress for up to `up_to_ms`, and that is in order; 0: over. Said again after every hello until it is over.
  WorkerEffects pause(std::string what, std::uint32_t up_to_ms);

  // Started for a vacant slot and not in the view yet. Known from the first welcome on.
  [[nodiscard]] bool is_newcomer() const { return newcomer_; }
  // Of the view installed.
  [[nodiscard]] const std::vector<Filled>& members() const { return members_; }

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
  WorkerEffects on_hold(const Hold& hold);
  WorkerEffects on_admit(const Admit& admit);
  WorkerEffects on_transfer(const Transfer& transfer);
  WorkerEffects on_cancel(const Cancel& cancel);
  void end_round(WorkerEffects& effects, const std::string& reason);
  void void_hold(WorkerEffects& effects, const std::string& reason);
  [[nodiscard]] WorkerEffects answer_round(ViewNumber round, FromWorker message) const;
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
  bool for_good_ = false;

  // The round of joining this worker takes part in. `prepared`: promised, only the coordinator's word ends it.
  struct Round {
    ViewNumber number;
    std::vector<WorkerId> newcomers;
    bool admitted = false;
    bool prepared = false;
  };
  bool newcomer_ = false;
  std::vector<Filled> members_;
  std::optional<Round> round_;
  ViewNumber over_;  // the highest round known to be over: none up to it is begun (again)
  std::optional<JoinRequest> request_;
  std::optional<Pause> pause_;
};

// Departures of a group with slots `members`, made in a view with `excluded` and `filled`: one for each slot that is
// vacant, of its last member. Nobody had entered anything, so last_op is 0.
std::vector<Departure> departures_of_new_group(const std::vector<ExcludedMember>& excluded,
                                               const std::vector<Slot>& members, const std::vector<Filled>& filled);

// What `install` means for one group of the receiver: its resolution if listed; else (the group was made after the
// receiver's answer, nobody had entered anything) departures with last_op 0 for members not yet departed, and `failed`
// as before. A group that is `alone` and not listed begins at entry 0, if the install makes the receiver a member.
GroupResolution resolution_for(const Install& install, const GroupStatus& group);

}  // namespace closeranks::membership
