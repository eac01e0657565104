// The client's end, against coordinators that are wrong in every way, and one that is right. (Against the real one:
// tests/coordinator.)
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/file_descriptor.h"
#include "control/codec.h"
#include "control/frame.h"
#include "control/handshake.h"
#include "control/worker_link.h"

namespace closeranks::control {
namespace {

using testing::HasSubstr;

constexpr std::chrono::milliseconds patience{20'000};
const std::string token = "token of this test";

// A connection to the link under test, with blocking calls and a deadline on each.
class Peer {
 public:
  explicit Peer(FileDescriptor socket) : socket_(std::move(socket)) {}
  void say(std::string_view bytes) {
    static_cast<void>(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  // Fewer bytes than asked for: the link closed.
  std::string hear(std::size_t bytes) {
    std::string out;
    while (out.size() < bytes) {
      pollfd waiting{socket_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, static_cast<int>(patience.count())) <= 0) break;
      char buffer[4096];
      const ssize_t got = ::recv(socket_.get(), buffer, std::min(sizeof buffer, bytes - out.size()), 0);
      if (got <= 0) break;
      out.append(buffer, static_cast<std::size_t>(got));
    }
    return out;
  }
  std::pair<FrameKind, std::string> hear_frame() {
    const std::string head = hear(frame_header_bytes);
    if (head.size() < frame_header_bytes) return {};
    const auto header =
        decode_header(std::as_bytes(std::span(head)).first<frame_header_bytes>(), frame_body_limit, "the link");
    EXPECT_TRUE(header.ok()) << header.status().message();
    return {header.value().kind, hear(header.value().length)};
  }
  // The coordinator's part of the handshake. `known`: the token it knows.
  void shake(const std::string& known = token) {
    const Nonce nonce = make_nonce();
    say(challenge_frame(nonce));
    const auto [kind, body] = hear_frame();
    ASSERT_EQ(kind, FrameKind::proof);
    const auto claimed = decode_proof(std::as_bytes(std::span(body)));
    ASSERT_TRUE(claimed.ok());
    say(accepted_frame(claimed.value(), known, nonce));
  }
  membership::FromWorker hear_message() {
    const auto [kind, body] = hear_frame();
    auto message = decode_from_worker(kind, std::as_bytes(std::span(body)));
    EXPECT_TRUE(message.ok()) << message.status().message();
    return message.ok() ? message.value() : membership::FromWorker(membership::Goodbye{WorkerId(999)});
  }

 private:
  FileDescriptor socket_;
};

// A listening socket that plays the coordinator.
class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(0, ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length));
    EXPECT_EQ(0, ::listen(socket_.get(), 8));
    EXPECT_EQ(0, ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length));
    port_ = ntohs(address.sin_port);
  }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Peer accept() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    EXPECT_GT(::poll(&waiting, 1, static_cast<int>(patience.count())), 0) << "the link did not connect";
    return Peer(FileDescriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  void close() { socket_.reset(); }

 private:
  FileDescriptor socket_;
  std::uint16_t port_ = 0;
};

class Link : public testing::Test {
 protected:
  ~Link() override {
    if (link_) link_->stop();
  }
  void start(const std::string& address) {
    WorkerLinkOptions options;
    options.coordinator = address;
    options.token = token;
    options.job = "job";
    options.worker = WorkerId(3);
    options.opening = [this] {
      const std::lock_guard lock(mutex_);
      ++openings_;
      membership::Hello hello;
      hello.self.worker = WorkerId(3);
      hello.installed = {1, static_cast<std::uint64_t>(openings_)};
      return std::vector<membership::FromWorker>{
          hello, membership::Suspicion{WorkerId(3), WorkerId(2), "it died", true, true}};
    };
    options.message = [this](const membership::ToWorker& message) { note([&] { messages_.push_back(message); }); };
    options.events.connected = [this] { note([&] { ++connected_; }); };
    options.events.lost = [this](const Status& why) { note([&] { lost_.push_back(why); }); };
    options.events.refused = [this](const Status& why) { note([&] { refused_.push_back(why); }); };
    link_ = std::make_unique<WorkerLink>(thread_, std::move(options));
    link_->start();
  }
  void note(const std::function<void()>& action) {
    const std::lock_guard lock(mutex_);
    action();
    changed_.notify_all();
  }
  bool wait(const std::function<bool()>& predicate, std::chrono::milliseconds deadline = patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, deadline, predicate);
  }
  // The first refusal's status.
  Status refusal() {
    EXPECT_TRUE(wait([&] { return !refused_.empty(); }));
    const std::lock_guard lock(mutex_);
    return refused_.empty() ? Status{} : refused_.front();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int openings_ = 0;
  int connected_ = 0;
  std::vector<Status> lost_;
  std::vector<Status> refused_;
  std::vector<membership::ToWorker> messages_;
  ControlThread thread_{"test"};
  std::unique_ptr<WorkerLink> link_;
};

membership::OpRepaired repaired(std::uint64_t sequence) {
  return {WorkerId(3), "default_pg", sequence, "all_reduce", {Slot(0)}, 1};
}

TEST_F(Link, OpensSendsAndTakesMessagesInOrder) {
  Listener listener;
  start(listener.address());
  Peer coordinator = listener.accept();
  coordinator.shake();
  EXPECT_EQ(std::get<membership::Hello>(coordinator.hear_message()).installed.n, 1u);
  EXPECT_EQ(std::get<membership::Suspicion>(coordinator.hear_message()).suspect, WorkerId(2));
  ASSERT_TRUE(wait([&] { return connected_ == 1; }));
  EXPECT_TRUE(link_->connected());
  for (std::uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(link_->send(repaired(i)).ok());
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(std::get<membership::OpRepaired>(coordinator.hear_message()).sequence, i);
  }
  for (std::uint64_t n = 1; n <= 10; ++n)
    coordinator.say(encode(membership::ToWorker(membership::Propose{{1, n}, {}})).value());
  ASSERT_TRUE(wait([&] { return messages_.size() == 10; }));
  EXPECT_EQ(std::get<membership::Propose>(messages_[9]).view.n, 10u);
}

TEST_F(Link, ConnectsAgainWithAFreshOpening) {
  Listener listener;
  start(listener.address());
  for (std::uint64_t round = 1; round <= 3; ++round) {
    Peer coordinator = listener.accept();
    coordinator.shake();
    EXPECT_EQ(std::get<membership::Hello>(coordinator.hear_message()).installed.n, round);
    ASSERT_TRUE(wait([&] { return connected_ == static_cast<int>(round); }));
  }
  ASSERT_TRUE(wait([&] { return lost_.size() >= 2; }));
}

TEST_F(Link, WithoutAConnectionOnlyRepairsWait) {
  Listener listener;
  start(listener.address());
  {
    Peer coordinator = listener.accept();
    coordinator.shake();
    ASSERT_TRUE(wait([&] { return connected_ == 1; }));
  }
  ASSERT_TRUE(wait([&] { return lost_.size() == 1; }));
  const Status dropped = link_->send(membership::Suspicion{WorkerId(3), WorkerId(1), "silent", false, false});
  EXPECT_EQ(dropped.move(), Move::retry);
  EXPECT_THAT(dropped.message(), HasSubstr("worker 3 has no connection to the coordinator at"));
  EXPECT_TRUE(link_->send(repaired(7)).ok());
  EXPECT_TRUE(link_->send(repaired(8)).ok());
  Peer coordinator = listener.accept();
  coordinator.shake();
  static_cast<void>(std::get<membership::Hello>(coordinator.hear_message()));
  static_cast<void>(std::get<membership::Suspicion>(coordinator.hear_message()));  // of the opening
  EXPECT_EQ(std::get<membership::OpRepaired>(coordinator.hear_message()).sequence, 7u);
  EXPECT_EQ(std::get<membership::OpRepaired>(coordinator.hear_message()).sequence, 8u);
}

TEST_F(Link, ACoordinatorThatDoesNotReadIsNotQueuedForWithoutBound) {
  Listener listener;
  start(listener.address());
  Peer coordinator = listener.accept();
  coordinator.shake();
  ASSERT_TRUE(wait([&] { return connected_ == 1; }));
  membership::OpRepaired large = repaired(1);
  large.group = std::string(text_limit, 'g');
  large.op = std::string(text_limit, 'o');
  Status last;
  // The kernel's own buffers come on top of ours.
  for (int i = 0; i < 20'000 && last.ok(); ++i) last = link_->send(large);
  EXPECT_EQ(last.move(), Move::retry);
  EXPECT_THAT(last.message(), HasSubstr("bytes already wait for the coordinator"));
}

TEST_F(Link, AnotherVersionIsToldBothVersions) {
  Listener listener;
  start(listener.address());
  Peer coordinator = listener.accept();
  std::string challenge = challenge_frame(make_nonce());
  challenge[4] = protocol_version + 1;
  coordinator.say(challenge);
  const Status why = refusal();
  EXPECT_EQ(why.fault(), Fault::refused);
  EXPECT_THAT(why.message(), HasSubstr("speaks version 4 of the control protocol, this side version 3"));
}

TEST_F(Link, ACoordinatorWithoutTheTokenGetsNoHello) {
  Listener listener;
  start(listener.address());
  Peer coordinator = listener.accept();
  coordinator.shake("a guess");
  EXPECT_EQ(coordinator.hear(1), "");
  EXPECT_THAT(refusal().message(), HasSubstr("the other side does not know the job's token"));
  EXPECT_EQ(openings_, 0);
}

TEST_F(Link, ARefusalIsPassedOnOnceWhileItStaysTheSame) {
  Listener listener;
  start(listener.address());
  for (int i = 0; i < 3; ++i) {
    Peer coordinator = listener.accept();
    coordinator.say(refused_frame("wrong token"));
    EXPECT_EQ(coordinator.hear(1), "");
  }
  EXPECT_THAT(refusal().message(), HasSubstr("refused worker 3: wrong token"));
  EXPECT_EQ(refusal().move(), Move::give_up);
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(refused_.size(), 1u);
}

TEST_F(Link, GarbageAfterTheHandshakeIsALossAndANewAttempt) {
  Listener listener;
  start(listener.address());
  Peer first = listener.accept();
  first.shake();
  ASSERT_TRUE(wait([&] { return connected_ == 1; }));
  first.say(make_frame(FrameKind::welcome, std::string(1'000, '\x81')).value());
  ASSERT_TRUE(wait([&] { return lost_.size() == 1; }));
  EXPECT_THAT(lost_[0].message(), HasSubstr("a bad frame (welcome): CBOR body with lists and maps nested deeper"));
  Peer second = listener.accept();
  second.shake();
  EXPECT_TRUE(wait([&] { return connected_ == 2; }));
}

TEST_F(Link, ACoordinatorThatNeverSpeaksIsGivenUpAfterTheHandshakesDeadline) {
  Listener listener;
  start(listener.address());
  Peer silent = listener.accept();
  EXPECT_EQ(refusal().fault(), Fault::timeout);
  Peer next = listener.accept();
  next.shake();
  EXPECT_TRUE(wait([&] { return connected_ == 1; }));
}

TEST_F(Link, NobodyListeningIsAnErrorAndThenAConnectionWhenSomebodyDoes) {
  std::string address;
  {
    Listener gone;
    address = gone.address();
  }
  start(address);
  const Status why = refusal();
  EXPECT_EQ(why.move(), Move::retry);
  EXPECT_THAT(why.message(),
              HasSubstr("the coordinator at " + address + " cannot be reached by worker 3: Connection refused"));
}

TEST_F(Link, AnAddressThatIsNoneIsNamed) {
  start("nowhere");
  EXPECT_EQ(refusal().fault(), Fault::invalid_argument);
  EXPECT_THAT(refusal().message(), HasSubstr("\"nowhere\" is not of the form host:port"));
}

TEST_F(Link, APortThatIsNoneIsNamed) {
  start("127.0.0.1:99999");
  EXPECT_THAT(refusal().message(), HasSubstr("has no port between 1 and 65535"));
}

TEST_F(Link, ANameIsLookedUp) {
  Listener listener;
  std::string address = listener.address();
  start("localhost" + address.substr(address.rfind(':')));
  Peer coordinator = listener.accept();
  coordinator.shake();
  EXPECT_TRUE(wait([&] { return connected_ == 1; }));
}

TEST_F(Link, StopWithGraceDeliversWhatIsQueued) {
  Listener listener;
  start(listener.address());
  Peer coordinator = listener.accept();
  coordinator.shake();
  ASSERT_TRUE(wait([&] { return connected_ == 1; }));
  for (std::uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(link_->send(repaired(i)).ok());
  std::thread stopper([&] { link_->stop(std::chrono::seconds(5)); });
  static_cast<void>(coordinator.hear_message());
  static_cast<void>(coordinator.hear_message());
  for (std::uint64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(std::get<membership::OpRepaired>(coordinator.hear_message()).sequence, i);
  }
  EXPECT_EQ(coordinator.hear(1), "");
  coordinator = Peer(FileDescriptor());
  stopper.join();
  EXPECT_EQ(link_->send(repaired(51)).fault(), Fault::closed);
}

TEST_F(Link, NothingIsToldAfterStop) {
  Listener listener;
  start(listener.address());
  Peer coordinator = listener.accept();
  coordinator.shake();
  ASSERT_TRUE(wait([&] { return connected_ == 1; }));
  link_->stop();
  link_->stop();
  coordinator.say(encode(membership::ToWorker(membership::Propose{{1, 2}, {}})).value());
  ASSERT_TRUE(thread_.run([] {}).ok());
  const std::lock_guard lock(mutex_);
  EXPECT_TRUE(messages_.empty());
  EXPECT_TRUE(lost_.empty());
}

}  // namespace
}  // namespace closeranks::control
