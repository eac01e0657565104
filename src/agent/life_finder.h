// Finds the life memfd of a worker among the open files of its processes: the agent is their parent, so it may look,
// and needs neither the job's token nor a word from the coordinator.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "closeranks/ids.h"
#include "transport/life.h"

namespace closeranks::agent {

// The life of `pid` as `identity`, seen by `watcher`. none: it has none (yet), or none that fits.
std::optional<transport::PeerLife> find_life(pid_t pid, const transport::LifeIdentity& identity, std::uint32_t watcher);

}  // namespace closeranks::agent
