// Frames from a stranger to the segment server, and to its client: neither ever hands out or takes memory without a
// proof, and both end the connection.
//   byte 0      0: the input is what a client says; else: what a server says, as messages of that many bytes each
//   the rest    the bytes
#include "transport/segment_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/token.h"
#include "transport/mapping.h"
#include "transport/packet_socket.h"

using namespace closeranks;
using namespace closeranks::transport;

namespace {

void strange_client(std::span<const std::byte> said) {
  asio::io_context context;
  auto server = SegmentServer::start(context, "token");
  CR_ASSERT(server.ok());
  server.value()->publish(SegmentKey::life(), std::move(make_memfd("closeranks-fuzz", 4096).value()));
  FileDescriptor client;
  CR_ASSERT(connect_abstract(server.value()->endpoint(), client) == 0);
  context.poll();
  send_packet(client.get(), said);
  context.poll();
  std::byte heard[256];
  for (Packet packet = receive_packet(client.get(), heard); packet.state == Packet::State::whole;
       packet = receive_packet(client.get(), heard)) {
    CR_ASSERT(!packet.attached.valid());
  }
  server.value().reset();
  context.poll();
}

void strange_server(std::span<const std::byte> said, std::size_t message_bytes) {
  const std::string name = "closeranks-fuzz-" + make_token().substr(0, 16);
  auto listener = listen_abstract(name, 4);
  CR_ASSERT(listener.ok());
  asio::io_context context;
  bool told = false;
  async_fetch_segment(context, name, "token", SegmentKey::life(), std::chrono::milliseconds(1000),
                      [&told](Result<FileDescriptor> fetched) {
                        CR_ASSERT(!fetched.ok());
                        told = true;
                      });
  context.poll();
  {
    const FileDescriptor server(::accept4(listener.value().get(), nullptr, nullptr, SOCK_CLOEXEC));
    const FileDescriptor memory = std::move(make_memfd("closeranks-fuzz", 4096).value());
    while (!said.empty()) {
      const auto message = said.first(std::min(message_bytes, said.size()));
      said = said.subspan(message.size());
      send_packet(server.get(), message, &memory);
      context.poll();
    }
  }
  context.run();
  CR_ASSERT(told);
}

}  // namespace

// One warning per refused connection would be all this program does.
extern "C" int LLVMFuzzerInitialize(int*, char***) { return ::setenv("CLOSERANKS_LOG", "error", 1); }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2 || size > 8192) {
    return 0;
  }
  const auto said = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] == 0) {
    strange_client(said);
  } else {
    strange_server(said, data[0]);
  }
  return 0;
}
