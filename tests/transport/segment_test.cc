#include "transport/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>

#include "child_process.h"
#include "transport/outside_view.h"

namespace closeranks::transport {
namespace {

const SegmentIdentity identity{"job", GroupKey(0xfeed), "default", WorkerId(3), Slot(2), Rank(1)};

SegmentShape small_shape() {
  SegmentShape shape = SegmentShape::for_members(4);
  shape.region_bytes = 4 * 1024 * 1024;
  return shape;
}

TEST(SegmentLayout, IsWhatTheDocumentSays) {
  const SegmentLayout layout = segment_layout(SegmentShape::for_members(4));
  EXPECT_EQ(layout.control, 256u);
  EXPECT_EQ(layout.decisions, 512u);
  EXPECT_EQ(layout.descriptors, 640u);
  EXPECT_EQ(layout.blocks, 640u + 16 * 2176);
  EXPECT_EQ(layout.outbound, layout.blocks + 16 * 1024 * 8);
  EXPECT_EQ(layout.outbound_stride, 64u + 32 * 64);
  EXPECT_EQ(layout.inbound, layout.outbound + 4 * layout.outbound_stride);
  EXPECT_EQ(layout.inbound_stride, 64u + 32 * 8);
  EXPECT_EQ(layout.scratch % 4096, 0u);
  EXPECT_GE(layout.scratch, layout.inbound + 4 * layout.inbound_stride);
  EXPECT_EQ(layout.messages, layout.scratch + 128 * 1024);
  EXPECT_EQ(layout.region % (2 * 1024 * 1024), 0u);
  EXPECT_GE(layout.region, layout.messages + 4ull * 32 * 2 * 128 * 1024);
  EXPECT_EQ(layout.total, layout.region + 32 * 1024 * 1024);
}

TEST(SegmentLayout, LargestGroupStaysAddressable) {
  const SegmentShape shape = SegmentShape::for_members(1024);
  ASSERT_TRUE(shape.check().ok());
  // 1024 members map 1024 segments each: below 2 TiB of the 128 TiB a process has.
  EXPECT_LT(segment_layout(shape).total * 1024, 2ull << 40);
}

TEST(SegmentLayout, RefusesShapesOutsideTheirBounds) {
  for (SegmentShape shape : {SegmentShape{.members = 0}, SegmentShape{.members = 1025}, SegmentShape{.window = 0},
                             SegmentShape{.max_blocks = 0}, SegmentShape{.scratch_bytes = 100},
                             SegmentShape{.region_bytes = 4097}, SegmentShape{.message_half_bytes = 1}}) {
    EXPECT_EQ(shape.check().fault(), Fault::invalid_argument);
    EXPECT_EQ(Segment::create(identity, shape).status().fault(), Fault::invalid_argument);
  }
}

TEST(Segment, BothSidesSeeTheSameWordsAndBytes) {
  auto own = Segment::create(identity, small_shape());
  ASSERT_TRUE(own.ok()) << own.status().message();
  auto peer = Segment::attach(own.value().descriptor().duplicate(), identity, small_shape());
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const Segment& mine = own.value();
  const Segment& theirs = peer.value();
  mine.entered() = 5;
  mine.completed() = 4;
  mine.connected() = 1;
  mine.decision(17) = 6;
  mine.descriptor_slot(18).signature = 7;
  mine.block_word(19, 1023) = 8;
  mine.outbound(Rank(3)).announced = 9;
  mine.message_slot(Rank(3), 31).tag = -10;
  mine.inbound(Rank(3)).query = 11;
  mine.consumed(Rank(3), 31) = 12;
  std::memset(mine.message_half(Rank(3), 31, 1), 13, 128 * 1024);
  std::memset(mine.scratch(), 14, 128 * 1024);
  std::memset(theirs.region(), 15, 4 * 1024 * 1024);  // owners of blocks write into other members' regions
  EXPECT_EQ(theirs.entered(), 5u);
  EXPECT_EQ(theirs.completed(), 4u);
  EXPECT_EQ(theirs.connected(), 1u);
  EXPECT_EQ(theirs.decision(1), 6u);  // the same ring slot
  EXPECT_EQ(theirs.descriptor_slot(18).signature, 7u);
  EXPECT_EQ(theirs.block_word(3, 1023), 8u);
  EXPECT_EQ(theirs.outbound(Rank(3)).announced, 9u);
  EXPECT_EQ(theirs.message_slot(Rank(3), 31).tag, -10);
  EXPECT_EQ(theirs.inbound(Rank(3)).query, 11u);
  EXPECT_EQ(theirs.consumed(Rank(3), 31), 12u);
  EXPECT_EQ(theirs.message_half(Rank(3), 31, 1)[128 * 1024 - 1], std::byte{13});
  EXPECT_EQ(theirs.scratch()[128 * 1024 - 1], std::byte{14});
  EXPECT_EQ(mine.region()[4 * 1024 * 1024 - 1], std::byte{15});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mine.region()) % 4096, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mine.descriptor_slot(3).payload.data()) % 64, 32u);
}

