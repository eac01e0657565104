#include "transport/segment_layout.h"

#include <string>

namespace closeranks::transport {
namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t huge_page_bytes = 2ull * 1024 * 1024;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

Status outside(const char* what, std::uint64_t value) {
  return {Fault::invalid_argument, Move::fix_call,
          "a shared segment cannot have " + std::string(what) + " " + std::to_string(value)};
}

}  // namespace

SegmentShape SegmentShape::for_members(std::uint32_t members) {
  SegmentShape shape;
  shape.members = members;
  // Every member maps the message halves of every other: 8 MiB per pair here, 1 MiB in large groups.
  if (members > 64) {
    shape.message_half_bytes = 16ull * 1024;
  }
  return shape;
}

Status SegmentShape::check() const {
  if (members < 1 || members > 1024) return outside("members", members);
  if (window < 1 || window > 1024 || (window & (window - 1)) != 0) return outside("a window of", window);
  if (max_blocks < 1 || max_blocks > 1024 * 1024) return outside("blocks per entry", max_blocks);
  if (message_slots < 1 || message_slots > 1024) return outside("message slots", message_slots);
  if (scratch_bytes < 64 || scratch_bytes > (1ull << 30) || scratch_bytes % 64 != 0) {
    return outside("scratch bytes", scratch_bytes);
  }
  if (region_bytes < page_bytes || region_bytes > (1ull << 40) || region_bytes % page_bytes != 0) {
    return outside("region bytes", region_bytes);
  }
  if (message_half_bytes < 64 || message_half_bytes > (1ull << 30) || message_half_bytes % 64 != 0) {
    return outside("message half bytes", message_half_bytes);
  }
  return {};
}

SegmentLayout segment_layout(const SegmentShape& shape) {
  SegmentLayout layout;
  layout.control = round_up(sizeof(SegmentHeader), cache_line_bytes);
  layout.decisions = layout.control + sizeof(ControlWords);
  layout.descriptors = layout.decisions + round_up(8ull * shape.window, cache_line_bytes);
  layout.blocks = layout.descriptors + sizeof(DescriptorSlot) * shape.window;
  const std::uint64_t row_bytes = round_up(8ull * ((shape.max_blocks - 1) / shape.members + 1), cache_line_bytes);
  layout.block_row = static_cast<std::uint32_t>(row_bytes / 8);
  layout.outbound = layout.blocks + std::uint64_t{shape.window} * shape.members * row_bytes;
  layout.outbound_stride = sizeof(OutboundWords) + sizeof(MessageSlot) * shape.message_slots;
  layout.inbound = layout.outbound + layout.outbound_stride * shape.members;
  layout.inbound_stride = sizeof(InboundWords) + round_up(8ull * shape.message_slots, cache_line_bytes);
  layout.scratch = round_up(layout.inbound + layout.inbound_stride * shape.members, page_bytes);
  layout.messages = round_up(layout.scratch + shape.scratch_bytes, page_bytes);
  const std::uint64_t halves = 2ull * shape.members * shape.message_slots;
  layout.region = round_up(layout.messages + halves * shape.message_half_bytes, huge_page_bytes);
  layout.total = round_up(layout.region + shape.region_bytes, page_bytes);
  return layout;
}

}  // namespace closeranks::transport
