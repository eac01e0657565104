// The coordinator's listener: lets in whoever proves the job's token within deadlines::handshake, turns all others away
// with a reason, and lets no stranger disturb those inside. Control thread only, except where said.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "closeranks/status.h"
#include "control/connection.h"
#include "control/handshake.h"

namespace closeranks::coordinator {

// Connections that have proved nothing yet. Above it the one that has waited longest is closed: a job's own workers
// prove themselves in milliseconds.
inline constexpr std::size_t strangers_limit = 1'024;
// How long a refused connection may take to read the refusal.
inline constexpr std::chrono::milliseconds refusal_linger{1'000};

struct DoorOptions {
  std::string address;  // numeric
  std::uint16_t port = 0;
  std::string job;
  std::string token;
  // May a client with a true proof come in? Otherwise the reason it is told.
  std::function<Status(const control::Claim& claim)> check;
  // It is in: the connection is open, `accepted` is on its way. The owner calls set_events().
  std::function<void(const control::Claim& claim, std::shared_ptr<control::Connection> connection)> admitted;
  // It was turned away. `who`: its address, and what it claims to be if it got that far.
  std::function<void(const std::string& who, const std::string& why)> refused;
};

class Door : public std::enable_shared_from_this<Door> {
 public:
  // Any thread, before start().
  Door(asio::io_context& context, DoorOptions options);
  Status listen();
  [[nodiscard]] std::uint16_t port() const { return port_; }

  // Begins to accept.
  void start();
  // Turns a connection away: says why, and closes it when the other side has read that.
  static void turn_away(control::Connection& connection, const std::string& why, std::function<void()> done = {});
  // Closes the listener and every connection that is not admitted.
  void stop();

 private:
  struct Stranger {
    Stranger(asio::io_context& context, std::shared_ptr<control::Connection> its_connection, std::string its_address);
    std::shared_ptr<control::Connection> connection;
    std::string address;
    asio::steady_timer deadline;
    Nonce nonce;
    bool refused = false;
  };

  void wait();
  void accept_all();
  void greet(asio::ip::tcp::socket socket, const std::string& address);
  void frame(std::uint64_t id, control::FrameKind kind, std::span<const std::byte> body);
  void refuse(std::uint64_t id, const std::string& why);
  void ended(std::uint64_t id, const std::string& why);

  asio::io_context& context_;
  DoorOptions options_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::uint16_t port_ = 0;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, Stranger> strangers_;  // by age
};

}  // namespace closeranks::coordinator
