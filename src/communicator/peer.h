// Another worker of the job, as this process knows it: its address, and its life and its arena once attached.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/process_state.h"
#include "closeranks/ids.h"
#include "transport/life.h"
#include "transport/shared_arena.h"

namespace closeranks::communicator {

// Shared by all groups it is a member of; never removed while the engine lives, because sleepers hold pointers to its
// life words. The address is fixed; the rest changes under the drive lock, `life` and `arena` from empty to
// attached only.
struct Peer {
  Slot slot;
  WorkerId worker;
  std::uint32_t pid = 0;
  std::string endpoint;  // of its segment server
  std::string token;     // that its segment server asks for

  std::optional<transport::PeerLife> life;
  bool fetching_life = false;
  std::optional<transport::PeerArena> arena;
  bool fetching_arena = false;
  // Its segment server does not answer any more: the process is gone, also where its life was never attached.
  bool unreachable = false;
  // Why the coordinator excluded it; empty: it did not, or this worker does not know yet.
  std::string excluded_because;

  // It ended in order, and said so.
  [[nodiscard]] bool left() const { return life.has_value() && life->state() == transport::LifeState::departed; }
  [[nodiscard]] bool gone() const {
    return unreachable || (life.has_value() && life->state() != transport::LifeState::alive);
  }
  // What its process does, as describe_process() says it; empty: not known. Reads /proc.
  [[nodiscard]] std::string state_text() const {
    if (pid == 0) return "";
    return gone() ? "dead" : describe_process(static_cast<pid_t>(pid));
  }
};

}  // namespace closeranks::communicator
