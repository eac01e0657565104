// The body of one message of any kind and direction: two bytes of frame kind, then CBOR. What is read can be said
// again, and saying it is stable.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "control/codec.h"
#include "control/frame.h"
#include "require.h"

using namespace closeranks;

namespace {

template <class Message>
void check(const Result<Message>& read, Result<Message> (*decode)(control::FrameKind, std::span<const std::byte>)) {
  if (!read.ok()) {
    FUZZ_REQUIRE(read.status().fault() == Fault::refused);
    return;
  }
  const Result<std::string> frame = control::encode(read.value());
  // Only size may stand in the way: integers may have come in a shorter list form than ours.
  if (!frame.ok()) return;
  const auto bytes = std::as_bytes(std::span(frame.value()));
  const auto header =
      control::decode_header(bytes.template first<control::frame_header_bytes>(), control::frame_body_limit, "it");
  FUZZ_REQUIRE(header.ok());
  const Result<Message> again = decode(header.value().kind, bytes.subspan(control::frame_header_bytes));
  FUZZ_REQUIRE(again.ok());
  const Result<std::string> second = control::encode(again.value());
  FUZZ_REQUIRE(second.ok() && second.value() == frame.value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto kind = static_cast<control::FrameKind>(data[0] | data[1] << 8);
  const auto body = std::as_bytes(std::span(data, size)).subspan(2);
  check(control::decode_from_worker(kind, body), control::decode_from_worker);
  check(control::decode_from_agent(kind, body), control::decode_from_agent);
  check(control::decode_to_worker(kind, body), control::decode_to_worker);
  check(control::decode_to_agent(kind, body), control::decode_to_agent);
  return 0;
}
