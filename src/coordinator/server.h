// The membership machine behind a socket: takes the connections of workers and agents, hands their messages and the
// time to membership::Coordinator, and carries out what it returns: journal first, then messages, then events.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "closeranks/status.h"
#include "control/control_thread.h"
#include "coordinator/events.h"
#include "coordinator/journal.h"

namespace closeranks::coordinator {

struct ServerOptions {
  std::string address = "127.0.0.1";  // to listen on
  std::uint16_t port = 0;             // 0: a free one
  std::string job;
  std::string token;
  std::uint32_t slots = 1;        // N of the job
  std::uint32_t min_present = 1;  // below it the job ends rather than shrinks
};

// The view in force, as the server last saw it.
struct ViewSnapshot {
  ViewNumber view;
  std::vector<Slot> present;
  std::vector<WorkerId> workers;  // known workers of `present`, any order
};

class Server {
 public:
  // Listens, replays `journal` (an empty one begins the job with term 1; otherwise the term is raised and the job goes
  // on) and runs on `thread`. thread, journal and events are not owned and must outlive the server.
  // Fault::system when the address cannot be listened on or the journal refuses the new term.
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
