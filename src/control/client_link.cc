#include "control/client_link.h"

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/deadlines.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "control/connection.h"

namespace closeranks::control {
namespace {

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

// "host:port", "[::1]:port".
Result<HostPort> split_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return Status(Fault::invalid_argument, Move::fix_call,
                  "the coordinator's address \"" + address + "\" is not of the form host:port");
  }
  HostPort parts{address.substr(0, colon), 0};
  const char* end = address.data() + address.size();
  const auto [stopped, error] = std::from_chars(address.data() + colon + 1, end, parts.port);
  if (error != std::errc{} || stopped != end || parts.port == 0) {
    return Status(Fault::invalid_argument, Move::fix_call,
                  "the coordinator's address \"" + address + "\" has no port between 1 and 65535");
  }
  if (parts.host.size() > 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  }
  return parts;
}

}  // namespace

// All of it runs on the control thread, except where a comment says otherwise.
class ClientLink::Machine : public std::enable_shared_from_this<ClientLink::Machine> {
 public:
  Machine(ControlThread& thread, ClientLinkOptions options)
      : options_(std::move(options)),
        thread_(thread),
        resolver_(thread.context()),
        deadline_(thread.context()),
        retry_(thread.context()) {}

  void connect();
  void stop_now();
  // Begins the orderly end: no new attempt; what is queued is written, then the connection closes.
  void finish(std::chrono::milliseconds grace);

  // Any thread.
  Status send(std::string frame, bool keep);
  [[nodiscard]] bool connected() const { return up_.load(); }
  // Any thread but the control thread: waits for the end that finish() began.
  void wait_finished(std::chrono::milliseconds grace);
  ControlThread& thread() { return thread_; }

 private:
  enum class Phase { idle, connecting, challenged, proving, up, pausing, finishing, stopped };

  void resolved(const std::error_code& error, const asio::ip::tcp::resolver::results_type& endpoints);
  void open(const asio::ip::tcp::endpoint& endpoint, std::vector<asio::ip::tcp::endpoint> others);
  void opened(asio::ip::tcp::socket socket);
  void frame(const FrameHeader& header, std::span<const std::byte> body);
  void on_challenge(const FrameHeader& header, std::span<const std::byte> body);
  void on_answer(const FrameHeader& header, std::span<const std::byte> body);
  void go_up();
  void drain_inbox();
  // After every change of what waits: lets send() know how much that is.
  void recount();
  // The attempt or the connection (which has ended then) is over: tell, and try again later.
  void failed(Status why);
  void pause();
  void drop_connecting();
  [[nodiscard]] std::string peer() const { return "the coordinator at " + options_.coordinator; }
  [[nodiscard]] std::string self() const { return describe(options_.claim); }

  const ClientLinkOptions options_;
  ControlThread& thread_;
  asio::ip::tcp::resolver resolver_;
  asio::steady_timer deadline_;  // of an attempt, from connecting to accepted
  asio::steady_timer retry_;
  Phase phase_ = Phase::idle;
  std::uint64_t attempt_ = 0;  // tells late answers of an earlier attempt apart
  std::shared_ptr<asio::ip::tcp::socket> connecting_;
  std::shared_ptr<Connection> connection_;
  Nonce server_nonce_{};
  Nonce client_nonce_{};
  std::string last_refusal_;
  std::deque<std::string> waiting_;  // kept frames for the next connection, in order

  struct Sent {
    std::string frame;
    bool keep = false;
  };
  std::atomic<bool> up_{false};
  std::atomic<std::size_t> queued_bytes_{0};  // in waiting_ and in the connection
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Sent> inbox_;      // under mutex_: not yet taken by the control thread
  std::size_t inbox_bytes_ = 0;  // under mutex_
  bool closed_ = false;          // under mutex_: no send any more
  bool finished_ = false;        // under mutex_: the end that finish() began has come
};

