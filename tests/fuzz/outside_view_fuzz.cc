// A segment as an observer opens it: its shape comes from its own header. Whatever that says, opening ends with a
// Status, and a view that is accepted can be read up to its last word. Two bytes choose the size, the rest lies at the
// start; the first input byte 0xff lets the size fit the shape that the header claims.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "require.h"
#include "transport/mapping.h"
#include "transport/outside_view.h"

using namespace closeranks;
using namespace closeranks::transport;

namespace {

// The size that the header claims for itself, where it is one to be tried.
std::uint64_t claimed_bytes(const SegmentHeader& header) {
  const SegmentShape shape{.members = header.members,
                           .window = header.window,
                           .max_blocks = header.max_blocks,
                           .message_slots = header.message_slots,
                           .scratch_bytes = header.scratch_bytes,
                           .region_bytes = header.region_bytes,
                           .message_half_bytes = header.message_half_bytes};
  return shape.check().ok() ? segment_layout(shape).total : 4096;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  SegmentHeader header;
  header.magic = segment_magic;
  header.version = segment_version;
  std::memcpy(&header, data + 2, std::min(size - 2, sizeof header));
  const std::uint64_t bytes = data[0] == 0xff ? claimed_bytes(header) : (data[0] | data[1] << 8) * 64ull + 64;
  auto memory = make_memfd("fuzz", bytes);
  if (!memory.ok()) return 0;
  const std::size_t written = std::min<std::size_t>(sizeof header, bytes);
  FUZZ_REQUIRE(::pwrite(memory.value().get(), &header, written, 0) == static_cast<ssize_t>(written));
  const auto view = OutsideView::open(std::move(memory.value()));
  if (!view.ok()) return 0;
  const SegmentShape shape = view.value().shape();
  FUZZ_REQUIRE(view.value().entered() == 0);
  static_cast<void>(view.value().descriptor(shape.window - 1).sequence);
  static_cast<void>(view.value().block_word(shape.window - 1, shape.max_blocks - 1));
  return 0;
}
