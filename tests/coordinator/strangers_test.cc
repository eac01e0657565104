// Connections that have no business here, beside a job that must not notice them.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "base/deadlines.h"
#include "base/file_descriptor.h"
#include "control/codec.h"
#include "control/frame.h"
#include "control/handshake.h"
#include "coordinator/door.h"
#include "coordinator/refusals.h"
#include "job.h"

namespace closeranks::coordinator::test {
namespace {

using control::FrameKind;
using testing::HasSubstr;

// A plain socket that says whatever it is told.
class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(0, ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
  }
  void say(std::string_view bytes) {
    // The other side may have closed already.
    static_cast<void>(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  // Exactly so many bytes, or fewer at the end of the connection or after the deadline.
  std::string hear(std::size_t bytes, std::chrono::milliseconds deadline = patience) {
    std::string out;
    const auto end = std::chrono::steady_clock::now() + deadline;
    while (out.size() < bytes) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd waiting{socket_.get(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) break;
      char buffer[4096];
      const ssize_t got = ::recv(socket_.get(), buffer, std::min(sizeof buffer, bytes - out.size()), 0);
      if (got <= 0) {
        ended_ = true;
        break;
      }
      out.append(buffer, static_cast<std::size_t>(got));
    }
    return out;
  }
  // One frame: its kind and body.
  std::pair<FrameKind, std::string> hear_frame() {
    const std::string head = hear(control::frame_header_bytes);
    if (head.size() < control::frame_header_bytes) return {};
    const auto header = control::decode_header(std::as_bytes(std::span(head)).first<control::frame_header_bytes>(),
                                               control::frame_body_limit, "it");
    EXPECT_TRUE(header.ok());
    return {header.value().kind, hear(header.value().length)};
  }
  // True when the other side closed. Reads what still comes.
  bool ended(std::chrono::milliseconds deadline = patience) {
    while (!ended_ && !hear(4096, deadline).empty()) {
    }
    return ended_;
  }
  // Goes through the handshake as `claim`; the connection is in afterwards.
  void prove(const control::Claim& claim, const std::string& token) {
    const auto [kind, body] = hear_frame();
    ASSERT_EQ(kind, FrameKind::challenge);
    const Nonce nonce = control::decode_challenge(std::as_bytes(std::span(body))).value();
    say(control::proof_frame(claim, token, nonce, make_nonce()));
    ASSERT_EQ(hear_frame().first, FrameKind::accepted);
  }
  // Skips the challenge and returns the refusal's text.
  std::string refusal() {
    auto [kind, body] = hear_frame();
    if (kind == FrameKind::challenge) std::tie(kind, body) = hear_frame();
    return kind == FrameKind::refused ? body : "no refusal";
  }
  void close() { socket_.reset(); }

 private:
  FileDescriptor socket_;
  bool ended_ = false;
};

std::string frame(FrameKind kind, std::string_view body) { return control::make_frame(kind, body).value(); }

// Four workers and an agent; at the end of each test they must have noticed nothing and be able to change the view.
class Strangers : public testing::Test {
 protected:
  void SetUp() override { job_.start_all(); }
  void TearDown() override {
    for (auto& [slot, worker] : job_.workers) {
      EXPECT_EQ(worker->board.change([&, it = worker.get()] { return it->lost + it->refused; }), 0)
          << "worker " << slot;
    }
    job_.workers[3]->stop();
    job_.agent->kill(3);
    job_.workers.erase(3);
    for (auto& [slot, worker] : job_.workers) {
      EXPECT_TRUE(worker->board.wait([it = worker.get()] {
        return !it->installs.empty() && it->installs.back().excluded.back().worker == WorkerId(3);
      })) << "worker "
          << slot;
    }
  }
  // The reasons of the refusals so far.
  std::vector<std::string> refusals() {
    return job_.board.change([&] {
      std::vector<std::string> out;
      for (const Event& event : job_.events) {
        if (event.kind == EventKind::connection_refused) out.push_back(event.reason);
      }
      return out;
    });
  }
  bool refused(int times) {
    return job_.board.wait([&] { return job_.count(EventKind::connection_refused) >= times; });
  }
  control::Claim claim(std::uint32_t worker) const { return {control::Role::worker, WorkerId(worker), job_.job, ""}; }

  Job job_{4};
};

TEST_F(Strangers, RandomBytes) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 5; ++i) {
    Stranger stranger(job_.port());
    std::string noise(10'000, ' ');
    for (char& byte : noise) byte = static_cast<char>(random());
    stranger.say(noise);
    EXPECT_THAT(stranger.refusal(), HasSubstr("does not speak closeranks' control protocol"));
    EXPECT_TRUE(stranger.ended());
  }
  EXPECT_TRUE(refused(5));
}

TEST_F(Strangers, AnHttpClient) {
  Stranger stranger(job_.port());
  stranger.say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(stranger.refusal(), HasSubstr("does not speak"));
  EXPECT_TRUE(stranger.ended());
}

TEST_F(Strangers, AnotherVersionIsToldBothVersions) {
  Stranger stranger(job_.port());
  std::string other = frame(FrameKind::proof, "whatever");
  other[4] = 42;
  stranger.say(other);
  EXPECT_THAT(stranger.refusal(), HasSubstr("speaks version 42 of the control protocol, this side version 3"));
  EXPECT_TRUE(stranger.ended());
}

TEST_F(Strangers, WrongTokenAnotherJobAndAWorkerThatDoesNotExist) {
  const auto attempt = [&](const control::Claim& who, const std::string& token) {
    Stranger stranger(job_.port());
    const auto [kind, body] = stranger.hear_frame();
    const Nonce nonce = control::decode_challenge(std::as_bytes(std::span(body))).value();
    stranger.say(control::proof_frame(who, token, nonce, make_nonce()));
    return stranger.refusal();
  };
  EXPECT_EQ(attempt(claim(0), "wrong"), "wrong token");
  control::Claim other = claim(0);
  other.job = "another";
  EXPECT_THAT(attempt(other, job_.token), HasSubstr("not of job another"));
  EXPECT_THAT(attempt(claim(99), job_.token), HasSubstr("there is no worker 99"));
  EXPECT_TRUE(refused(3));
}

TEST_F(Strangers, AMessageBeforeTheProof) {
  Stranger stranger(job_.port());
  stranger.say(control::encode(membership::FromWorker(membership::Goodbye{WorkerId(1)})).value());
  EXPECT_THAT(stranger.refusal(), HasSubstr("a frame (goodbye) before it proved"));
  EXPECT_TRUE(stranger.ended());
}

TEST_F(Strangers, OversizedFramesBeforeAndAfterTheProof) {
  Stranger before(job_.port());
  const control::HeaderBytes large = control::encode_header(FrameKind::proof, control::handshake_body_limit + 1);
  before.say({reinterpret_cast<const char*>(large.data()), large.size()});
  EXPECT_THAT(before.refusal(), HasSubstr("more than the 1024 allowed here"));

  Stranger after(job_.port());
  control::Claim observer;
  observer.role = control::Role::agent;
  observer.job = job_.job;
  observer.host = "beta";
  after.prove(observer, job_.token);
  const control::HeaderBytes huge = control::encode_header(FrameKind::agent_hello, 0xffffffff);
  after.say({reinterpret_cast<const char*>(huge.data()), huge.size()});
  EXPECT_THAT(after.refusal(), HasSubstr("4294967295 bytes"));
  EXPECT_TRUE(after.ended());
}

TEST_F(Strangers, ADeeplyNestedFrameFromOneWhoKnowsTheToken) {
  Stranger stranger(job_.port());
  control::Claim agent;
  agent.role = control::Role::agent;
  agent.job = job_.job;
  agent.host = "beta";
  stranger.prove(agent, job_.token);
  stranger.say(frame(FrameKind::agent_hello, std::string(900'000, '\x81')));
  EXPECT_THAT(stranger.refusal(), HasSubstr("nested deeper than 8"));
  EXPECT_TRUE(stranger.ended());
}

TEST_F(Strangers, OneThatSpeaksForAnother) {
  Stranger stranger(job_.port());
  control::Claim agent;
  agent.role = control::Role::agent;
  agent.job = job_.job;
  agent.host = "beta";
  stranger.prove(agent, job_.token);
  stranger.say(control::encode(membership::FromAgent(membership::AgentHello{"alpha", 1})).value());
  EXPECT_THAT(stranger.refusal(), HasSubstr("a hello of host alpha on the connection of host beta"));
}

TEST_F(Strangers, OneThatNeverSpeaksIsClosedAfterTheHandshakesDeadline) {
  Stranger stranger(job_.port());
  Stranger half(job_.port());
  half.say("CRNK");
  EXPECT_THAT(stranger.refusal(), HasSubstr("did not prove the job's token within 5 s"));
  EXPECT_TRUE(stranger.ended());
  EXPECT_TRUE(half.ended());
}

TEST_F(Strangers, HalfOpenConnectionsAreCleanedUp) {
  // Gone without reading the challenge, in the middle of a header, in the middle of a body.
  for (const std::string& part :
       {std::string(), std::string("CRNK\1"), frame(FrameKind::proof, "xxxx").substr(0, 14)}) {
    Stranger stranger(job_.port());
    stranger.say(part);
    stranger.close();
  }
  EXPECT_TRUE(refused(3));
  for (const std::string& reason : refusals()) EXPECT_THAT(reason, HasSubstr("before it proved the job's token"));
}

TEST_F(Strangers, TwoHundredAtOnceAndAHealthyJobBeside) {
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(std::make_unique<Stranger>(job_.port()));
  for (std::size_t i = 0; i < crowd.size(); i += 2) crowd[i]->say("some bytes that are no frame");
  // In the middle of it a worker dies; the others go on.
  job_.workers[2]->stop();
  job_.agent->kill(2);
  job_.workers.erase(2);
  for (const std::uint32_t slot : {0u, 1u, 3u}) {
    FakeWorker& worker = *job_.workers[slot];
    EXPECT_TRUE(worker.board.wait([&] { return !worker.installs.empty(); })) << "worker " << slot;
  }
  for (std::size_t i = 0; i < crowd.size(); i += 2) EXPECT_TRUE(crowd[i]->ended());
  // The log does not grow with their number.
  EXPECT_LE(refusals().size(), 2 * Refusals::lines_per_interval);
}

TEST(Refusals, TellTheFirstOnesAndCountTheRest) {
  using namespace std::chrono_literals;
  Refusals refusals;
  int told = 0;
  for (int i = 0; i < 100; ++i) told += refusals.tell(1s) ? 1 : 0;
  EXPECT_EQ(told, 10);
  EXPECT_FALSE(refusals.left_out(2s));
  EXPECT_EQ(refusals.left_out(12s), 90u);
  EXPECT_FALSE(refusals.left_out(12s));
  EXPECT_TRUE(refusals.tell(13s));
}

}  // namespace
}  // namespace closeranks::coordinator::test
