#include "communicator/region_allocator.h"

#include <algorithm>

#include "base/assert.h"

namespace closeranks::communicator {
namespace {

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + RegionAllocator::alignment - 1) / RegionAllocator::alignment * RegionAllocator::alignment;
}

}  // namespace

RegionAllocator::RegionAllocator(std::uint64_t region_bytes) : holes_{{0, region_bytes}} {}

std::optional<std::uint64_t> RegionAllocator::allocate(std::uint64_t bytes) {
  CR_ASSERT(bytes > 0);
  const std::uint64_t needed = rounded(bytes);
  const auto hole =
      std::find_if(holes_.begin(), holes_.end(), [needed](const Hole& candidate) { return candidate.bytes >= needed; });
  if (hole == holes_.end()) return std::nullopt;
  const std::uint64_t offset = hole->offset;
  hole->offset += needed;
  hole->bytes -= needed;
  if (hole->bytes == 0) holes_.erase(hole);
  return offset;
}

void RegionAllocator::release(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t freed = rounded(bytes);
  auto next = std::find_if(holes_.begin(), holes_.end(), [offset](const Hole& hole) { return hole.offset > offset; });
  const bool joins_next = next != holes_.end() && offset + freed == next->offset;
  const bool joins_previous = next != holes_.begin() && (next - 1)->offset + (next - 1)->bytes == offset;
  CR_ASSERT(next == holes_.end() || offset + freed <= next->offset);
  CR_ASSERT(next == holes_.begin() || (next - 1)->offset + (next - 1)->bytes <= offset);
  if (joins_previous && joins_next) {
    (next - 1)->bytes += freed + next->bytes;
    holes_.erase(next);
  } else if (joins_previous) {
    (next - 1)->bytes += freed;
  } else if (joins_next) {
    next->offset = offset;
    next->bytes += freed;
  } else {
    holes_.insert(next, {offset, freed});
  }
}

}  // namespace closeranks::communicator
