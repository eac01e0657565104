// The client's end of a control connection, whoever the client is: connect, handshake, opening, frames, again after a
// loss. WorkerLink and AgentLink give it their messages. See worker_link.h for the contract.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "closeranks/status.h"
#include "control/control_thread.h"
#include "control/frame.h"
#include "control/handshake.h"
#include "control/link_options.h"

namespace closeranks::control {

struct ClientLinkOptions : LinkOptions {
  Claim claim;
  // The first frames of each connection. A failure ends the attempt (it is told and tried again).
  std::function<Result<std::vector<std::string>>()> opening;
  // A frame after the handshake. A failure ends the connection, which is tried again.
  std::function<Status(FrameKind kind, std::span<const std::byte> body)> frame;
  LinkEvents events;
};

class ClientLink {
 public:
  ClientLink(ControlThread& thread, ClientLinkOptions options);
  ~ClientLink();
  ClientLink(const ClientLink&) = delete;
  ClientLink& operator=(const ClientLink&) = delete;
  void start();
  // `keep`: without a connection the frame waits for the next one instead of being dropped.
  Status send(std::string frame, bool keep);
  void stop(std::chrono::milliseconds grace);
  [[nodiscard]] bool connected() const;

 private:
  class Machine;
  std::shared_ptr<Machine> machine_;
};

}  // namespace closeranks::control