TEST(Segment, IsSparseUntilTouched) {
  auto own = Segment::create(identity, SegmentShape::for_members(64));
  ASSERT_TRUE(own.ok());
  struct stat status{};
  ASSERT_EQ(::fstat(own.value().descriptor().get(), &status), 0);
  EXPECT_GT(status.st_size, 500ll * 1024 * 1024);
  EXPECT_LT(status.st_blocks * 512, 64 * 1024);
}

TEST(Segment, RegionRangesFromPeersAreChecked) {
  auto own = Segment::create(identity, small_shape());
  ASSERT_TRUE(own.ok());
  const std::uint64_t all = small_shape().region_bytes;
  EXPECT_EQ(own.value().region_range(0, all), own.value().region());
  EXPECT_EQ(own.value().region_range(all, 0), own.value().region() + all);
  EXPECT_EQ(own.value().region_range(1, all), nullptr);
  EXPECT_EQ(own.value().region_range(all + 1, 0), nullptr);
  EXPECT_EQ(own.value().region_range(~0ull, 2), nullptr);
  EXPECT_EQ(own.value().region_range(64, ~0ull), nullptr);
}

TEST(Segment, RefusesWhatIsNotTheExpectedOne) {
  auto own = Segment::create(identity, small_shape());
  ASSERT_TRUE(own.ok());
  const auto attach = [&](SegmentIdentity expected, SegmentShape shape) {
    return Segment::attach(own.value().descriptor().duplicate(), expected, shape).status();
  };
  SegmentIdentity other = identity;
  other.job = "another";
  EXPECT_EQ(attach(other, small_shape()).fault(), Fault::refused);
  EXPECT_NE(attach(other, small_shape()).message().find("another"), std::string::npos);
  other = identity;
  other.group = GroupKey(1);
  EXPECT_EQ(attach(other, small_shape()).fault(), Fault::refused);
  other = identity;
  other.worker = WorkerId(4);
  EXPECT_EQ(attach(other, small_shape()).fault(), Fault::refused);
  other = identity;
  other.slot = Slot(9);
  EXPECT_EQ(attach(other, small_shape()).fault(), Fault::refused);
  other = identity;
  other.rank = Rank(0);
  EXPECT_EQ(attach(other, small_shape()).fault(), Fault::refused);
  SegmentShape larger = small_shape();
  larger.region_bytes *= 2;
  EXPECT_EQ(attach(identity, larger).fault(), Fault::refused);
  SegmentShape shifted = small_shape();  // the same size, another inner layout
  shifted.window = 8;
  shifted.max_blocks = 2048;
  EXPECT_EQ(attach(identity, shifted).fault(), Fault::refused);

  // A torn one: the header of another version.
  auto peer = Segment::attach(own.value().descriptor().duplicate(), identity, small_shape());
  ASSERT_TRUE(peer.ok());
  auto* header = reinterpret_cast<SegmentHeader*>(peer.value().region() - segment_layout(small_shape()).region);
  header->version = segment_version + 1;
  EXPECT_NE(attach(identity, small_shape()).message().find("version is 5, expected 4"), std::string::npos);
  header->version = segment_version;
  header->magic = 0;
  EXPECT_EQ(attach(identity, small_shape()).fault(), Fault::refused);
}

