#include <unistd.h>

#include <algorithm>
#include <array>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/strand.hpp>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "base/token.h"
#include "transport/mapping.h"
#include "transport/packet_socket.h"
#include "transport/segment_frames.h"
#include "transport/segment_server.h"

namespace closeranks::transport {
namespace {

// The server's queue of connections was full.
constexpr std::chrono::milliseconds connect_again{5};

using Executor = asio::strand<asio::io_context::executor_type>;
using Stream = asio::posix::basic_stream_descriptor<Executor>;
using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>, Executor>;

// One fetch, kept alive by its pending handlers. Phases: connecting -> challenge -> answer -> over.
class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  Fetch(asio::io_context& context, std::string endpoint, std::string token, SegmentKey key,
        std::chrono::milliseconds deadline, Fetched done)
      : executor_(asio::make_strand(context)),
        endpoint_(std::move(endpoint)),
        token_(std::move(token)),
        key_(key),
        wait_(deadline),
        until_(std::chrono::steady_clock::now() + deadline),
        done_(std::move(done)),
        deadline_(executor_),
        again_(executor_) {}
  ~Fetch() { release(); }

  void start() {
    asio::post(executor_, [self = shared_from_this()] {
      self->deadline_.expires_at(self->until_);
      self->deadline_.async_wait([self](const std::error_code& error) {
        if (!error) {
          self->fail(Fault::timeout, Move::retry,
                     "was not there within " + std::to_string(self->wait_.count()) + " ms");
        }
      });
      self->connect();
    });
  }

 private:
  void connect();
  void read_later();
  void read();
  void handle_challenge(std::span<const std::byte> frame);
  void handle_answer(std::span<const std::byte> frame, FileDescriptor attached);
  [[nodiscard]] std::string what() const;
  void fail(Fault fault, Move move, const std::string& why) { finish(Status(fault, move, what() + " " + why)); }
  void finish(Result<FileDescriptor> result);
  void release() {
    if (stream_.has_value()) {
      static_cast<void>(stream_->release());
      stream_.reset();
    }
  }

