// A memfd as a peer might send it: of any size, sealed or not, with any bytes at its start. The first two bytes choose
// kind, seals and size; the rest lies over a true header. What is attached answers within its bounds.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/file_descriptor.h"
#include "require.h"
#include "transport/life.h"
#include "transport/mapping.h"
#include "transport/segment.h"
#include "transport/shared_arena.h"

using namespace closeranks;
using namespace closeranks::transport;

namespace {

SegmentShape small_shape() {
  SegmentShape shape;
  shape.members = 2;
  shape.window = 2;
  shape.max_blocks = 4;
  shape.message_slots = 4;
  shape.scratch_bytes = 4096;
  shape.region_bytes = 4096;
  shape.message_half_bytes = 4096;
  return shape;
}

const SegmentIdentity& identity() {
  static const SegmentIdentity instance{"job", GroupKey(7), "default_pg", WorkerId(1), Slot(1), Rank(1)};
  return instance;
}

const ArenaIdentity& arena_identity() {
  static const ArenaIdentity instance{"job", WorkerId(1), Slot(1)};
  return instance;
}

// As `bytes` of an arena, with what the input has over a true header.
void attach_arena(const FileDescriptor& descriptor, std::uint64_t bytes) {
  const auto attached = PeerArena::attach(descriptor.duplicate(), arena_identity());
  if (!attached.ok()) return;
  const PeerArena& arena = attached.value();
  FUZZ_REQUIRE(arena.capacity() == bytes - arena_data_offset);
  FUZZ_REQUIRE(arena.range(arena_data_offset, arena.capacity()) != nullptr);
  FUZZ_REQUIRE(arena.range(arena_data_offset, arena.capacity() + 1) == nullptr);
  FUZZ_REQUIRE(arena.range(arena_data_offset - 1, 1) == nullptr);
  FUZZ_REQUIRE(arena.range(~std::uint64_t{0}, 2) == nullptr);
  if (arena.capacity() > 0) *arena.range(bytes - 1, 1) = std::byte{1};
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ::setenv("CLOSERANKS_LOG", "off", 1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static const Result<Segment> honest = Segment::create(identity(), small_shape());
  FUZZ_REQUIRE(honest.ok());
  static const auto whole = static_cast<std::uint64_t>(::lseek(honest.value().descriptor().get(), 0, SEEK_END));

  const bool life = (data[0] & 1) != 0;
  const bool arena = (data[0] & 8) != 0;
  const bool sealed = (data[0] & 2) == 0;
  const std::uint64_t unit = arena ? huge_page_bytes / 4 : 64;
  const std::uint64_t bytes = (data[0] & 4) != 0 ? std::uint64_t{data[1]} * unit : arena ? 2 * huge_page_bytes : whole;
  FileDescriptor descriptor;
  if (sealed && bytes > 0) {
    auto made = make_memfd("fuzz", bytes);
    FUZZ_REQUIRE(made.ok());
    descriptor = std::move(made.value());
  } else {
    descriptor = FileDescriptor(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    FUZZ_REQUIRE(descriptor.valid() && ::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) == 0);
  }
  std::uint8_t start[512];
  FUZZ_REQUIRE(::pread(honest.value().descriptor().get(), start, sizeof start, 0) == sizeof start);
  if (arena) {
    const ArenaHeader header = make_arena_header(arena_identity(), bytes);
    std::memcpy(start, &header, sizeof header);
  }
  std::copy_n(data + 2, std::min(size - 2, sizeof start), start);
  const std::size_t written = std::min<std::size_t>(sizeof start, bytes);
  FUZZ_REQUIRE(::pwrite(descriptor.get(), start, written, 0) == static_cast<ssize_t>(written));

  if (arena) {
    attach_arena(descriptor, bytes);
    return 0;
  }
  if (life) {
    const auto attached = PeerLife::attach(std::move(descriptor), LifeIdentity{"job", WorkerId(1), Slot(1)}, 0);
    if (attached.ok()) static_cast<void>(attached.value().state());
    return 0;
  }
  const auto attached = Segment::attach(std::move(descriptor), identity(), small_shape());
  if (!attached.ok()) return 0;
  FUZZ_REQUIRE(attached.value().shape() == small_shape());
  static_cast<void>(attached.value().descriptor_slot(1).signature.load());
  FUZZ_REQUIRE(attached.value().region_range(0, small_shape().region_bytes) != nullptr);
  FUZZ_REQUIRE(attached.value().region_range(1, small_shape().region_bytes) == nullptr);
  FUZZ_REQUIRE(attached.value().region_range(~std::uint64_t{0}, 2) == nullptr);
  return 0;
}
