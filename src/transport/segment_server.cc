#include "transport/segment_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/bind_executor.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/strand.hpp>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "base/deadlines.h"
#include "base/log.h"
#include "base/token.h"
#include "transport/mapping.h"
#include "transport/packet_socket.h"
#include "transport/segment_frames.h"

namespace closeranks::transport {
namespace {

// Connections that wait in the kernel while max_segment_connections are served.
constexpr int listen_backlog = 1024;
// After accept failed for want of descriptors or memory.
constexpr std::chrono::milliseconds accept_pause{100};

using Executor = asio::strand<asio::io_context::executor_type>;
using Stream = asio::posix::basic_stream_descriptor<Executor>;
using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;

struct Connection {
  Connection(const Executor& executor, FileDescriptor socket, PeerProcess from)
      : descriptor(std::move(socket)), stream(executor, descriptor.get()), timer(executor), peer(from) {}
  // The stream must not close what the descriptor owns.
  ~Connection() { static_cast<void>(stream.release()); }

  FileDescriptor descriptor;
  Stream stream;
  Timer timer;
  PeerProcess peer;
  Nonce nonce = make_nonce();
  bool asked = false;  // its request was right and waits to be answered
  Request request;
};

template <class Frame>
std::span<const std::byte> bytes_of(const Frame& frame) {
  return std::as_bytes(std::span(&frame, 1));
}

}  // namespace

// Everything runs on one strand, so the context may have several threads.
class SegmentServer::State : public std::enable_shared_from_this<State> {
 public:
  State(asio::io_context& context, std::string token, FileDescriptor listener)
      : executor_(asio::make_strand(context)),
        token_(std::move(token)),
        listener_(std::move(listener)),
        stream_(executor_, listener_.get()),
        pause_(executor_) {}
  ~State() { static_cast<void>(stream_.release()); }

  void accept_later();
  void publish(SegmentKey key, FileDescriptor descriptor);
  void withdraw(SegmentKey key) { published_.erase(key); }
  void close();
  [[nodiscard]] const Executor& executor() const { return executor_; }

 private:
  using ConnectionPointer = std::shared_ptr<Connection>;
  void accept_all();
  void welcome(FileDescriptor socket);
  void read_later(const ConnectionPointer& connection);
  void read(const ConnectionPointer& connection);
  void handle(const ConnectionPointer& connection, std::span<const std::byte> frame);
  void answer(const ConnectionPointer& connection, Verdict verdict);
  void refuse(const ConnectionPointer& connection, const std::string& why);
  void drop(const ConnectionPointer& connection);

