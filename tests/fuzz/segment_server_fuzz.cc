// Messages to the server that hands out memfds. The input is a row of messages, each with a length byte before it. A
// message that begins with 'P' is given a true proof over its own kind, wait and group, so that what lies behind the
// token check is reached too. After each input an honest client is served.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "base/file_descriptor.h"
#include "require.h"
#include "transport/mapping.h"
#include "transport/segment_frames.h"
#include "transport/segment_server.h"

using namespace closeranks;
using namespace closeranks::transport;

namespace {

constexpr const char* token = "the token";

struct World {
  World() {
    auto started = SegmentServer::start(context, token);
    FUZZ_REQUIRE(started.ok());
    server = std::move(started.value());
    const int descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_REQUIRE(descriptor >= 0);
    server->publish(SegmentKey::life(), FileDescriptor(descriptor));
    turn();
  }
  // Whatever is ready, on this thread.
  void turn() {
    for (int i = 0; i < 4; ++i) {
      context.restart();
      context.poll();
    }
  }
  asio::io_context context{1};
  std::unique_ptr<SegmentServer> server;
};

int connect_to(const std::string& endpoint) {
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  FUZZ_REQUIRE(socket >= 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, endpoint.data(), endpoint.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + endpoint.size());
  FUZZ_REQUIRE(::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) == 0);
  return socket;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // One log line per refused connection is right in a job and in the way here.
  ::setenv("CLOSERANKS_LOG", "off", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  const FileDescriptor socket(connect_to(world.server->endpoint()));
  world.turn();
  Challenge challenge;
  FUZZ_REQUIRE(::recv(socket.get(), &challenge, sizeof challenge, 0) == sizeof challenge);
  while (size > 0) {
    const std::size_t length = std::min<std::size_t>(data[0], size - 1);
    std::string message(reinterpret_cast<const char*>(data) + 1, length);
    data += 1 + length;
    size -= 1 + length;
    if (!message.empty() && message[0] == 'P') {
      Request request;
      std::memcpy(&request.kind, message.data() + 1, std::min(message.size() - 1, std::size_t{16}));
      request.nonce = challenge.nonce;
      request.proof = frame_proof(token, client_role, challenge.nonce, request.nonce, request.kind, request.group, 0);
      message.assign(reinterpret_cast<const char*>(&request), sizeof request);
    }
    static_cast<void>(::send(socket.get(), message.data(), message.size(), MSG_NOSIGNAL));
    world.turn();
  }
  std::optional<bool> served;
  async_fetch_segment(world.context, world.server->endpoint(), token, SegmentKey::life(), std::chrono::seconds(5),
                      [&](const Result<FileDescriptor>& fetched) { served = fetched.ok(); });
  for (int i = 0; i < 100 && !served; ++i) world.turn();
  FUZZ_REQUIRE(served && *served);
  return 0;
}
