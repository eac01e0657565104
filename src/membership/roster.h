// Who fills which slot, and what the coordinator knows of each worker. Part of the coordinator's machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "membership/messages.h"

namespace closeranks::membership {

// Time of the machines: since any fixed moment, never going back. Given by the caller.
using Time = std::chrono::microseconds;

struct RosterEntry {
  WorkerId worker;
  Slot slot;
  std::string host;  // of the agent that started it
};

// How a worker ended, as far as known.
struct EndStatus {
  bool known = false;            // reaped
  bool by_itself = true;         // before anybody killed it
  std::int32_t wait_status = 0;  // as from waitpid
  std::string reason;
};

// Life of a worker as the coordinator sees it. Legal transitions: running -> {left, suspected, gone},
// left -> gone, suspected -> {gone, left}, gone -> left (its status 0 is known late), {left, gone} -> excluded.
// Nothing leads back to running: a suspect is always fenced.
enum class Life : std::uint8_t {
  running,    // started, as far as anybody knows
  left,       // said goodbye, or exited with status 0: touches nothing, asked nothing; excluded only when waited for
  suspected,  // its fence is asked for
  gone,       // fenced: it can touch nothing any more
  excluded,   // not in the view in force, and never again; a newcomer that ended before it was in one is dropped so
};

struct Member {
  WorkerId worker;
  Slot slot;
  std::string host;
  Life life = Life::running;
  bool registered = false;  // welcomed at some time: may have groups, so its answer is needed
  bool connected = false;   // it has said hello on a connection that is not known to be broken
  bool waited_for = false;  // some worker's op waits for it
  bool must_go = false;     // to be excluded by the next view
  bool in_view = true;      // false: a newcomer that has not joined
  ViewNumber since;         // the view it joined with; {0,0}: there from the start
  WorkerAddress address;    // valid if registered
  std::string suspected_because;
  EndStatus end;
  std::optional<Time> fence_deadline;

  bool in_session = false;  // it has boundaries
  bool asks = false;        // newcomer: waits to be let in
  bool first_step_due = false;
  std::uint32_t joins_failed = 0;  // rounds that came to nothing because of it
  bool hangs = false;              // suspected for making no progress: its stack is kept
  bool for_good = false;           // left on purpose
  std::string leave_because;       // it has been asked to leave
  bool told_to_leave = false;      // on its present connection
  bool told_finished = false;
};

inline bool is_present(const Member& member) { return member.in_view && member.life != Life::excluded; }

class Roster {
 public:
  explicit Roster(const std::vector<RosterEntry>& entries);

  [[nodiscard]] Member* find(WorkerId worker);  // nullptr: not of this job
  [[nodiscard]] const Member* find(WorkerId worker) const;
  // A newcomer. References to members are void afterwards.
  Member& add(const RosterEntry& entry);
  // Who fills the slot, in the view or as a newcomer; nullptr: it is vacant.
  [[nodiscard]] const Member* in_slot(Slot slot) const;
  [[nodiscard]] bool has_slot(Slot slot) const;
  [[nodiscard]] std::vector<Member>& members() { return members_; }  // ascending slots, then ids
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] std::vector<Slot> present_slots() const;  // not excluded, ascending
  [[nodiscard]] std::uint32_t present_count() const;
  [[nodiscard]] std::vector<Filled> filled() const;   // the present ones, ascending
  [[nodiscard]] std::vector<Refill> refills() const;  // of all joins so far

 private:
  std::vector<Member> members_;
  std::map<WorkerId, std::size_t> index_;
};

}  // namespace closeranks::membership