TEST(Segment, RefusesShortUnsealedAndForeignFiles) {
  const std::uint64_t total = segment_layout(small_shape()).total;
  const auto attach = [](FileDescriptor descriptor) {
    return Segment::attach(std::move(descriptor), identity, small_shape()).status();
  };
  EXPECT_EQ(attach(std::move(make_memfd("short", 4096).value())).fault(), Fault::refused);
  EXPECT_EQ(attach(std::move(make_memfd("zeros", total).value())).fault(), Fault::refused);
  FileDescriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(total)), 0);
  EXPECT_EQ(attach(unsealed.duplicate()).fault(), Fault::refused);
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);  // it could still shrink
  EXPECT_EQ(attach(std::move(unsealed)).fault(), Fault::refused);
  EXPECT_EQ(attach(FileDescriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC))).fault(), Fault::refused);
  EXPECT_EQ(attach(FileDescriptor(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC))).fault(), Fault::refused);
}

TEST(Segment, NobodyCanShrinkIt) {
  auto own = Segment::create(identity, small_shape());
  ASSERT_TRUE(own.ok());
  EXPECT_NE(::ftruncate(own.value().descriptor().get(), 0), 0);
}

TEST(Segment, MemoryOfTheDeadStaysReadable) {
  ChildProcess child([](const Channel& parent) {
    auto own = Segment::create(identity, small_shape());
    std::memset(own.value().region(), 42, 1024);
    own.value().entered() = 3;
    parent.say('s', &own.value().descriptor());
    parent.hear();
    return 0;
  });
  FileDescriptor descriptor;
  ASSERT_EQ(child.channel().hear(&descriptor), 's');
  auto peer = Segment::attach(std::move(descriptor), identity, small_shape());
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  child.kill(SIGKILL);
  child.wait();
  EXPECT_EQ(peer.value().entered(), 3u);
  EXPECT_EQ(peer.value().region()[1023], std::byte{42});
}

TEST(Segment, LeavesNoDescriptorBehind) {
  const std::size_t before = open_descriptors();
  {
    auto own = Segment::create(identity, small_shape());
    ASSERT_TRUE(own.ok());
    auto peer = Segment::attach(own.value().descriptor().duplicate(), identity, small_shape());
    auto refused = Segment::attach(own.value().descriptor().duplicate(), {}, small_shape());
    Segment moved = std::move(peer.value());
    EXPECT_EQ(open_descriptors(), before + 1);
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(OutsideView, ShowsWhatTheWorkerDoes) {
  ChildProcess child([](const Channel& parent) {
    auto own = Segment::create(identity, small_shape());
    Segment& segment = own.value();
    DescriptorSlot& slot = segment.descriptor_slot(20);
    slot.ready = 21;
    slot.blocks = 48;
    slot.kind = 1;
    segment.block_word(20, 5) = 77;
    segment.entered() = 21;
    segment.completed() = 20;
    parent.say('s', &segment.descriptor());
    parent.hear();
    return 0;
  });
  FileDescriptor descriptor;
  ASSERT_EQ(child.channel().hear(&descriptor), 's');
  auto fetched = OutsideView::open(std::move(descriptor));
  ASSERT_TRUE(fetched.ok()) << fetched.status().message();
  std::vector<OutsideView> found = OutsideView::open_all(child.pid());
  ASSERT_EQ(found.size(), 1u);
  for (const OutsideView* view : {&fetched.value(), &found.front()}) {
    EXPECT_EQ(view->identity().group, identity.group);
    EXPECT_EQ(view->identity().group_name, "default");
    EXPECT_EQ(view->identity().worker, identity.worker);
    EXPECT_EQ(view->pid(), static_cast<std::uint32_t>(child.pid()));
    EXPECT_EQ(view->entered(), 21u);
    EXPECT_EQ(view->completed(), 20u);
    EXPECT_EQ(view->block_word(20, 5), 77u);
    EXPECT_EQ(view->descriptor(20).sequence, 20u);
    EXPECT_EQ(view->descriptor(20).blocks, 48u);
  }
}

TEST(OutsideView, RefusesForeignMemory) {
  EXPECT_EQ(OutsideView::open(std::move(make_memfd("short", 64).value())).status().fault(), Fault::refused);
  EXPECT_EQ(OutsideView::open(std::move(make_memfd("zeros", 1 << 20).value())).status().fault(), Fault::refused);
  EXPECT_TRUE(OutsideView::open_all(::getpid()).empty());
}

}  // namespace
}  // namespace closeranks::transport
