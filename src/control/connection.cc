#include "control/connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/buffer.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/file_descriptor.h"

namespace closeranks::control {
namespace {

// A body above this gives its memory back after use; most frames are far smaller.
constexpr std::size_t kept_body_bytes = 64u << 10;

Status broken(const std::string& peer, const std::error_code& error) {
  const bool ended = error == asio::error::eof;
  return Status(Fault::system, Move::retry,
                ended ? peer + " closed the connection" : "the connection to " + peer + " broke: " + error.message());
}

}  // namespace

Result<asio::ip::tcp::socket> make_socket(asio::io_context& context, const asio::ip::tcp& protocol) {
  const int descriptor = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (descriptor < 0) {
    return Status(Fault::system, Move::retry, "no socket to be had: " + std::string(std::strerror(errno)));
  }
  asio::ip::tcp::socket socket(context);
  std::error_code error;
  socket.assign(protocol, descriptor, error);
  if (error) {
    ::close(descriptor);
    return Status(Fault::system, Move::retry, "a socket cannot be watched: " + error.message());
  }
  return socket;
}

void prepare_socket(asio::ip::tcp::socket& socket) {
  const int descriptor = socket.native_handle();
  const auto set = [descriptor](int level, int name, int value) {
    // A kernel that refuses one of these only finds a vanished peer later.
    static_cast<void>(::setsockopt(descriptor, level, name, &value, sizeof value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 20'000);
}

Connection::Connection(asio::ip::tcp::socket socket, std::string peer)
    : socket_(std::move(socket)), linger_(socket_.get_executor()), peer_(std::move(peer)) {
  close_in_fork_child(socket_.native_handle());
}

Connection::~Connection() {
  if (socket_.is_open()) keep_in_fork_child(socket_.native_handle());
}

void Connection::start(Events events, std::uint32_t limit) {
  CR_ASSERT(state_ == State::fresh);
  set_events(std::move(events));
  limit_ = limit;
  state_ = State::open;
  read_header();
}

void Connection::set_events(Events events) { events_ = std::make_shared<const Events>(std::move(events)); }

void Connection::read_header() {
  asio::async_read(socket_, asio::buffer(header_),
                   [self = shared_from_this()](const std::error_code& error, std::size_t) {
                     if (self->state_ == State::finishing) return self->read_and_drop(error);
                     if (self->state_ != State::open) return;
                     if (error) return self->end(broken(self->peer_, error));
                     const Result<FrameHeader> header = decode_header(self->header_, self->limit_, self->peer_);
                     if (!header.ok()) return self->reject(header.status());
                     self->read_body(header.value());
                   });
}

void Connection::read_body(FrameHeader header) {
  body_.resize(header.length);
  asio::async_read(socket_, asio::buffer(body_),
                   [self = shared_from_this(), header](const std::error_code& error, std::size_t) {
                     if (self->state_ == State::finishing) return self->read_and_drop(error);
                     if (self->state_ != State::open) return;
                     if (error) return self->end(broken(self->peer_, error));
                     const std::shared_ptr<const Events> events = self->events_;
                     events->frame(header, self->body_);
                     if (self->body_.capacity() > kept_body_bytes) self->body_ = {};
                     if (self->state_ == State::open) return self->read_header();
                     if (self->state_ == State::finishing) self->read_and_drop({});
                   });
}

void Connection::reject(const Status& why) {
  const std::shared_ptr<const Events> events = events_;
  if (events->rejected) events->rejected(why);
  if (state_ == State::open) return end(why);
  if (state_ == State::finishing) read_and_drop({});
}

void Connection::read_and_drop(const std::error_code& last) {
  if (last) return close();
  body_.resize(kept_body_bytes);
  socket_.async_read_some(asio::buffer(body_), [self = shared_from_this()](const std::error_code& error, std::size_t) {
    if (self->state_ == State::finishing) self->read_and_drop(error);
  });
}

void Connection::write(std::string frame, bool keep) {
  if (state_ != State::open) return;
  queued_bytes_ += frame.size();
  queue_.push_back(Outgoing{std::move(frame), keep});
  if (!writing_) write_next();
}

void Connection::write_next() {
  if (queue_.empty()) {
    if (state_ == State::finishing) {
      std::error_code ignored;
      socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    }
    return;
  }
  writing_ = true;
  asio::async_write(socket_, asio::buffer(queue_.front().bytes),
                    [self = shared_from_this()](const std::error_code& error, std::size_t) {
                      self->writing_ = false;
                      self->wrote(error);
                    });
}

void Connection::wrote(const std::error_code& error) {
  if (!error) {
    const std::size_t bytes = queue_.front().bytes.size();
    queue_.pop_front();
    queued_bytes_ -= bytes;
    const std::shared_ptr<const Events> events = events_;
    if (events && events->written) events->written();
    if (state_ != State::closed && !writing_) return write_next();
  }
  if (state_ == State::open) return end(broken(peer_, error));
  if (state_ == State::finishing) return close();
  if (ended_) return report_end();
  events_.reset();
}

std::deque<std::string> Connection::take_kept() {
  CR_ASSERT(state_ == State::closed && !writing_);
  std::deque<std::string> kept;
  for (Outgoing& outgoing : queue_) {
    if (outgoing.keep) kept.push_back(std::move(outgoing.bytes));
  }
  queue_.clear();
  queued_bytes_ = 0;
  return kept;
}

void Connection::finish(std::chrono::milliseconds linger, std::function<void()> done) {
  if (state_ != State::open) {
    if (done) asio::post(socket_.get_executor(), std::move(done));
    return;
  }
  state_ = State::finishing;
  finished_ = std::move(done);
  linger_.expires_after(linger);
  linger_.async_wait([self = shared_from_this()](const std::error_code& error) {
    if (!error) self->close();
  });
  if (!writing_) write_next();
}

void Connection::close() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  keep_in_fork_child(socket_.native_handle());
  std::error_code ignored;
  socket_.close(ignored);
  linger_.cancel();
  if (finished_) asio::post(socket_.get_executor(), std::exchange(finished_, {}));
  // The events may own whoever calls; let go of them from the event loop, and not before a write has told its outcome.
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (!self->writing_ && !self->ended_) self->events_.reset();
  });
}

void Connection::fail(Status why) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), reason = std::move(why)] {
    if (self->state_ == State::open) self->end(reason);
  });
}

void Connection::end(const Status& why) {
  ended_ = why;
  close();
  // A write that has been carried out but not yet told must not be given back as unwritten.
  if (!writing_) report_end();
}

void Connection::report_end() {
  const std::shared_ptr<const Events> events = std::exchange(events_, nullptr);
  const Status why = *std::exchange(ended_, std::nullopt);
  if (events && events->closed) events->closed(why);
}

}  // namespace closeranks::control