  Executor executor_;
  std::string token_;
  FileDescriptor listener_;
  Stream stream_;
  Timer pause_;
  bool waiting_ = false;  // for the next connection
  bool closed_ = false;
  std::map<SegmentKey, FileDescriptor> published_;
  std::set<ConnectionPointer> connections_;
};

void SegmentServer::State::accept_later() {
  if (closed_ || waiting_ || connections_.size() >= max_segment_connections) {
    return;
  }
  waiting_ = true;
  stream_.async_wait(Stream::wait_read, [self = shared_from_this()](const std::error_code& error) {
    self->waiting_ = false;
    if (!error && !self->closed_) {
      self->accept_all();
    }
  });
}

void SegmentServer::State::accept_all() {
  while (connections_.size() < max_segment_connections) {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      close_in_fork_child(socket.get());
      welcome(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) {
      continue;
    }
    if (errno != EAGAIN) {
      log::warning("segment server: cannot accept a connection (" + std::system_category().message(errno) +
                   "); trying again");
      pause_.expires_after(accept_pause);
      pause_.async_wait([self = shared_from_this()](const std::error_code& error) {
        if (!error) {
          self->accept_later();
        }
      });
      return;
    }
    break;
  }
  accept_later();
}

void SegmentServer::State::welcome(FileDescriptor socket) {
  const auto peer = peer_process(socket);
  if (!peer.has_value() || peer->user != ::geteuid()) {
    log::warning("segment server: refused a connection of another user (pid " +
                 std::to_string(peer.has_value() ? peer->pid : 0) + ", user " +
                 std::to_string(peer.has_value() ? peer->user : 0) + ")");
    return;
  }
  auto connection = std::make_shared<Connection>(executor_, std::move(socket), *peer);
  connections_.insert(connection);
  Challenge challenge;
  challenge.nonce = connection->nonce;
  if (!send_packet(connection->descriptor.get(), bytes_of(challenge))) {
    drop(connection);
    return;
  }
  connection->timer.expires_after(deadlines::handshake);
  connection->timer.async_wait([self = shared_from_this(), connection](const std::error_code& error) {
    if (!error && !connection->asked) {
      self->refuse(connection, "it sent no request for " + std::to_string(deadlines::handshake.count()) + " ms");
    }
  });
  read_later(connection);
}

void SegmentServer::State::read_later(const ConnectionPointer& connection) {
  connection->stream.async_wait(Stream::wait_read, [self = shared_from_this(), connection](const std::error_code& e) {
    if (!e && self->connections_.contains(connection)) {
      self->read(connection);
    }
  });
}

void SegmentServer::State::read(const ConnectionPointer& connection) {
  std::array<std::byte, max_frame_bytes> buffer;
  const Packet packet = receive_packet(connection->descriptor.get(), buffer);
  switch (packet.state) {
    case Packet::State::none:
      read_later(connection);
      return;
    case Packet::State::closed:
      drop(connection);
      return;
    case Packet::State::broken:
      refuse(connection, "its frame is longer than any request");
      return;
    case Packet::State::whole:
      handle(connection, {buffer.data(), packet.bytes});
      return;
  }
}

void SegmentServer::State::handle(const ConnectionPointer& connection, std::span<const std::byte> frame) {
  if (connection->asked) {
    refuse(connection, "it sent a second request");
    return;
  }
  FrameStart start;
  if (frame.size() < sizeof(start)) {
    refuse(connection, "it sent " + std::to_string(frame.size()) + " bytes that are no request");
    return;
  }
  std::memcpy(&start, frame.data(), sizeof(start));
  if (start.magic != frame_magic) {
    refuse(connection, "it does not speak closeranks' segment protocol");
    return;
  }
  if (start.version != frame_version) {
    refuse(connection, "it speaks version " + std::to_string(start.version) +
                           " of the segment protocol, this is version " + std::to_string(frame_version));
    return;
  }
  Request& request = connection->request;
  if (frame.size() != sizeof(request)) {
    refuse(connection,
           "its request has " + std::to_string(frame.size()) + " bytes, expected " + std::to_string(sizeof(request)));
    return;
  }
  std::memcpy(&request, frame.data(), sizeof(request));
  const Proof expected =
      frame_proof(token_, client_role, connection->nonce, request.nonce, request.kind, request.group, 0);
  if (!equal_proofs(request.proof, expected)) {
    answer(connection, Verdict::refused);
    refuse(connection, "it does not know this job's token");
    return;
  }
  connection->asked = true;
  const SegmentKey key{static_cast<SegmentKey::Kind>(request.kind), request.group};
  if (published_.contains(key)) {
    answer(connection, Verdict::here);
    drop(connection);
    return;
  }
  const auto wait = std::min(std::chrono::milliseconds(request.wait_ms), max_segment_wait);
  connection->timer.expires_after(wait);
  connection->timer.async_wait([self = shared_from_this(), connection](const std::error_code& error) {
    if (!error && self->connections_.contains(connection)) {
      self->answer(connection, Verdict::not_published);
      self->drop(connection);
    }
  });
  // Nothing more may come; the end of the connection does when the client gives up.
  read_later(connection);
}

void SegmentServer::State::answer(const ConnectionPointer& connection, Verdict verdict) {
  const Request& request = connection->request;
  Answer answer;
  answer.verdict = static_cast<std::uint32_t>(verdict);
  answer.proof =
      frame_proof(token_, server_role, connection->nonce, request.nonce, request.kind, request.group, answer.verdict);
  const FileDescriptor* attached = nullptr;
  if (verdict == Verdict::here) {
    attached = &published_.at(SegmentKey{static_cast<SegmentKey::Kind>(request.kind), request.group});
  }
  if (!send_packet(connection->descriptor.get(), bytes_of(answer), attached)) {
    log::debug("segment server: pid " + std::to_string(connection->peer.pid) + " was gone before its answer");
  }
}

void SegmentServer::State::refuse(const ConnectionPointer& connection, const std::string& why) {
  log::warning("segment server: refused a connection of pid " + std::to_string(connection->peer.pid) + ": " + why);
  drop(connection);
}

void SegmentServer::State::drop(const ConnectionPointer& connection) {
  connection->timer.cancel();
  connection->stream.cancel();
  connections_.erase(connection);
  accept_later();
}

void SegmentServer::State::publish(SegmentKey key, FileDescriptor descriptor) {
  published_.insert_or_assign(key, std::move(descriptor));
  std::vector<ConnectionPointer> served;
  for (const ConnectionPointer& connection : connections_) {
    const Request& request = connection->request;
    if (connection->asked && SegmentKey{static_cast<SegmentKey::Kind>(request.kind), request.group} == key) {
      served.push_back(connection);
    }
  }
  for (const ConnectionPointer& connection : served) {
    answer(connection, Verdict::here);
    drop(connection);
  }
}

void SegmentServer::State::close() {
  closed_ = true;
  pause_.cancel();
  stream_.cancel();
  static_cast<void>(stream_.release());
  listener_.reset();
  for (const ConnectionPointer& connection : std::exchange(connections_, {})) {
    connection->timer.cancel();
    connection->stream.cancel();
  }
  published_.clear();
}

SegmentServer::SegmentServer(std::shared_ptr<State> state, std::string endpoint)
    : state_(std::move(state)), endpoint_(std::move(endpoint)) {}

Result<std::unique_ptr<SegmentServer>> SegmentServer::start(asio::io_context& context, std::string token) {
  // The pid is for people; the random part keeps two jobs, and a reused pid, apart.
  std::string endpoint = "closeranks-" + std::to_string(::getpid()) + "-" + make_token().substr(0, 16);
  auto listener = listen_abstract(endpoint, listen_backlog);
  if (!listener.ok()) {
    return listener.status();
  }
  // A child that held the listening socket would let connections hang after our death.
  close_in_fork_child(listener.value().get());
  auto state = std::make_shared<State>(context, std::move(token), std::move(listener.value()));
  asio::post(state->executor(), [state] { state->accept_later(); });
  return std::unique_ptr<SegmentServer>(new SegmentServer(std::move(state), std::move(endpoint)));
}

SegmentServer::~SegmentServer() {
  asio::post(state_->executor(), [state = state_] { state->close(); });
}

void SegmentServer::publish(SegmentKey key, FileDescriptor descriptor) {
  close_in_fork_child(descriptor.get());
  asio::post(state_->executor(), [state = state_, key, held = std::make_shared<FileDescriptor>(std::move(descriptor))] {
    state->publish(key, std::move(*held));
  });
}

void SegmentServer::withdraw(SegmentKey key) {
  asio::post(state_->executor(), [state = state_, key] { state->withdraw(key); });
}

}  // namespace closeranks::transport
