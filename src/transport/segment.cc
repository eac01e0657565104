#include "transport/segment.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <string_view>

#include "base/assert.h"
#include "transport/fixed_text.h"

namespace closeranks::transport {
namespace {

std::string describe(const SegmentIdentity& identity) {
  return "the segment of slot " + std::to_string(identity.slot.value()) + " (worker " +
         std::to_string(identity.worker.value()) + ") of group " + identity.group_name;
}

Status refuse(const SegmentIdentity& identity, const std::string& why) {
  Status status(Fault::refused, Move::give_up, describe(identity) + " is refused: " + why);
  status.slot = identity.slot;
  status.worker = identity.worker;
  status.group = identity.group_name;
  return status;
}

SegmentHeader make_header(const SegmentIdentity& identity, const SegmentShape& shape, const SegmentLayout& layout) {
  SegmentHeader header;
  header.magic = segment_magic;
  header.version = segment_version;
  header.header_bytes = sizeof(SegmentHeader);
  header.total_bytes = layout.total;
  header.group_key = identity.group.value();
  header.worker = identity.worker.value();
  header.slot = identity.slot.value();
  header.rank = identity.rank.value();
  header.pid = static_cast<std::uint32_t>(::getpid());
  header.members = shape.members;
  header.window = shape.window;
  header.max_blocks = shape.max_blocks;
  header.message_slots = shape.message_slots;
  header.scratch_bytes = shape.scratch_bytes;
  header.region_bytes = shape.region_bytes;
  header.message_half_bytes = shape.message_half_bytes;
  write_fixed_text(header.job, identity.job);
  write_fixed_text(header.group_name, identity.group_name);
  return header;
}

// The first difference between what a peer sent and what is expected, in words; empty when there is none.
std::string difference(const SegmentHeader& found, const SegmentHeader& expected) {
  const auto differs = [](std::string_view what, std::uint64_t is, std::uint64_t should) {
    return std::string(what) + " is " + std::to_string(is) + ", expected " + std::to_string(should);
  };
  if (found.magic != expected.magic) return "it is no closeranks segment (magic number)";
  if (found.version != expected.version) return differs("its layout version", found.version, expected.version);
  if (found.header_bytes != expected.header_bytes) {
    return differs("its header size", found.header_bytes, expected.header_bytes);
  }
  if (read_fixed_text(found.job) != read_fixed_text(expected.job)) {
    return "it belongs to job " + printable_text(read_fixed_text(found.job)) + ", not to " +
           read_fixed_text(expected.job);
  }
  if (found.group_key != expected.group_key) return differs("its group key", found.group_key, expected.group_key);
  if (found.worker != expected.worker) return differs("its worker", found.worker, expected.worker);
  if (found.slot != expected.slot) return differs("its slot", found.slot, expected.slot);
  if (found.rank != expected.rank) return differs("its rank", found.rank, expected.rank);
  if (found.members != expected.members) return differs("its number of members", found.members, expected.members);
  if (found.window != expected.window) return differs("its window", found.window, expected.window);
  if (found.max_blocks != expected.max_blocks) return differs("its blocks", found.max_blocks, expected.max_blocks);
  if (found.message_slots != expected.message_slots) {
    return differs("its number of message slots", found.message_slots, expected.message_slots);
  }
  if (found.scratch_bytes != expected.scratch_bytes) {
    return differs("its scratch size", found.scratch_bytes, expected.scratch_bytes);
  }
  if (found.region_bytes != expected.region_bytes) {
    return differs("its region size", found.region_bytes, expected.region_bytes);
  }
  if (found.message_half_bytes != expected.message_half_bytes) {
    return differs("its message size", found.message_half_bytes, expected.message_half_bytes);
  }
  if (found.total_bytes != expected.total_bytes) return differs("its size", found.total_bytes, expected.total_bytes);
  return {};
}

}  // namespace

Result<Segment> Segment::create(const SegmentIdentity& identity, const SegmentShape& shape) {
  if (Status status = shape.check(); !status.ok()) {
    return status;
  }
  Segment segment;
  segment.identity_ = identity;
  segment.shape_ = shape;
  segment.layout_ = segment_layout(shape);
  auto descriptor = make_memfd("closeranks-segment-" + std::to_string(identity.slot.value()), segment.layout_.total);
  if (!descriptor.ok()) {
    return descriptor.status();
  }
  segment.descriptor_ = std::move(descriptor.value());
  auto mapping = Mapping::map(segment.descriptor_, segment.layout_.total, Access::read_write, describe(identity));
  if (!mapping.ok()) {
    return mapping.status();
  }
  segment.mapping_ = std::move(mapping.value());
  segment.advise_huge_pages();
  new (segment.mapping_.data()) SegmentHeader(make_header(identity, shape, segment.layout_));
  return segment;
}

Result<Segment> Segment::attach(FileDescriptor descriptor, const SegmentIdentity& expected, const SegmentShape& shape) {
  if (Status status = shape.check(); !status.ok()) {
    return status;
  }
  Segment segment;
  segment.identity_ = expected;
  segment.shape_ = shape;
  segment.layout_ = segment_layout(shape);
  auto bytes = sealed_bytes(descriptor, describe(expected));
  if (!bytes.ok()) {
    return bytes.status();
  }
  if (bytes.value() != segment.layout_.total) {
    return refuse(expected, "it has " + std::to_string(bytes.value()) + " bytes, expected " +
                                std::to_string(segment.layout_.total));
  }
  auto mapping = Mapping::map(descriptor, bytes.value(), Access::read_write, describe(expected));
  if (!mapping.ok()) {
    return mapping.status();
  }
  segment.mapping_ = std::move(mapping.value());
  SegmentHeader found;
  std::memcpy(&found, segment.mapping_.data(), sizeof(found));
  const std::string why = difference(found, make_header(expected, shape, segment.layout_));
  if (!why.empty()) {
    return refuse(expected, why);
  }
  segment.advise_huge_pages();
  return segment;
}

void Segment::advise_huge_pages() const {
  // Advice only: where huge pages are off, everything works with small ones. Touching a fresh 4 KiB page costs 10 us
  // on virtual machines, so a first pass over the region would take longer than the collective itself.
  if (shape_.region_bytes >= (1u << 21)) {
    static_cast<void>(::madvise(region(), shape_.region_bytes, MADV_HUGEPAGE));
  }
}

std::atomic<std::uint64_t>& Segment::decision(std::uint64_t sequence) const {
  return reinterpret_cast<std::atomic<std::uint64_t>*>(at(layout_.decisions))[in_window(sequence)];
}

DescriptorSlot& Segment::descriptor_slot(std::uint64_t sequence) const {
  return reinterpret_cast<DescriptorSlot*>(at(layout_.descriptors))[in_window(sequence)];
}

std::atomic<std::uint64_t>& Segment::block_word(std::uint64_t sequence, std::uint32_t block) const {
  CR_ASSERT(block < shape_.max_blocks);
  const std::uint64_t row = in_window(sequence) * shape_.members + block % shape_.members;
  const std::uint64_t index = row * layout_.block_row + block / shape_.members;
  return reinterpret_cast<std::atomic<std::uint64_t>*>(at(layout_.blocks))[index];
}

std::byte* Segment::region_range(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset > shape_.region_bytes || bytes > shape_.region_bytes - offset) {
    return nullptr;
  }
  return region() + offset;
}

