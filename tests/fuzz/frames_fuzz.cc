// A stream of bytes as one end of a control connection reads it: header, body, header, ...
#include <cstddef>
#include <cstdint>
#include <span>

#include "control/codec.h"
#include "control/frame.h"
#include "require.h"

using namespace closeranks;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::span<const std::byte> stream = std::as_bytes(std::span(data, size));
  while (stream.size() >= control::frame_header_bytes) {
    const auto bytes = stream.first<control::frame_header_bytes>();
    const Result<control::FrameHeader> header = control::decode_header(bytes, control::frame_body_limit, "it");
    if (!header.ok()) {
      FUZZ_REQUIRE(header.status().fault() == Fault::refused);
      return 0;
    }
    FUZZ_REQUIRE(header.value().length <= control::frame_body_limit);
    FUZZ_REQUIRE(control::encode_header(header.value().kind, header.value().length) ==
                 *reinterpret_cast<const control::HeaderBytes*>(bytes.data()));
    stream = stream.subspan(control::frame_header_bytes);
    if (header.value().length > stream.size()) return 0;
    const auto body = stream.first(header.value().length);
    static_cast<void>(control::decode_from_worker(header.value().kind, body));
    static_cast<void>(control::decode_to_worker(header.value().kind, body));
    stream = stream.subspan(header.value().length);
  }
  return 0;
}
