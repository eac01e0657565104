// The job's control socket: `closeranks job` asks, the agent answers. JSON lines over a unix socket in the job's log
// folder, for the job's user only (the folder is 0700, the socket 0600).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/file_descriptor.h"
#include "closeranks/status.h"

namespace asio {
class io_context;
}

namespace closeranks::agent {

inline constexpr const char* control_socket_name = "control.sock";
// A request, an answer for a thousand workers.
inline constexpr std::size_t max_request_bytes = 4096;
// People ask, one at a time; more are refused by closing.
inline constexpr std::size_t max_askers = 16;

class ControlSocket {
 public:
  // `answer`: one line of JSON to one line of JSON, both without the newline; called on the thread of `context`.
  using Answer = std::function<std::string(const std::string& request)>;

  // Listens in `folder`. Runs on the thread of `context`, which must outlive it. Fault::system when it cannot.
  static Result<std::unique_ptr<ControlSocket>> open(asio::io_context& context, const std::string& folder,
                                                     Answer answer);
  // Removes the socket.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  struct State;
  explicit ControlSocket(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// The other end: connects to the job in `folder`, asks, returns the line that comes back. Waits deadlines::job_command
// at most. Fault::refused: nobody listens there; Fault::timeout; Fault::system.
Result<std::string> ask_job(const std::string& folder, const std::string& request);

}  // namespace closeranks::agent