void ClientLink::Machine::connect() {
  if (phase_ == Phase::stopped || phase_ == Phase::finishing) return;
  phase_ = Phase::connecting;
  const std::uint64_t attempt = ++attempt_;
  deadline_.expires_after(deadlines::handshake);
  deadline_.async_wait([self = shared_from_this(), attempt](const std::error_code& error) {
    if (error || attempt != self->attempt_ || self->phase_ == Phase::up || self->phase_ == Phase::pausing) return;
    self->failed(Status(Fault::timeout, Move::retry,
                        self->peer() + " did not take " + self->self() + "'s connection within " +
                            std::to_string(deadlines::handshake.count() / 1000) + " s"));
  });
  if (Status status = check_claim(options_.claim); !status.ok()) return failed(status);
  const Result<HostPort> parts = split_address(options_.coordinator);
  if (!parts.ok()) return failed(parts.status());
  std::error_code not_numeric;
  const auto address = asio::ip::make_address(parts.value().host, not_numeric);
  if (!not_numeric) {
    return open({address, parts.value().port}, {});
  }
  resolver_.async_resolve(parts.value().host, std::to_string(parts.value().port),
                          [self = shared_from_this(), attempt](const std::error_code& error, const auto& endpoints) {
                            if (attempt != self->attempt_ || self->phase_ != Phase::connecting) return;
                            self->resolved(error, endpoints);
                          });
}

void ClientLink::Machine::resolved(const std::error_code& error,
                                   const asio::ip::tcp::resolver::results_type& endpoints) {
  if (error || endpoints.empty()) {
    return failed(Status(Fault::system, Move::retry, peer() + " cannot be found: " + error.message()));
  }
  std::vector<asio::ip::tcp::endpoint> all;
  for (const auto& entry : endpoints) all.push_back(entry.endpoint());
  const asio::ip::tcp::endpoint first = all.front();
  all.erase(all.begin());
  open(first, std::move(all));
}

void ClientLink::Machine::open(const asio::ip::tcp::endpoint& endpoint, std::vector<asio::ip::tcp::endpoint> others) {
  Result<asio::ip::tcp::socket> made = make_socket(thread_.context(), endpoint.protocol());
  if (!made.ok()) return failed(made.status());
  drop_connecting();
  connecting_ = std::make_shared<asio::ip::tcp::socket>(std::move(made.value()));
  // A data loader forked at this moment must not keep it (protocol rule 24).
  close_in_fork_child(connecting_->native_handle());
  connecting_->async_connect(endpoint, [self = shared_from_this(), attempt = attempt_, socket = connecting_,
                                        others = std::move(others)](const std::error_code& error) mutable {
    if (attempt != self->attempt_ || self->phase_ != Phase::connecting) return;
    if (!error) return self->opened(std::move(*socket));
    if (!others.empty()) {
      const asio::ip::tcp::endpoint next = others.front();
      others.erase(others.begin());
      return self->open(next, std::move(others));
    }
    self->failed(Status(Fault::system, Move::retry,
                        self->peer() + " cannot be reached by " + self->self() + ": " + error.message()));
  });
}

void ClientLink::Machine::opened(asio::ip::tcp::socket socket) {
  connecting_.reset();
  // A socket of the same host can connect to itself when nobody listens and the kernel picks the very port as source.
  std::error_code error;
  if (socket.local_endpoint(error) == socket.remote_endpoint(error)) {
    keep_in_fork_child(socket.native_handle());
    return failed(Status(Fault::system, Move::retry, peer() + " is not there: nobody listens on that port"));
  }
  prepare_socket(socket);
  phase_ = Phase::challenged;
  connection_ = std::make_shared<Connection>(std::move(socket), peer());
  const std::weak_ptr<Machine> weak = weak_from_this();
  Connection::Events events;
  events.frame = [weak, attempt = attempt_](const FrameHeader& header, std::span<const std::byte> body) {
    if (auto self = weak.lock(); self && attempt == self->attempt_) self->frame(header, body);
  };
  events.closed = [weak, attempt = attempt_](const Status& why) {
    if (auto self = weak.lock(); self && attempt == self->attempt_) self->failed(why);
  };
  events.written = [weak, attempt = attempt_] {
    if (auto self = weak.lock(); self && attempt == self->attempt_) self->recount();
  };
  connection_->start(std::move(events), handshake_body_limit);
}

