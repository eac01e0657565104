// What a worker's and an agent's connection to the coordinator have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "closeranks/status.h"

namespace closeranks::control {

struct LinkOptions {
  std::string coordinator;  // "host:port"; an IPv6 host in brackets
  std::string token;        // the job's secret; never sent, only proved
  std::string job;          // id of the job: a link to another job's coordinator is refused
};

// Told on the control thread, in this order per connection: (connected, messages..., lost) or refused.
// The handlers may call send(); they must not call stop() or destroy the link.
struct LinkEvents {
  // The handshake is done and the opening is on its way.
  std::function<void()> connected;
  // A connection that was up is gone. The link tries again by itself every deadlines::reconnect.
  std::function<void(const Status& why)> lost;
  // An attempt failed: nobody listens (Fault::system, Move::retry), or the coordinator said no: wrong token, another
  // job, another version (Fault::refused, Move::give_up). The link tries again all the same: the caller's own
  // deadline decides when to stop. Called for the first failed attempt after start or loss, and whenever the
  // reason changes, not for every attempt.
  std::function<void(const Status& why)> refused;
};

// Frames that wait for a slow coordinator. A worker sends a few small frames per view and one per repaired op; a link
// that is this far behind has a coordinator that does not read.
inline constexpr std::size_t link_queue_bytes = 8u << 20;

}  // namespace closeranks::control
