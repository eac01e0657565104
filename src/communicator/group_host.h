// What a group needs from its engine. Called under the drive lock; nothing here blocks or calls back.
#pragma once

#include <memory>
#include <string>

#include "closeranks/engine.h"
#include "communicator/operation.h"
#include "communicator/peer.h"
#include "membership/messages.h"
#include "recorder/ring_writer.h"
#include "transport/shared_arena.h"

namespace closeranks::communicator {

class GroupHost {
 public:
  virtual ~GroupHost() = default;
  [[nodiscard]] virtual const EngineOptions& engine_options() const = 0;
  [[nodiscard]] bool coordinated() const { return !engine_options().coordinator.empty(); }
  // This process's shared memory.
  [[nodiscard]] virtual transport::OwnArena& arena() const = 0;
  // nullptr: nothing is recorded.
  [[nodiscard]] virtual const std::shared_ptr<recorder::RingWriter>& ring() const = 0;
  // `operation` is done; the engine settles it once the lock is free.
  virtual void finished(std::shared_ptr<Operation> operation) = 0;
  // For the event log (coordinated jobs).
  virtual void repaired(membership::OpRepaired event) = 0;
  // An op waits for `peer`, which seems gone (coordinated jobs).
  virtual void suspect(const Peer& peer, std::string reason) = 0;
};

}  // namespace closeranks::communicator