void ClientLink::Machine::frame(const FrameHeader& header, std::span<const std::byte> body) {
  switch (phase_) {
    case Phase::challenged:
      return on_challenge(header, body);
    case Phase::proving:
      return on_answer(header, body);
    case Phase::up: {
      Status status = options_.frame(header.kind, body);
      if (!status.ok()) connection_->fail(Status(Fault::refused, Move::retry, peer() + " sent " + status.message()));
      return;
    }
    case Phase::idle:
    case Phase::connecting:
    case Phase::pausing:
    case Phase::finishing:
    case Phase::stopped:
      return;
  }
}

void ClientLink::Machine::on_challenge(const FrameHeader& header, std::span<const std::byte> body) {
  if (header.kind == FrameKind::refused) {
    return failed(Status(Fault::refused, Move::give_up, peer() + " refused " + self() + ": " + decode_refused(body)));
  }
  const Result<Nonce> nonce = header.kind == FrameKind::challenge
                                  ? decode_challenge(body)
                                  : Result<Nonce>(Status(Fault::refused, Move::give_up,
                                                         "a frame (" + std::string(name_of(header.kind)) + ") first"));
  if (!nonce.ok()) {
    return failed(Status(Fault::refused, Move::give_up,
                         peer() + " is no coordinator of this job: it sent " + nonce.status().message()));
  }
  server_nonce_ = nonce.value();
  client_nonce_ = make_nonce();
  phase_ = Phase::proving;
  connection_->write(proof_frame(options_.claim, options_.token, server_nonce_, client_nonce_));
}

void ClientLink::Machine::on_answer(const FrameHeader& header, std::span<const std::byte> body) {
  if (header.kind == FrameKind::refused) {
    return failed(Status(Fault::refused, Move::give_up, peer() + " refused " + self() + ": " + decode_refused(body)));
  }
  const Status accepted = header.kind == FrameKind::accepted
                              ? check_accepted(body, options_.claim, options_.token, server_nonce_, client_nonce_)
                              : Status(Fault::refused, Move::give_up,
                                       "it answered with a frame (" + std::string(name_of(header.kind)) + ")");
  if (!accepted.ok()) {
    return failed(
        Status(Fault::refused, Move::give_up, peer() + " is no coordinator of this job: " + accepted.message()));
  }
  go_up();
}

void ClientLink::Machine::go_up() {
  const Result<std::vector<std::string>> opening = options_.opening();
  if (!opening.ok()) return failed(opening.status());
  deadline_.cancel();
  phase_ = Phase::up;
  last_refusal_.clear();
  connection_->set_limit(frame_body_limit);
  for (const std::string& frame : opening.value()) connection_->write(frame);
  for (std::string& frame : std::exchange(waiting_, {})) connection_->write(std::move(frame), true);
  recount();
  up_ = true;
  if (options_.events.connected) options_.events.connected();
}

Status ClientLink::Machine::send(std::string frame, bool keep) {
  const std::lock_guard lock(mutex_);
  if (closed_) return Status(Fault::closed, Move::give_up, "the control connection of " + self() + " was stopped");
  if (!keep && !connected()) {
    return Status(Fault::system, Move::retry, self() + " has no connection to " + peer() + "; the message is dropped");
  }
  const std::size_t waiting = inbox_bytes_ + queued_bytes_.load();
  if (waiting + frame.size() > link_queue_bytes) {
    return Status(
        Fault::system, Move::retry,
        std::to_string(waiting) + " bytes already wait for " + peer() + ", which reads none; the message is dropped");
  }
  inbox_bytes_ += frame.size();
  inbox_.push_back(Sent{std::move(frame), keep});
  if (inbox_.size() == 1) thread_.post([self = shared_from_this()] { self->drain_inbox(); });
  return {};
}

