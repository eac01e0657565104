// Serves the store to torch's TCPStore clients on the loopback device, so that init_method env:// works in unmodified
// scripts and nothing dies with rank 0. It grants no membership: what is in it is as trustworthy as any process of this
// host; the token is never sent over it.
#pragma once

#include <cstdint>
#include <memory>

#include "closeranks/status.h"

namespace asio {
class io_context;
}

namespace closeranks::agent {

// Clients at once; a thousand workers with a few process groups each need this many at most.
inline constexpr std::size_t max_store_clients = 16384;
// Answers that a client has not read.
inline constexpr std::size_t max_unread_bytes = 64u << 20;

class StoreServer {
 public:
  // Listens on 127.0.0.1; port 0: a free one. Fault::system when the port is taken. Runs on the thread of `context`,
  // which must outlive it; create and destroy there or while it is not running.
  static Result<std::unique_ptr<StoreServer>> start(asio::io_context& context, std::uint16_t port);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  [[nodiscard]] std::uint16_t port() const;

 private:
  struct State;
  explicit StoreServer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace closeranks::agent
