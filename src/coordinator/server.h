// The membership machine behind a socket: takes the connections of workers and agents, hands their messages and the
// time to membership::Coordinator, and carries out what it returns: journal first, then messages, then events.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "closeranks/status.h"
#include "control/control_thread.h"
#include "coordinator/events.h"
#include "coordinator/journal.h"
#include "membership/coordinator.h"

namespace closeranks::coordinator {

struct ServerOptions {
  std::string address = "127.0.0.1";  // to listen on
  std::uint16_t port = 0;             // 0: a free one
  std::string job;
  std::string token;
  std::vector<membership::RosterEntry> roster;  // which worker fills which slot, the same at every restart
  std::uint32_t min_present = 1;                // below it the job ends rather than shrinks
  bool shrink = true;                           // false: the first loss ends the job (membership::CoordinatorConfig)
  // A worker that all others wait for may make no progress for so long; none: by the job's own history.
  std::optional<std::chrono::milliseconds> hang_timeout;
  // The coordinator has given up or met a newer one (EventKind::gave_up, superseded), or its journal failed: its owner
  // must end the job. On the control thread, once, after the event was emitted. The server stays up, so that workers
  // still get the last install, until stop(). May be empty.
  std::function<void(const Event& why)> ended;
};

// The view in force, as the server last saw it.
struct ViewSnapshot {
  ViewNumber view;
  std::uint32_t term = 0;
  std::vector<Slot> present;  // ascending
  std::vector<membership::ExcludedMember> excluded;
};

class Server {
 public:
  // Listens and runs on `thread`. An empty journal begins the job with term 1; else the term is raised and the job goes
  // on from the journal, while workers reconnect by themselves. thread, journal and events are not owned and must
  // outlive the server. Fault::system when the address cannot be listened on or the journal refuses the new term.
  static Result<std::unique_ptr<Server>> start(control::ControlThread& thread, ServerOptions options, Journal& journal,
                                               EventSink& events);
  // stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // "127.0.0.1:41873": what workers and agents connect to.
  [[nodiscard]] std::string address() const;
  // Any thread.
  [[nodiscard]] ViewSnapshot view() const;
  // Closes the listener and all connections; workers go on training and try to reconnect. Idempotent; any thread but
  // the control thread. No handler runs and nothing is emitted after it returns.
  void stop();

 private:
  struct State;
  explicit Server(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace closeranks::coordinator