void ClientLink::Machine::drain_inbox() {
  std::vector<Sent> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(inbox_);
    inbox_bytes_ = 0;
  }
  for (Sent& sent : taken) {
    if (phase_ == Phase::up) {
      connection_->write(std::move(sent.frame), sent.keep);
    } else if (sent.keep) {
      waiting_.push_back(std::move(sent.frame));
    }
  }
  recount();
}

void ClientLink::Machine::recount() {
  std::size_t bytes = connection_ ? connection_->queued_bytes() : 0;
  for (const std::string& frame : waiting_) bytes += frame.size();
  queued_bytes_ = bytes;
}

// `why` is a copy: it may come from the connection that ends here.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void ClientLink::Machine::failed(Status why) {
  if (phase_ == Phase::stopped || phase_ == Phase::finishing) return;
  const bool was_up = phase_ == Phase::up;
  if (was_up) {
    // Frames that the lost connection had not written go first over the next one.
    std::deque<std::string> kept = connection_->take_kept();
    for (auto frame = kept.rbegin(); frame != kept.rend(); ++frame) waiting_.push_front(std::move(*frame));
  }
  pause();
  recount();
  if (was_up) {
    log::info(self() + " lost " + why.message() + "; it tries again");
    if (options_.events.lost) options_.events.lost(why);
  } else if (why.message() != last_refusal_) {
    last_refusal_ = why.message();
    log::debug(why.message());
    if (options_.events.refused) options_.events.refused(why);
  }
}

void ClientLink::Machine::pause() {
  up_ = false;
  phase_ = Phase::pausing;
  ++attempt_;
  deadline_.cancel();
  resolver_.cancel();
  if (connection_) connection_->close();
  connection_.reset();
  drop_connecting();
  retry_.expires_after(deadlines::reconnect);
  retry_.async_wait([self = shared_from_this()](const std::error_code& error) {
    if (!error && self->phase_ == Phase::pausing) self->connect();
  });
}

void ClientLink::Machine::drop_connecting() {
  if (!connecting_) return;
  if (connecting_->is_open()) keep_in_fork_child(connecting_->native_handle());
  std::error_code ignored;
  connecting_->close(ignored);
  connecting_.reset();
}

void ClientLink::Machine::finish(std::chrono::milliseconds grace) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  drain_inbox();
  const bool can_write = phase_ == Phase::up;
  if (can_write) {
    phase_ = Phase::finishing;
    up_ = false;
    connection_->finish(grace, [self = shared_from_this()] {
      const std::lock_guard lock(self->mutex_);
      self->finished_ = true;
      self->changed_.notify_all();
    });
    return;
  }
  const std::lock_guard lock(mutex_);
  finished_ = true;
}

void ClientLink::Machine::stop_now() {
  if (phase_ == Phase::stopped) return;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  phase_ = Phase::stopped;
  up_ = false;
  ++attempt_;
  deadline_.cancel();
  retry_.cancel();
  resolver_.cancel();
  if (connection_) connection_->close();
  connection_.reset();
  drop_connecting();
}

void ClientLink::Machine::wait_finished(std::chrono::milliseconds grace) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, grace, [this] { return finished_; });
}

ClientLink::ClientLink(ControlThread& thread, ClientLinkOptions options)
    : machine_(std::make_shared<Machine>(thread, std::move(options))) {}

ClientLink::~ClientLink() { stop(std::chrono::milliseconds{0}); }

void ClientLink::start() {
  machine_->thread().post([machine = machine_] { machine->connect(); });
}

Status ClientLink::send(std::string frame, bool keep) { return machine_->send(std::move(frame), keep); }

bool ClientLink::connected() const { return machine_->connected(); }

void ClientLink::stop(std::chrono::milliseconds grace) {
  CR_ASSERT(!machine_->thread().is_current());
  if (grace.count() > 0) {
    const Status begun = machine_->thread().run([machine = machine_, grace] { machine->finish(grace); });
    if (begun.ok()) machine_->wait_finished(grace);
  }
  const Status stopped = machine_->thread().run([machine = machine_] { machine->stop_now(); });
  if (stopped.fault() == Fault::timeout) log::error(stopped.message());
}

}  // namespace closeranks::control
