#include "coordinator/door.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <asio/error.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/deadlines.h"
#include "base/file_descriptor.h"
#include "base/log.h"

namespace closeranks::coordinator {
namespace {

using control::Connection;
using control::FrameKind;

// Connections taken per turn of the event loop, so that those inside are served between.
constexpr int accepts_per_turn = 32;
// Pause when the process has no descriptor left for another connection.
constexpr std::chrono::milliseconds accept_pause{100};

}  // namespace

Door::Stranger::Stranger(asio::io_context& context, std::shared_ptr<Connection> its_connection, std::string its_address)
    : connection(std::move(its_connection)), address(std::move(its_address)), deadline(context), nonce(make_nonce()) {}

Door::Door(asio::io_context& context, DoorOptions options)
    : context_(context), options_(std::move(options)), acceptor_(context), pause_(context) {}

Status Door::listen() {
  const auto failed = [this](const std::string& why) {
    return Status(Fault::system, Move::fix_call,
                  "the coordinator cannot listen on " + options_.address + ":" + std::to_string(options_.port) + ": " +
                      why + "; choose an address of this host and a free port");
  };
  std::error_code error;
  const auto address = asio::ip::make_address(options_.address, error);
  if (error) return failed("the address is not numeric");
  const asio::ip::tcp::endpoint endpoint(address, options_.port);
  const int descriptor = ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return failed(std::strerror(errno));
  acceptor_.assign(endpoint.protocol(), descriptor, error);
  if (error) {
    ::close(descriptor);
    return failed(error.message());
  }
  close_in_fork_child(descriptor);
  acceptor_.set_option(asio::ip::tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.non_blocking(true, error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (!error) port_ = acceptor_.local_endpoint(error).port();
  return error ? failed(error.message()) : Status{};
}

void Door::start() { wait(); }

void Door::wait() {
  acceptor_.async_wait(asio::ip::tcp::acceptor::wait_read, [self = shared_from_this()](const std::error_code& error) {
    if (!error) self->accept_all();
  });
}

void Door::accept_all() {
  for (int i = 0; i < accepts_per_turn; ++i) {
    // accept4 and not Asio's accept: a worker that the agent starts at this moment must not inherit the connection.
    const int descriptor = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      log::warning("the coordinator cannot take a connection: " + std::string(std::strerror(errno)) +
                   "; it tries again in " + std::to_string(accept_pause.count()) + " ms");
      pause_.expires_after(accept_pause);
      pause_.async_wait([self = shared_from_this()](const std::error_code& error) {
        if (!error) self->wait();
      });
      return;
    }
    asio::ip::tcp::socket socket(context_);
    std::error_code error;
    socket.assign(acceptor_.local_endpoint(error).protocol(), descriptor, error);
    if (error) {
      ::close(descriptor);
      continue;
    }
    const asio::ip::tcp::endpoint remote = socket.remote_endpoint(error);
    // It may be gone already.
    if (error) continue;
    const std::string host =
        remote.address().is_v6() ? "[" + remote.address().to_string() + "]" : remote.address().to_string();
    greet(std::move(socket), host + ":" + std::to_string(remote.port()));
  }
  wait();
}

void Door::greet(asio::ip::tcp::socket socket, const std::string& address) {
  if (strangers_.size() >= strangers_limit) {
    const auto oldest = strangers_.begin();
    if (!oldest->second.refused) options_.refused(oldest->second.address, "too many connections that prove nothing");
    oldest->second.connection->close();
    strangers_.erase(oldest);
  }
  control::prepare_socket(socket);
  const std::uint64_t id = next_id_++;
  auto connection = std::make_shared<Connection>(std::move(socket), "it");
  Stranger& stranger = strangers_.try_emplace(id, context_, connection, address).first->second;
  const std::weak_ptr<Door> weak = weak_from_this();
  stranger.deadline.expires_after(deadlines::handshake);
  stranger.deadline.async_wait([weak, id](const std::error_code& error) {
    if (error) return;
    if (auto self = weak.lock()) {
      self->refuse(
          id, "it did not prove the job's token within " + std::to_string(deadlines::handshake.count() / 1000) + " s");
    }
  });
  Connection::Events events;
  events.frame = [weak, id](const control::FrameHeader& header, std::span<const std::byte> body) {
    if (auto self = weak.lock()) self->frame(id, header.kind, body);
  };
  events.rejected = [weak, id](const Status& why) {
    if (auto self = weak.lock()) self->refuse(id, why.message());
  };
  events.closed = [weak, id](const Status& why) {
    if (auto self = weak.lock()) self->ended(id, why.message());
  };
  connection->start(std::move(events), control::handshake_body_limit);
  connection->write(control::challenge_frame(stranger.nonce));
}

void Door::frame(std::uint64_t id, FrameKind kind, std::span<const std::byte> body) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end() || found->second.refused) return;
  Stranger& stranger = found->second;
  if (kind != FrameKind::proof) {
    return refuse(id, "it sent a frame (" + std::string(control::name_of(kind)) + ") before it proved the job's token");
  }
  const Result<control::ClaimedProof> claimed = control::decode_proof(body);
  if (!claimed.ok()) return refuse(id, "it sent " + claimed.status().message());
  const control::Claim& claim = claimed.value().claim;
  stranger.address += " (claims to be " + control::describe(claim) + ")";
  if (Status status = control::check_proof(claimed.value(), options_.token, options_.job, stranger.nonce);
      !status.ok()) {
    return refuse(id, status.message());
  }
  if (Status status = options_.check(claim); !status.ok()) return refuse(id, status.message());
  std::shared_ptr<Connection> connection = stranger.connection;
  connection->write(control::accepted_frame(claimed.value(), options_.token, stranger.nonce));
  connection->set_limit(control::frame_body_limit);
  connection->set_peer(control::describe(claim));
  strangers_.erase(found);
  options_.admitted(claim, std::move(connection));
}

void Door::refuse(std::uint64_t id, const std::string& why) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end() || found->second.refused) return;
  // It stays a stranger, and counts as one, until it has read the refusal.
  found->second.refused = true;
  found->second.deadline.cancel();
  options_.refused(found->second.address, why);
  turn_away(*found->second.connection, why, [weak = weak_from_this(), id] {
    if (auto self = weak.lock()) self->strangers_.erase(id);
  });
}

void Door::ended(std::uint64_t id, const std::string& why) {
  const auto found = strangers_.find(id);
  if (found == strangers_.end()) return;
  if (!found->second.refused) options_.refused(found->second.address, "before it proved the job's token, " + why);
  strangers_.erase(found);
}

void Door::turn_away(Connection& connection, const std::string& why, std::function<void()> done) {
  connection.write(control::refused_frame(why));
  connection.finish(refusal_linger, std::move(done));
}

void Door::stop() {
  if (acceptor_.is_open()) {
    keep_in_fork_child(acceptor_.native_handle());
    std::error_code ignored;
    acceptor_.close(ignored);
  }
  pause_.cancel();
  for (auto& [id, stranger] : strangers_) stranger.connection->close();
  strangers_.clear();
}

}  // namespace closeranks::coordinator
