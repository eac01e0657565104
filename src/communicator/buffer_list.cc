#include "communicator/buffer_list.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace closeranks::communicator {
namespace {

// Calls `range(data, bytes)` for each piece of [offset, offset + bytes), in order.
template <class Range>
void for_each_range(const std::vector<Buffer>& buffers, std::uint64_t offset, std::uint64_t bytes, Range range) {
  for (const Buffer& buffer : buffers) {
    if (bytes == 0) return;
    if (offset >= buffer.bytes) {
      offset -= buffer.bytes;
      continue;
    }
    const std::uint64_t length = std::min<std::uint64_t>(bytes, buffer.bytes - offset);
    range(static_cast<std::byte*>(buffer.data) + offset, length);
    bytes -= length;
    offset = 0;
  }
  CR_ASSERT(bytes == 0);
}

}  // namespace

std::uint64_t total_bytes(const std::vector<Buffer>& buffers) {
  std::uint64_t sum = 0;
  for (const Buffer& buffer : buffers) sum += buffer.bytes;
  return sum;
}

bool same_memory(const std::vector<Buffer>& left, const std::vector<Buffer>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const Buffer& a, const Buffer& b) { return a.data == b.data && a.bytes == b.bytes; });
}

std::optional<Buffer> only_buffer(const std::vector<Buffer>& buffers) {
  std::optional<Buffer> only;
  for (const Buffer& buffer : buffers) {
    if (buffer.bytes == 0) continue;
    if (only) return std::nullopt;
    only = buffer;
  }
  return only;
}

bool overlaps(const Buffer& memory, const std::vector<Buffer>& buffers) {
  const auto start = reinterpret_cast<std::uintptr_t>(memory.data);
  return std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& buffer) {
    const auto other = reinterpret_cast<std::uintptr_t>(buffer.data);
    return start < other + buffer.bytes && other < start + memory.bytes;
  });
}

void copy_from(const std::vector<Buffer>& buffers, std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  for_each_range(buffers, offset, bytes, [&to](const std::byte* data, std::uint64_t length) {
    std::memcpy(to, data, length);
    to += length;
  });
}

void copy_to(const std::vector<Buffer>& buffers, std::uint64_t offset, const std::byte* from, std::uint64_t bytes,
             Reuse reuse) {
  for_each_range(buffers, offset, bytes, [&from, reuse](std::byte* data, std::uint64_t length) {
    if (data != from) copy_bytes(data, from, length, reuse);
    from += length;
  });
}

void fill_zeros(const std::vector<Buffer>& buffers, std::uint64_t offset, std::uint64_t bytes) {
  for_each_range(buffers, offset, bytes, [](std::byte* data, std::uint64_t length) { std::memset(data, 0, length); });
}

std::byte* range_in(const std::vector<Buffer>& buffers, std::uint64_t offset, std::uint64_t bytes) {
  for (const Buffer& buffer : buffers) {
    if (offset < buffer.bytes || (offset == 0 && bytes == 0)) {
      return offset + bytes <= buffer.bytes ? static_cast<std::byte*>(buffer.data) + offset : nullptr;
    }
    offset -= buffer.bytes;
  }
  return nullptr;
}

}  // namespace closeranks::communicator
