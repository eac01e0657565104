#include <gtest/gtest.h>

#include "support.h"

namespace closeranks::communicator {
namespace {

// `bytes` from every place in a cache line to every other; the bytes around stay.
void check_copy(std::size_t bytes, Reuse reuse) {
  const auto source = random_bytes(1, bytes + 64, 71)[0];
  for (const std::size_t from : {0u, 1u, 31u, 63u}) {
    for (const std::size_t to : {0u, 1u, 16u, 33u, 63u}) {
      std::vector<std::uint8_t> target(bytes + 128, 0xee);
      const std::size_t start = to + 1;
      copy_bytes(reinterpret_cast<std::byte*>(target.data() + start),
                 reinterpret_cast<const std::byte*>(source.data() + from), bytes, reuse);
      ASSERT_TRUE(std::equal(source.begin() + static_cast<std::ptrdiff_t>(from),
                             source.begin() + static_cast<std::ptrdiff_t>(from + bytes),
                             target.begin() + static_cast<std::ptrdiff_t>(start)))
          << bytes << " bytes from " << from << " to " << to;
      ASSERT_EQ(target[start - 1], 0xee);
      ASSERT_EQ(target[start + bytes], 0xee);
    }
  }
}

TEST(CopyBytes, AnySizeAndAlignment) {
  for (const Reuse reuse : {Reuse::soon, Reuse::late}) {
    for (const std::size_t bytes : {0u, 1u, 63u, 64u, 4096u, 16'383u, 16'384u, 16'385u, 100'003u}) {
      check_copy(bytes, reuse);
    }
  }
}

TEST(CopyBytes, OnEveryInstructionSet) {
  on_every_target([](const char* /*target*/) { check_copy(70'001, Reuse::late); });
}

}  // namespace
}  // namespace closeranks::communicator
