// An agent's connection to the coordinator. As WorkerLink, with the agent's messages; see there for the contract.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control/control_thread.h"
#include "control/link_options.h"
#include "membership/messages.h"

namespace closeranks::control {

struct AgentLinkOptions : LinkOptions {
  // What is said first on each connection: AgentHello, then Fenced or Exited for each worker that has ended so far,
  // then Drain and Resize if they were asked for. Asked on the control thread, once per connection.
  std::function<std::vector<membership::FromAgent>()> opening;
  // Claimed in the handshake; AgentHello must name the same.
  std::string host;
  std::function<void(membership::ToAgent message)> message;
  LinkEvents events;
};

class AgentLink {
 public:
  AgentLink(ControlThread& thread, AgentLinkOptions options);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  void start();
  // Without a connection the message is dropped; see above.
  Status send(const membership::FromAgent& message);
  void stop(std::chrono::milliseconds grace = std::chrono::milliseconds{0});
  [[nodiscard]] bool connected() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace closeranks::control
