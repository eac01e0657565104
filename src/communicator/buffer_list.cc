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

void copy_from(const std::vector<Buffer>& buffers, std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  for_each_range(buffers, offset, bytes, [&to](const std::byte* data, std::uint64_t length) {
    std::memcpy(to, data, length);
    to += length;
  });
}

void copy_to(const std::vector<Buffer>& buffers, std::uint64_t offset, const std::byte* from, std::uint64_t bytes) {
  for_each_range(buffers, offset, bytes, [&from](std::byte* data, std::uint64_t length) {
    std::memcpy(data, from, length);
    from += length;
  });
}

}  // namespace closeranks::communicator
