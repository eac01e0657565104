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
  excluded,   // not in the view in force
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
  WorkerAddress address;    // valid if registered
  std::string suspected_because;
  EndStatus end;
  std::optional<Time> fence_deadline;
};

class Roster {
 public:
  explicit Roster(const std::vector<RosterEntry>& entries);

  [[nodiscard]] Member* find(WorkerId worker);  // nullptr: not of this job
  [[nodiscard]] const Member* find(WorkerId worker) const;
  [[nodiscard]] std::vector<Member>& members() { return members_; }  // ascending slots
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] std::vector<Slot> present_slots() const;  // not excluded, ascending
  [[nodiscard]] std::uint32_t present_count() const;

 private:
  std::vector<Member> members_;
  std::map<WorkerId, std::size_t> index_;
};

}  // namespace closeranks::membership
