// What a stranger says in a segment server's place: the client never takes memory without a proof, and always tells
// how it ended. The input is a row of messages, each with a length byte before it, and each with a memfd attached.
#include <sys/socket.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include "base/token.h"
#include "require.h"
#include "transport/mapping.h"
#include "transport/packet_socket.h"
#include "transport/segment_server.h"

using namespace closeranks;
using namespace closeranks::transport;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ::setenv("CLOSERANKS_LOG", "off", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string name = "closeranks-fuzz-" + make_token().substr(0, 16);
  static const FileDescriptor listener = std::move(listen_abstract(name, 4).value());
  static const FileDescriptor memory = std::move(make_memfd("fuzz", 4096).value());
  asio::io_context context;
  int told = 0;
  async_fetch_segment(context, name, "the token", SegmentKey::life(), std::chrono::seconds(5),
                      [&told](const Result<FileDescriptor>& fetched) {
                        FUZZ_REQUIRE(!fetched.ok());
                        ++told;
                      });
  context.poll();
  {
    const FileDescriptor server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    FUZZ_REQUIRE(server.valid());
    std::span<const std::uint8_t> said(data, size);
    while (!said.empty()) {
      const std::size_t length = std::min<std::size_t>(said[0], said.size() - 1);
      send_packet(server.get(), std::as_bytes(said.subspan(1, length)), &memory);
      said = said.subspan(1 + length);
      context.poll();
    }
  }
  context.run();
  FUZZ_REQUIRE(told == 1);
  return 0;
}