  Executor executor_;
  std::string endpoint_;
  std::string token_;
  SegmentKey key_;
  std::chrono::milliseconds wait_;
  std::chrono::steady_clock::time_point until_;
  Fetched done_;
  Timer deadline_;
  Timer again_;
  FileDescriptor socket_;
  std::optional<Stream> stream_;
  bool challenged_ = false;
  bool over_ = false;
  Nonce server_nonce_{};
  Nonce nonce_ = make_nonce();
};

std::string Fetch::what() const {
  const std::string of = " of the worker at @" + endpoint_;
  switch (key_.kind) {
    case SegmentKey::Kind::life:
      return "the life words" + of;
    case SegmentKey::Kind::arena:
      return "the shared arena" + of;
    case SegmentKey::Kind::group:
      break;
  }
  return "the segment of group " + std::to_string(key_.group) + of;
}

void Fetch::connect() {
  if (over_) {
    return;
  }
  const int error = connect_abstract(endpoint_, socket_);
  if (error == EAGAIN) {
    again_.expires_after(connect_again);
    again_.async_wait([self = shared_from_this()](const std::error_code& failed) {
      if (!failed) {
        self->connect();
      }
    });
    return;
  }
  if (error == ECONNREFUSED) {
    fail(Fault::peer_lost, Move::repair_group, "cannot be had: nobody listens there, the process has ended");
    return;
  }
  if (error != 0) {
    finish(system_error(what() + " cannot be had", error));
    return;
  }
  close_in_fork_child(socket_.get());
  const auto peer = peer_process(socket_);
  if (!peer.has_value() || peer->user != ::geteuid()) {
    fail(Fault::refused, Move::give_up, "is refused: another user listens there");
    return;
  }
  stream_.emplace(executor_, socket_.get());
  read_later();
}

void Fetch::read_later() {
  stream_->async_wait(Stream::wait_read, [self = shared_from_this()](const std::error_code& error) {
    if (!error && !self->over_) {
      self->read();
    }
  });
}

void Fetch::read() {
  std::array<std::byte, max_frame_bytes> buffer;
  Packet packet = receive_packet(socket_.get(), buffer);
  switch (packet.state) {
    case Packet::State::none:
      read_later();
      return;
    case Packet::State::closed:
      fail(Fault::peer_lost, Move::repair_group, "cannot be had: the connection ended before the answer");
      return;
    case Packet::State::broken:
      fail(Fault::refused, Move::give_up, "is refused: the answer is malformed");
      return;
    case Packet::State::whole:
      break;
  }
  const std::span<const std::byte> frame(buffer.data(), packet.bytes);
  FrameStart start;
  if (frame.size() < sizeof(start)) {
    fail(Fault::refused, Move::give_up, "is refused: the answer is malformed");
    return;
  }
  std::memcpy(&start, frame.data(), sizeof(start));
  if (start.magic != frame_magic) {
    fail(Fault::refused, Move::give_up, "is refused: no segment server listens there");
    return;
  }
  if (start.version != frame_version) {
    fail(Fault::refused, Move::give_up,
         "is refused: the worker speaks version " + std::to_string(start.version) +
             " of the segment protocol, this is version " + std::to_string(frame_version));
    return;
  }
  if (challenged_) {
    handle_answer(frame, std::move(packet.attached));
  } else {
    handle_challenge(frame);
  }
}

void Fetch::handle_challenge(std::span<const std::byte> frame) {
  Challenge challenge;
  if (frame.size() != sizeof(challenge)) {
    fail(Fault::refused, Move::give_up, "is refused: the challenge is malformed");
    return;
  }
  std::memcpy(&challenge, frame.data(), sizeof(challenge));
  challenged_ = true;
  server_nonce_ = challenge.nonce;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(until_ - std::chrono::steady_clock::now()).count();
  Request request;
  request.kind = static_cast<std::uint32_t>(key_.kind);
  request.group = key_.group;
  request.wait_ms = static_cast<std::uint32_t>(std::max<std::int64_t>(left, 0));
  request.nonce = nonce_;
  request.proof = frame_proof(token_, client_role, server_nonce_, nonce_, request.kind, request.group, 0);
  if (!send_packet(socket_.get(), std::as_bytes(std::span(&request, 1)))) {
    fail(Fault::peer_lost, Move::repair_group, "cannot be had: the connection ended before the request");
    return;
  }
  read_later();
}

void Fetch::handle_answer(std::span<const std::byte> frame, FileDescriptor attached) {
  Answer answer;
  if (frame.size() != sizeof(answer)) {
    fail(Fault::refused, Move::give_up, "is refused: the answer is malformed");
    return;
  }
  std::memcpy(&answer, frame.data(), sizeof(answer));
  const Proof expected = frame_proof(token_, server_role, server_nonce_, nonce_, static_cast<std::uint32_t>(key_.kind),
                                     key_.group, answer.verdict);
  // A server of another job refuses us, and its proof is wrong as well: both mean the same.
  if (!equal_proofs(answer.proof, expected) || answer.verdict == static_cast<std::uint32_t>(Verdict::refused)) {
    fail(Fault::refused, Move::give_up, "is refused: the worker there has another token, it belongs to another job");
    return;
  }
  if (answer.verdict == static_cast<std::uint32_t>(Verdict::not_published)) {
    fail(Fault::timeout, Move::retry, "was not there within " + std::to_string(wait_.count()) + " ms");
    return;
  }
  if (answer.verdict != static_cast<std::uint32_t>(Verdict::here) || !attached.valid()) {
    fail(Fault::refused, Move::give_up, "is refused: the answer has no memory attached");
    return;
  }
  finish(std::move(attached));
}

void Fetch::finish(Result<FileDescriptor> result) {
  if (std::exchange(over_, true)) {
    return;
  }
  deadline_.cancel();
  again_.cancel();
  release();
  socket_.reset();
  std::exchange(done_, nullptr)(std::move(result));
}

}  // namespace

void async_fetch_segment(asio::io_context& context, const std::string& endpoint, const std::string& token,
                         SegmentKey key, std::chrono::milliseconds deadline, Fetched done) {
  std::make_shared<Fetch>(context, endpoint, token, key, std::min(deadline, max_segment_wait), std::move(done))
      ->start();
}

Result<FileDescriptor> fetch_segment(const std::string& endpoint, const std::string& token, SegmentKey key,
                                     std::chrono::milliseconds deadline) {
  asio::io_context context;
  std::optional<Result<FileDescriptor>> result;
  async_fetch_segment(context, endpoint, token, key, deadline,
                      [&result](Result<FileDescriptor> fetched) { result.emplace(std::move(fetched)); });
  context.run();
  return std::move(*result);
}

}  // namespace closeranks::transport
