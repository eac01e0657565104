// A worker's connection to the coordinator: connects, proves the token, says Hello, and does so again whenever the
// connection breaks. Messages come in on the control thread and go out from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "closeranks/ids.h"
#include "control/control_thread.h"
#include "control/link_options.h"
#include "membership/messages.h"

namespace closeranks::control {

struct WorkerLinkOptions : LinkOptions {
  WorkerId worker;  // claimed in the handshake; every Hello must carry the same
  // What the worker's machine says of itself now; asked on the control thread once per connection.
  std::function<membership::Hello()> hello;
  // One message from the coordinator, on the control thread, in order.
  std::function<void(membership::ToWorker message)> message;
  LinkEvents events;
};

class WorkerLink {
 public:
  // `thread` must outlive the link. Any thread.
  WorkerLink(ControlThread& thread, WorkerLinkOptions options);
  // stop().
  ~WorkerLink();
  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;

  // Begins connecting; returns at once. Call once.
  void start();
  // Any thread, never blocks. Frames keep their order. While there is no connection they wait and follow the next
  // Hello; so a message may reach a coordinator of a later term, which drops it by its number (protocol rule 21).
  // Errors: closed after stop(); Fault::system with Move::retry when link_queue_bytes are waiting (nothing is queued);
  // invalid_argument when the message is larger than a frame. Hello cannot be sent here: the link says it.
  Status send(const membership::FromWorker& message);
  // Writes what is queued for up to `grace`, then closes. No handler runs after it returns. Idempotent; any thread
  // but the control thread.
  void stop(std::chrono::milliseconds grace = std::chrono::milliseconds{0});
  [[nodiscard]] bool connected() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace closeranks::control
