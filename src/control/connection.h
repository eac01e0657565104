// One TCP connection that carries frames: reads them one by one, writes a bounded queue of them, closes in order.
// Used by both ends. Everything here runs on the control thread.
#pragma once

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "closeranks/status.h"
#include "control/frame.h"

namespace closeranks::control {

// A socket that no program started by this process inherits (Asio's own open() leaves a gap before close-on-exec).
Result<asio::ip::tcp::socket> make_socket(asio::io_context& context, const asio::ip::tcp& protocol);

// Sets TCP_NODELAY (frames are small and urgent) and lets the kernel find a peer that is gone without a word: probes
// after 10 s of silence, and written bytes that stay unacknowledged for 20 s break the connection.
void prepare_socket(asio::ip::tcp::socket& socket);

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Events {
    // One whole frame; `body` is valid during the call only.
    std::function<void(const FrameHeader& header, std::span<const std::byte> body)> frame;
    // The connection ended without our doing: end of file, an error, a frame with a bad header. Called once, from the
    // event loop, never from within a function below; not after close() or finish().
    std::function<void(const Status& why)> closed;
    // A frame with a bad header came: the handler may write() and finish(). Otherwise, or when empty, the connection
    // ends as with closed.
    std::function<void(const Status& why)> rejected;
    // A frame has been handed to the kernel. May be empty.
    std::function<void()> written;
  };

  // `peer` names the other side in errors. The socket is connected. Children of fork() do not keep it.
  Connection(asio::ip::tcp::socket socket, std::string peer);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Begins to read; bodies above `limit` are refused. Call once. The events own what they use: they are let go of when
  // the connection has ended.
  void start(Events events, std::uint32_t limit);
  // Other handlers from the next event on; may be called from a handler.
  void set_events(Events events);
  void set_limit(std::uint32_t limit) { limit_ = limit; }
  void set_peer(std::string peer) { peer_ = std::move(peer); }
  [[nodiscard]] const std::string& peer() const { return peer_; }
  [[nodiscard]] bool open() const { return state_ == State::open; }

  // Queues a frame. `keep`: it is given back by take_kept() if the connection ends before it was written whole.
  // Ignored unless open().
  void write(std::string frame, bool keep = false);
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  // Precondition: `closed` has been or is being reported.
  std::deque<std::string> take_kept();

  // Writes what is queued, tells the peer that no more comes, drops what it still sends, and closes when it closes too
  // or after `linger`. (A plain close with unread bytes would reset the connection and could destroy the last frame on
  // its way.) `done` runs at the end, from the event loop.
  void finish(std::chrono::milliseconds linger, std::function<void()> done = {});
  // At once.
  void close();
  // As if the connection had broken: `closed` is told `why`, from the event loop.
  void fail(Status why);

 private:
  enum class State { fresh, open, finishing, closed };
  struct Outgoing {
    std::string bytes;
    bool keep = false;
  };

  void read_header();
  void read_body(FrameHeader header);
  void read_and_drop(const std::error_code& last);
  void reject(const Status& why);
  void write_next();
  void wrote(const std::error_code& error);
  void end(const Status& why);
  void report_end();

  asio::ip::tcp::socket socket_;
  asio::steady_timer linger_;
  std::string peer_;
  std::shared_ptr<const Events> events_;  // shared: a handler may set others while it runs
  std::uint32_t limit_ = 0;
  State state_ = State::fresh;
  HeaderBytes header_{};
  std::vector<std::byte> body_;
  std::deque<Outgoing> queue_;
  std::size_t queued_bytes_ = 0;
  bool writing_ = false;
  std::optional<Status> ended_;  // why, until it is reported
  std::function<void()> finished_;
};

}  // namespace closeranks::control
