// An element's bits depend on its sources alone: not on its place, the range's length, alignment, the instruction set,
// or the thread's floating-point modes.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <limits>
#include <string>

#include "support.h"

namespace closeranks::communicator {
namespace {

TEST(Kernels, MeaninglessPairsAreNamed) {
  for (const DType dtype : all_dtypes) {
    for (const ReduceOp op : all_reductions) {
      const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
      const bool ordered = op == ReduceOp::min || op == ReduceOp::max;
      const bool complex = dtype == DType::complex64 || dtype == DType::complex128;
      const bool floating =
          dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 || dtype == DType::float64;
      const bool allowed = !(bitwise && (floating || complex)) && !(ordered && complex) &&
                           !((op == ReduceOp::avg || op == ReduceOp::premul_sum) && dtype == DType::boolean);
      const Status status = check_reduction(dtype, op);
      EXPECT_EQ(status.ok(), allowed) << name_of(dtype) << ' ' << name_of(op);
      if (allowed) continue;
      EXPECT_EQ(status.fault(), Fault::invalid_argument);
      EXPECT_NE(status.message().find(name_of(dtype)), std::string::npos);
      EXPECT_NE(status.message().find(name_of(op)), std::string::npos);
    }
  }
  for (const ReduceOp op : all_reductions) EXPECT_FALSE(check_reduction(DType::bytes, op).ok());
}

// What each reduction makes of `inputs`: the three kinds of call.
std::vector<std::uint8_t> result_of(DType dtype, ReduceOp op, const std::vector<std::vector<std::uint8_t>>& inputs) {
  const std::vector<double> weights{3, 0.25, 1.1, 64, 1, 2, 5, 7};
  const std::vector<double> some(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(inputs.size()));
  auto result = op == ReduceOp::premul_sum ? scaled(dtype, inputs, some) : reduced(dtype, op, inputs);
  if (op == ReduceOp::avg) {
    const auto mean = weighted(dtype, inputs, some);
    result.insert(result.end(), mean.begin(), mean.end());
  }
  return without_nans(dtype, result);
}

template <class Run>
void for_every_pair(Run run) {
  for (const DType dtype : all_dtypes) {
    for (const ReduceOp op : all_reductions) {
      if (check_reduction(dtype, op).ok()) run(dtype, op, std::string(name_of(dtype)) + ' ' + std::string(name_of(op)));
    }
  }
}

TEST(Kernels, TailsAreReducedLikeBodies) {
  for_every_pair([](DType dtype, ReduceOp op, const std::string& name) {
    if (op == ReduceOp::avg) return;  // two results in a row; its vectors and tails are those of the sum
    const std::size_t size = size_of(dtype);
    const auto inputs = random_bytes(3, size * 300, 17);
    const auto whole = result_of(dtype, op, inputs);
    for (std::size_t count = 0; count < 290; ++count) {
      std::vector<std::vector<std::uint8_t>> shorter;
      for (const auto& input : inputs) shorter.emplace_back(input.begin(), input.begin() + count * size);
      const auto part = result_of(dtype, op, shorter);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin())) << name << " of " << count;
    }
  });
}

// Two members on one host might be told to use different instruction sets; and results should not change with the
// machine. So all targets that run here agree bit for bit, the scalar one among them.
TEST(Kernels, AllInstructionSetsAgree) {
  for_every_pair([](DType dtype, ReduceOp op, const std::string& name) {
    for (const std::size_t members : {1u, 2u, 5u}) {
      const auto inputs = random_bytes(members, size_of(dtype) * 1003, 19);
      const auto best = result_of(dtype, op, inputs);
      on_every_target([&](const char* target) {
        ASSERT_EQ(result_of(dtype, op, inputs), best) << name << " of " << members << ' ' << target;
      });
    }
  });
}

// Memory is aligned to the element and no further.
TEST(Kernels, AnyAlignmentOfSourcesAndResult) {
  for_every_pair([](DType dtype, ReduceOp op, const std::string& name) {
    if (op == ReduceOp::avg || op == ReduceOp::premul_sum) return;
    const std::size_t size = size_of(dtype);
    constexpr std::size_t count = 301;
    const auto inputs = random_bytes(2, size * count, 61);
    const auto expected = result_of(dtype, op, inputs);
    alignas(64) std::array<std::array<std::byte, 64 + 16 * count>, 3> memory;
    for (std::size_t shift = 0; shift < 64; shift += size) {
      // Each of the three somewhere else.
      const std::array<std::byte*, 3> at{memory[0].data() + shift, memory[1].data() + (shift * 3) % 64,
                                         memory[2].data() + (64 - shift) % 64};
      for (std::size_t s = 0; s < 2; ++s) std::memcpy(at[s], inputs[s].data(), size * count);
      const std::array<const std::byte*, 2> sources{at[0], at[1]};
      reduce(dtype, op, sources, at[2], size * count);
      std::vector<std::uint8_t> result(size * count);
      std::memcpy(result.data(), at[2], result.size());
      ASSERT_EQ(without_nans(dtype, result), expected) << name << ' ' << shift;
    }
  });
}

TEST(Kernels, FlushToZeroOfTheCallingThreadDoesNotMatter) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const auto expected = reduced<float>(DType::float32, ReduceOp::sum, {{tiny}, {tiny}});
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  const auto result = reduced<float>(DType::float32, ReduceOp::sum, {{tiny}, {tiny}});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(bits_of(result[0]), bits_of(expected[0]));
  EXPECT_EQ(bits_of(result[0]), 2u);
  EXPECT_EQ(after & 0x8040, 0x8040u) << "the caller's mode is his own";
}

}  // namespace
}  // namespace closeranks::communicator
