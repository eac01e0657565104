// An agent's connection to the coordinator. As WorkerLink, with the agent's messages; see there for the contract.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "control/control_thread.h"
#include "control/link_options.h"
#include "membership/messages.h"

namespace closeranks::control {

struct AgentLinkOptions : LinkOptions {
  // What the agent says of itself; asked on the control thread once per connection. `host` is also what it claims in
  // the handshake, and must not change. Facts the coordinator may have missed while the link was down (Exited,
  // Fenced) stay in the queue and follow the hello.
  std::function<membership::AgentHello()> hello;
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
  Status send(const membership::FromAgent& message);
  void stop(std::chrono::milliseconds grace = std::chrono::milliseconds{0});
  [[nodiscard]] bool connected() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace closeranks::control
