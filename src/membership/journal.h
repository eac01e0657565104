// What a coordinator must find again after a restart (protocol rule 21). The machine returns records as an effect; its
// owner appends them, durably where the journal is a file, before it sends anything of the same effects.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "closeranks/ids.h"
#include "membership/group_status.h"
#include "membership/messages.h"

namespace closeranks::membership {

// A coordinator started. Terms only grow; the record is written under the journal's lock.
struct TermStarted {
  std::uint32_t term = 0;
  friend bool operator==(const TermStarted&, const TermStarted&) = default;
};

// An agent has started a newcomer for a vacant slot: it may connect.
struct WorkerStarted {
  WorkerId worker;
  Slot slot;
  std::string host;  // of the agent
  friend bool operator==(const WorkerStarted&, const WorkerStarted&) = default;
};

// The worker has been welcomed, so it may have groups: no view is decided without its answer from here on. A newcomer
// is in none until a view names it among its members.
struct WorkerRegistered {
  WorkerAddress address;
  friend bool operator==(const WorkerRegistered&, const WorkerRegistered&) = default;
};

// A group that begins an epoch with a join: which entry it goes on at.
struct GroupBase {
  GroupKey group;
  std::vector<Slot> members;
  std::uint64_t base = 0;
  friend bool operator==(const GroupBase&, const GroupBase&) = default;
};

// A view is decided. `excluded`: everybody excluded so far, in order. `members`: who fills which slot in it, ascending.
struct ViewDecided {
  ViewNumber view;
  std::vector<ExcludedMember> excluded;
  std::vector<Filled> members{};
  std::vector<GroupBase> bases{};  // of a join; else empty
  friend bool operator==(const ViewDecided&, const ViewDecided&) = default;
};

using JournalRecord = std::variant<TermStarted, WorkerStarted, WorkerRegistered, ViewDecided>;
using Journal = std::vector<JournalRecord>;

}  // namespace closeranks::membership
