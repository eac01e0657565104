#include "transport/outside_view.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "transport/fixed_text.h"

namespace closeranks::transport {

Result<OutsideView> OutsideView::open(FileDescriptor descriptor) {
  const auto refuse = [](const std::string& why) {
    return Status(Fault::refused, Move::give_up, "a segment is refused by its observer: " + why);
  };
  auto bytes = sealed_bytes(descriptor, "an observed segment");
  if (!bytes.ok()) {
    return bytes.status();
  }
  if (bytes.value() < sizeof(SegmentHeader)) {
    return refuse("it is shorter than its header");
  }
  auto mapping = Mapping::map(descriptor, bytes.value(), Access::read_only, "an observed segment");
  if (!mapping.ok()) {
    return mapping.status();
  }
  SegmentHeader header;
  std::memcpy(&header, mapping.value().data(), sizeof(header));
  if (header.magic != segment_magic || header.version != segment_version) {
    return refuse("it is no closeranks segment of version " + std::to_string(segment_version));
  }
  Segment segment;
  segment.shape_ = SegmentShape{.members = header.members,
                                .window = header.window,
                                .max_blocks = header.max_blocks,
                                .message_slots = header.message_slots,
                                .scratch_bytes = header.scratch_bytes,
                                .region_bytes = header.region_bytes,
                                .message_half_bytes = header.message_half_bytes};
  if (const Status status = segment.shape_.check(); !status.ok()) {
    return refuse(status.message());
  }
  segment.layout_ = segment_layout(segment.shape_);
  if (segment.layout_.total != bytes.value()) {
    return refuse("its size does not fit its shape");
  }
  segment.identity_ = {.job = read_fixed_text(header.job),
                       .group = GroupKey(header.group_key),
                       .group_name = printable_text(read_fixed_text(header.group_name)),
                       .worker = WorkerId(header.worker),
                       .slot = Slot(header.slot),
                       .rank = Rank(header.rank)};
  segment.mapping_ = std::move(mapping.value());
  OutsideView view(std::move(segment));
  view.pid_ = header.pid;
  return view;
}

std::vector<OutsideView> OutsideView::open_all(int pid) {
  std::vector<OutsideView> views;
  std::error_code error;
  std::filesystem::directory_iterator entries("/proc/" + std::to_string(pid) + "/fd", error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::error_code unreadable;
    const std::string target = std::filesystem::read_symlink(entries->path(), unreadable);
    if (unreadable || !target.starts_with("/memfd:closeranks-segment-")) {
      continue;
    }
    FileDescriptor descriptor(::open(entries->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!descriptor.valid()) {
      continue;
    }
    auto view = open(std::move(descriptor));
    // A worker has each segment open twice: its own, and the one its server hands out.
    const auto seen = [&view](const OutsideView& other) {
      return other.identity().group == view.value().identity().group;
    };
    if (view.ok() && std::none_of(views.begin(), views.end(), seen)) {
      views.push_back(std::move(view.value()));
    }
  }
  return views;
}

std::uint64_t OutsideView::entered() const { return segment_.entered().load(std::memory_order_acquire); }
std::uint64_t OutsideView::completed() const { return segment_.completed().load(std::memory_order_acquire); }
std::uint64_t OutsideView::connected() const { return segment_.connected().load(std::memory_order_acquire); }

std::uint64_t OutsideView::block_word(std::uint64_t sequence, std::uint32_t block) const {
  return segment_.block_word(sequence, block).load(std::memory_order_acquire);
}

OutsideView::Descriptor OutsideView::descriptor(std::uint64_t sequence) const {
  const DescriptorSlot& slot = segment_.descriptor_slot(sequence);
  constexpr auto relaxed = std::memory_order_relaxed;
  return {.sequence = slot.ready.load(std::memory_order_acquire) - 1,
          .signature = slot.signature.load(relaxed),
          .unit_bytes = slot.unit_bytes.load(relaxed),
          .blocks = slot.blocks.load(relaxed),
          .kind = slot.kind.load(relaxed),
          .dtype = slot.dtype.load(relaxed),
          .reduce = slot.reduce.load(relaxed)};
}

}  // namespace closeranks::transport
