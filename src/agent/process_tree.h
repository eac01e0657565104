// Which processes belong to which worker, however they were forked and whatever group or session they moved to. The
// agent is a subreaper, so every one of them is its descendant until it ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "closeranks/ids.h"

namespace closeranks::agent {

// A process at one moment. (pid, start_ticks) never comes to mean another one.
struct TreeMember {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;
  WorkerId worker;
  bool known = false;  // whose it is could be told
};

// Orphans of this process and of its descendants become its children from now on, so that none escapes. Call once,
// before the first worker.
void become_subreaper();

// All living descendants of this process but the `mains` (pid -> worker) themselves, each with its worker: by its
// ancestors, its process group, or the CLOSERANKS_WORKER in the environment it was started with. A snapshot.
std::vector<TreeMember> tree_members(const std::map<pid_t, WorkerId>& mains);

// SIGKILL, unless the pid has come to mean another process. True if it was sent or the process is gone.
bool kill_member(const TreeMember& member);

// True while the process has memory of closeranks mapped shared (a segment, life words, an arena), or when that cannot
// be told: it could write into what survivors read. What fork children have of an arena is private.
bool holds_segments(pid_t pid);

}  // namespace closeranks::agent
