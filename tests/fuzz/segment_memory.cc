// Memory from a peer: whatever its header says, attaching ends with a Status, and a view that is accepted can be read
// from one end to the other.
//   byte 0..2   size of the memfd in pages
//   the rest    its first bytes
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "base/assert.h"
#include "transport/life.h"
#include "transport/outside_view.h"
#include "transport/segment.h"

using namespace closeranks;
using namespace closeranks::transport;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) {
    return 0;
  }
  const std::uint64_t pages = data[0] | data[1] << 8 | data[2] << 16;
  auto memory = make_memfd("closeranks-fuzz", (pages + 1) * 4096);
  CR_ASSERT(memory.ok());
  const std::size_t bytes = size - 3 < 4096 ? size - 3 : 4096;
  CR_ASSERT(::pwrite(memory.value().get(), data + 3, bytes, 0) == static_cast<ssize_t>(bytes));

  SegmentShape shape = SegmentShape::for_members(2);
  shape.region_bytes = 4096;
  static_cast<void>(
      Segment::attach(memory.value().duplicate(), {"job", GroupKey(1), "g", WorkerId(1), Slot(1), Rank(1)}, shape));
  auto life = PeerLife::attach(memory.value().duplicate(), {"job", WorkerId(1), Slot(1)}, 3);
  if (life.ok()) {
    static_cast<void>(life.value().state());
  }
  auto view = OutsideView::open(std::move(memory.value()));
  if (view.ok()) {
    const SegmentShape found = view.value().shape();
    static_cast<void>(view.value().entered());
    static_cast<void>(view.value().descriptor(found.window - 1));
    static_cast<void>(view.value().block_word(found.window - 1, found.max_blocks - 1));
  }
  return 0;
}
