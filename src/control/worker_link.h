// A worker's connection to the coordinator: connects, proves the token, says hello, and does so again whenever the
// connection breaks. Messages come in on the control thread and go out from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "closeranks/ids.h"
#include "control/control_thread.h"
#include "control/link_options.h"
#include "membership/messages.h"

namespace closeranks::control {

struct WorkerLinkOptions : LinkOptions {
  WorkerId worker;  // claimed in the handshake; every message must name the same
  // What is said first on each connection: membership::Worker::connected().send, which begins with Hello. Asked on the
  // control thread, once per connection.
  std::function<std::vector<membership::FromWorker>()> opening;
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
  // Any thread, never blocks; messages keep their order. Without a connection a message is dropped and the answer is
  // Fault::system with Move::retry: the next opening says what still holds (see membership::Worker). OpRepaired alone
  // waits for the next connection: it is for the event log, and nobody says it again. So is the answer when
  // link_queue_bytes wait already. closed after stop(); invalid_argument when the message is larger than a frame.
  Status send(const membership::FromWorker& message);
  // Writes what is queued for up to `grace`, then closes. No handler runs after it returns. Idempotent; any thread
  // but the control thread.
  void stop(std::chrono::milliseconds grace = std::chrono::milliseconds{0});
  [[nodiscard]] bool connected() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace closeranks::control