OutboundWords& Segment::outbound(Rank destination) const {
  CR_ASSERT(destination.value() < shape_.members);
  return *reinterpret_cast<OutboundWords*>(at(layout_.outbound + layout_.outbound_stride * destination.value()));
}

MessageSlot& Segment::message_slot(Rank destination, std::uint32_t slot) const {
  CR_ASSERT(slot < shape_.message_slots);
  return reinterpret_cast<MessageSlot*>(&outbound(destination) + 1)[slot];
}

std::byte* Segment::message_half(Rank destination, std::uint32_t slot, std::uint32_t half) const {
  CR_ASSERT(destination.value() < shape_.members && slot < shape_.message_slots && half < 2);
  const std::uint64_t index = (std::uint64_t{destination.value()} * shape_.message_slots + slot) * 2 + half;
  return at(layout_.messages + index * shape_.message_half_bytes);
}

InboundWords& Segment::inbound(Rank source) const {
  CR_ASSERT(source.value() < shape_.members);
  return *reinterpret_cast<InboundWords*>(at(layout_.inbound + layout_.inbound_stride * source.value()));
}

std::atomic<std::uint64_t>& Segment::consumed(Rank source, std::uint32_t slot) const {
  CR_ASSERT(slot < shape_.message_slots);
  return reinterpret_cast<std::atomic<std::uint64_t>*>(&inbound(source) + 1)[slot];
}

void Segment::forget_messages(Rank other) const {
  const auto relaxed = std::memory_order_relaxed;
  OutboundWords& out = outbound(other);
  for (auto* word : {&out.announced, &out.backlog, &out.answered}) word->store(0, relaxed);
  for (std::uint32_t slot = 0; slot < shape_.message_slots; ++slot) {
    MessageSlot& message = message_slot(other, slot);
    for (auto* word : {&message.message, &message.bytes, &message.first_piece, &message.posted, &message.aborted}) {
      word->store(0, relaxed);
    }
    consumed(other, slot).store(0, relaxed);
  }
  InboundWords& in = inbound(other);
  in.query.store(0, relaxed);
  in.query_tag.store(0, relaxed);
}

}  // namespace closeranks::transport
