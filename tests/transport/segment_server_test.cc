#include "transport/segment_server.h"

#include <gtest/gtest.h>

#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <cstring>
#include <thread>

#include "child_process.h"
#include "transport/mapping.h"
#include "transport/packet_socket.h"
#include "transport/segment_frames.h"

namespace closeranks::transport {
namespace {

using namespace std::chrono_literals;

const std::string token = "0123456789abcdef";

// A context with its thread, as a worker has.
class Running {
 public:
  Running() : work_(context_.get_executor()), thread_([this] { context_.run(); }) {}
  ~Running() {
    work_.reset();
    context_.stop();
    thread_.join();
  }
  asio::io_context& context() { return context_; }

 private:
  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

std::unique_ptr<SegmentServer> serve(Running& running) {
  auto server = SegmentServer::start(running.context(), token);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return std::move(server.value());
}

FileDescriptor memory_with(std::uint64_t bytes) { return std::move(make_memfd("test", bytes).value()); }

std::uint64_t size_of_memory(const FileDescriptor& descriptor) { return sealed_bytes(descriptor, "test").value(); }

// A connection that says what it likes.
class Stranger {
 public:
  explicit Stranger(const std::string& endpoint) { EXPECT_EQ(connect_abstract(endpoint, socket_), 0); }
  void send(std::span<const std::byte> bytes) const { send_packet(socket_.get(), bytes); }
  template <class Frame>
  void send_frame(const Frame& frame) const {
    send(std::as_bytes(std::span(&frame, 1)));
  }
  // What the server says next; `closed` within 8 s otherwise.
  Packet hear() {
    pollfd wanted{socket_.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&wanted, 1, 8'000), 1);
    return receive_packet(socket_.get(), buffer_);
  }
  Challenge challenge() {
    EXPECT_EQ(hear().state, Packet::State::whole);
    Challenge challenge;
    std::memcpy(&challenge, buffer_.data(), sizeof(challenge));
    return challenge;
  }
  [[nodiscard]] const std::array<std::byte, 256>& buffer() const { return buffer_; }

 private:
  FileDescriptor socket_;
  std::array<std::byte, 256> buffer_{};
};

TEST(SegmentServer, HandsOutWhatIsPublished) {
  Running running;
  const auto server = serve(running);
  server->publish(SegmentKey::life(), memory_with(4096));
  server->publish(SegmentKey::of(GroupKey(5)), memory_with(8192));
  const auto life = fetch_segment(server->endpoint(), token, SegmentKey::life(), 5s);
  ASSERT_TRUE(life.ok()) << life.status().message();
  EXPECT_EQ(size_of_memory(life.value()), 4096u);
  const auto group = fetch_segment(server->endpoint(), token, SegmentKey::of(GroupKey(5)), 5s);
  ASSERT_TRUE(group.ok()) << group.status().message();
  EXPECT_EQ(size_of_memory(group.value()), 8192u);
  server->publish(SegmentKey::arena(), memory_with(16384));
  const auto arena = fetch_segment(server->endpoint(), token, SegmentKey::arena(), 5s);
  ASSERT_TRUE(arena.ok()) << arena.status().message();
  EXPECT_EQ(size_of_memory(arena.value()), 16384u);
  server->publish(SegmentKey::life(), memory_with(12288));
  EXPECT_EQ(size_of_memory(fetch_segment(server->endpoint(), token, SegmentKey::life(), 5s).value()), 12288u);
}

TEST(SegmentServer, AnswersWhenTheSegmentIsPublished) {
  Running running;
  const auto server = serve(running);
  std::thread publisher([&] {
    std::this_thread::sleep_for(100ms);
    server->publish(SegmentKey::of(GroupKey(1)), memory_with(4096));
  });
  const auto fetched = fetch_segment(server->endpoint(), token, SegmentKey::of(GroupKey(1)), 10s);
  EXPECT_TRUE(fetched.ok()) << fetched.status().message();
  publisher.join();
}

TEST(SegmentServer, NotPublishedInTimeIsATimeout) {
  Running running;
  const auto server = serve(running);
  const auto start = std::chrono::steady_clock::now();
  const auto fetched = fetch_segment(server->endpoint(), token, SegmentKey::of(GroupKey(1)), 100ms);
  EXPECT_EQ(fetched.status().fault(), Fault::timeout);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  server->publish(SegmentKey::of(GroupKey(2)), memory_with(4096));
  EXPECT_TRUE(fetch_segment(server->endpoint(), token, SegmentKey::of(GroupKey(2)), 5s).ok());
  server->withdraw(SegmentKey::of(GroupKey(2)));
  EXPECT_EQ(fetch_segment(server->endpoint(), token, SegmentKey::of(GroupKey(2)), 50ms).status().fault(),
            Fault::timeout);
}

TEST(SegmentServer, ManyPeersAtOnce) {
  Running running;
  const auto server = serve(running);
  asio::io_context context;
  int fetched = 0;
  for (int i = 0; i < 200; ++i) {
    async_fetch_segment(context, server->endpoint(), token, SegmentKey::of(GroupKey(7)), 20s,
                        [&](Result<FileDescriptor> result) { fetched += result.ok() ? 1 : 0; });
  }
  std::thread publisher([&] {
    std::this_thread::sleep_for(50ms);
    server->publish(SegmentKey::of(GroupKey(7)), memory_with(4096));
  });
  context.run();
  publisher.join();
  EXPECT_EQ(fetched, 200);
}

TEST(SegmentServer, WrongTokenIsRefusedOnBothSides) {
  Running running;
  const auto server = serve(running);
  server->publish(SegmentKey::life(), memory_with(4096));
  const auto fetched = fetch_segment(server->endpoint(), "another token", SegmentKey::life(), 5s);
  EXPECT_EQ(fetched.status().fault(), Fault::refused);
  EXPECT_NE(fetched.status().message().find("another token"), std::string::npos);
  EXPECT_TRUE(fetch_segment(server->endpoint(), token, SegmentKey::life(), 5s).ok());
}

TEST(SegmentServer, AProofIsGoodForOneKeyAndOneConnection) {
  Running running;
  const auto server = serve(running);
  server->publish(SegmentKey::life(), memory_with(4096));
  Stranger first(server->endpoint());
  const Challenge challenge = first.challenge();
  Request request;
  request.kind = 1;
  request.proof = frame_proof(token, client_role, challenge.nonce, request.nonce, 1, 0, 0);
  Stranger replaying(server->endpoint());
  replaying.challenge();
  replaying.send_frame(request);
  Packet packet = replaying.hear();
  ASSERT_EQ(packet.state, Packet::State::whole);
  EXPECT_FALSE(packet.attached.valid());
  Answer answer;
  std::memcpy(&answer, replaying.buffer().data(), sizeof(answer));
  EXPECT_EQ(answer.verdict, static_cast<std::uint32_t>(Verdict::refused));
  EXPECT_EQ(replaying.hear().state, Packet::State::closed);
  request.group = 9;  // not what was proved
  first.send_frame(request);
  packet = first.hear();
  EXPECT_FALSE(packet.attached.valid());
}

TEST(SegmentServer, GarbageVersionsAndOversizeAreRefused) {
  Running running;
  const auto server = serve(running);
  server->publish(SegmentKey::life(), memory_with(4096));
  std::array<std::byte, 4096> garbage;
  garbage.fill(std::byte{0x5a});
  for (const std::size_t size : {1u, 15u, 16u, 96u, 255u, 257u, 4096u}) {
    Stranger stranger(server->endpoint());
    stranger.challenge();
    stranger.send(std::span(garbage).first(size));
    EXPECT_EQ(stranger.hear().state, Packet::State::closed) << size;
  }
  Stranger newer(server->endpoint());
  newer.challenge();
  Request request;
  request.start.version = 2;
  newer.send_frame(request);
  EXPECT_EQ(newer.hear().state, Packet::State::closed);
  EXPECT_TRUE(fetch_segment(server->endpoint(), token, SegmentKey::life(), 5s).ok());
}

TEST(SegmentServer, ASilentConnectionIsClosedAndDisturbsNobody) {
  Running running;
  const auto server = serve(running);
  server->publish(SegmentKey::life(), memory_with(4096));
  Stranger silent(server->endpoint());
  silent.challenge();
  EXPECT_TRUE(fetch_segment(server->endpoint(), token, SegmentKey::life(), 1s).ok());
  EXPECT_EQ(silent.hear().state, Packet::State::closed);  // after deadlines::handshake
}

TEST(SegmentServer, NobodyThereOrGoneMeansThePeerIsLost) {
  EXPECT_EQ(fetch_segment("closeranks-nobody", token, SegmentKey::life(), 1s).status().fault(), Fault::peer_lost);
  std::string endpoint;
  {
    Running running;
    auto server = serve(running);
    endpoint = server->endpoint();
    std::thread closer([&] {
      std::this_thread::sleep_for(100ms);
      server.reset();
    });
    EXPECT_EQ(fetch_segment(endpoint, token, SegmentKey::of(GroupKey(1)), 10s).status().fault(), Fault::peer_lost);
    closer.join();
  }
  EXPECT_EQ(fetch_segment(endpoint, token, SegmentKey::life(), 1s).status().fault(), Fault::peer_lost);
}

TEST(SegmentServer, DeathOfTheServersProcessEndsAFetch) {
  ChildProcess child([](const Channel& parent) {
    Running running;
    const auto server = serve(running);
    // The endpoint's name does not fit the one-byte channel: the parent finds it by our pid.
    parent.say('r');
    parent.hear();
    return 0;
  });
  ASSERT_EQ(child.channel().hear(), 'r');
  std::string endpoint;
  std::FILE* sockets = std::fopen("/proc/net/unix", "r");
  ASSERT_NE(sockets, nullptr);
  std::array<char, 512> line{};
  const std::string prefix = "@closeranks-" + std::to_string(child.pid()) + "-";
  while (std::fgets(line.data(), line.size(), sockets) != nullptr) {
    const std::string text(line.data());
    if (const std::size_t at = text.find(prefix); at != std::string::npos) {
      endpoint = text.substr(at + 1, text.find_last_not_of('\n') - at);
    }
  }
  std::fclose(sockets);
  ASSERT_FALSE(endpoint.empty());
  std::thread killer([&] {
    std::this_thread::sleep_for(100ms);
    child.kill(SIGKILL);
  });
  EXPECT_EQ(fetch_segment(endpoint, token, SegmentKey::life(), 10s).status().fault(), Fault::peer_lost);
  killer.join();
}

// Servers a client must not believe.
class FalseServer {
 public:
  FalseServer() : listener_(std::move(listen_abstract(endpoint, 4).value())) {}
  // Accepts one client and sends `frames`, each after a sign of life from the client except the first.
  void serve(const std::vector<std::vector<std::byte>>& frames, const FileDescriptor* attached = nullptr) {
    thread_ = std::thread([this, frames, attached] {
      pollfd wanted{listener_.get(), POLLIN, 0};
      ::poll(&wanted, 1, 5'000);
      const FileDescriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      for (std::size_t i = 0; i < frames.size(); ++i) {
        if (i > 0) {
          pollfd asked{client.get(), POLLIN, 0};
          ::poll(&asked, 1, 5'000);
          std::array<std::byte, 256> request{};
          receive_packet(client.get(), request);
        }
        send_packet(client.get(), frames[i], i + 1 == frames.size() ? attached : nullptr);
      }
    });
  }
  ~FalseServer() { thread_.join(); }
  const std::string endpoint = "closeranks-test-" + make_token().substr(0, 12);

 private:
  FileDescriptor listener_;
  std::thread thread_;
};

template <class Frame>
std::vector<std::byte> frame_bytes(const Frame& frame) {
  const auto bytes = std::as_bytes(std::span(&frame, 1));
  return {bytes.begin(), bytes.end()};
}

TEST(SegmentClient, BelievesNoServerWithoutTheToken) {
  const FileDescriptor memory = memory_with(4096);
  Answer answer;
  answer.verdict = static_cast<std::uint32_t>(Verdict::here);
  FalseServer server;
  server.serve({frame_bytes(Challenge{}), frame_bytes(answer)}, &memory);
  EXPECT_EQ(fetch_segment(server.endpoint, token, SegmentKey::life(), 5s).status().fault(), Fault::refused);
}

TEST(SegmentClient, NamesBothVersions) {
  Challenge challenge;
  challenge.start.version = 9;
  FalseServer server;
  server.serve({frame_bytes(challenge)});
  const Status status = fetch_segment(server.endpoint, token, SegmentKey::life(), 5s).status();
  EXPECT_EQ(status.fault(), Fault::refused);
  EXPECT_NE(status.message().find("version 9"), std::string::npos);
  EXPECT_NE(status.message().find("version 1"), std::string::npos);
}

TEST(SegmentClient, RefusesMalformedAnswers) {
  for (const std::size_t size : {1u, 16u, 47u, 49u, 1000u}) {
    FalseServer server;
    std::vector<std::byte> frame = frame_bytes(Challenge{});
    frame.resize(size);
    server.serve({frame});
    EXPECT_EQ(fetch_segment(server.endpoint, token, SegmentKey::life(), 5s).status().fault(), Fault::refused) << size;
  }
}

TEST(SegmentClient, ASilentServerIsATimeout) {
  FalseServer server;
  server.serve({});
  const Fault fault = fetch_segment(server.endpoint, token, SegmentKey::life(), 200ms).status().fault();
  EXPECT_TRUE(fault == Fault::timeout || fault == Fault::peer_lost);
}

TEST(SegmentServer, LeavesNoDescriptorBehind) {
  const std::size_t before = open_descriptors();
  {
    Running running;
    const auto server = serve(running);
    server->publish(SegmentKey::life(), memory_with(4096));
    ASSERT_TRUE(fetch_segment(server->endpoint(), token, SegmentKey::life(), 5s).ok());
    Stranger open_until_the_end(server->endpoint());
    open_until_the_end.challenge();
  }
  EXPECT_EQ(open_descriptors(), before);
}

// The child of a worker must not keep the worker's listening socket: connections to it would hang after its death.
TEST(SegmentServer, ForkChildrenHoldNoSocketAndNoMemory) {
  Running running;
  const auto server = serve(running);
  server->publish(SegmentKey::life(), memory_with(4096));
  ASSERT_TRUE(fetch_segment(server->endpoint(), token, SegmentKey::life(), 5s).ok());
  ChildProcess loader([](const Channel& parent) {
    parent.say('r');
    parent.hear();
    return 0;
  });
  ASSERT_EQ(loader.channel().hear(), 'r');
  const std::string folder = "/proc/" + std::to_string(loader.pid()) + "/fd/";
  std::size_t sockets = 0;
  std::size_t memories = 0;
  for (int descriptor = 0; descriptor < 256; ++descriptor) {
    std::array<char, 256> target{};
    if (::readlink((folder + std::to_string(descriptor)).c_str(), target.data(), target.size() - 1) > 0) {
      const std::string text(target.data());
      sockets += text.starts_with("socket:") ? 1 : 0;
      memories += text.starts_with("/memfd:") ? 1 : 0;
    }
  }
  EXPECT_EQ(sockets, 1u);  // its channel to this test
  EXPECT_EQ(memories, 0u);
}

}  // namespace
}  // namespace closeranks::transport
