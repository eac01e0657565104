// Floating point against the same ops in plain C++ and, for 16 bits, against a search for the nearest pattern.
#include <gtest/gtest.h>

#include <complex>
#include <limits>

#include "reference.h"
#include "support.h"

namespace closeranks::communicator {
namespace {

using kernels_test::brain;
using kernels_test::Half;
using kernels_test::ieee;

// Floating point against the same op in plain C++, left to right; volatile keeps the compiler from anything cleverer.
template <class T>
T float_model(ReduceOp op, const std::vector<T>& column) {
  volatile T value = column[0];
  for (std::size_t i = 1; i < column.size(); ++i) {
    const T a = value;
    const T b = column[i];
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        value = a + b;
        break;
      case ReduceOp::product:
        value = a * b;
        break;
      case ReduceOp::min:
        value = std::isnan(a) ? a : std::isnan(b) || b < a ? b : a;
        break;
      case ReduceOp::max:
        value = std::isnan(a) ? a : std::isnan(b) || a < b ? b : a;
        break;
      default:
        break;
    }
  }
  if (op == ReduceOp::avg) value = value / static_cast<T>(column.size());
  return value;
}

template <class T>
std::vector<T> interesting() {
  using Limits = std::numeric_limits<T>;
  return {T(0),
          -T(0),
          T(1),
          T(-1),
          Limits::infinity(),
          -Limits::infinity(),
          Limits::max(),
          Limits::lowest(),
          Limits::min(),
          Limits::denorm_min(),
          Limits::quiet_NaN(),
          T(0.1),
          T(3)};
}

template <class T>
void check_floats(DType dtype) {
  std::mt19937_64 random(11);
  std::normal_distribution<T> normal;
  const std::vector<T> special = interesting<T>();
  for (const std::size_t members : {1u, 2u, 3u, 8u}) {
    for (const std::size_t count : {0u, 1u, 3u, 17u, 64u, 999u}) {
      std::vector<std::vector<T>> inputs(members, std::vector<T>(count));
      for (auto& input : inputs) {
        for (T& value : input) value = random() % 4 == 0 ? special[random() % special.size()] : normal(random);
      }
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
        const std::vector<T> result = reduced(dtype, op, inputs);
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<T> column;
          for (const auto& input : inputs) column.push_back(input[i]);
          const T expected = float_model(op, column);
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(result[i])) << name_of(dtype) << ' ' << name_of(op);
          } else {
            ASSERT_EQ(bits_of(result[i]), bits_of(expected)) << name_of(dtype) << ' ' << name_of(op) << ' ' << i;
          }
        }
      }
    }
  }
}

TEST(Kernels, FloatsAreReducedInSourceOrder) {
  check_floats<float>(DType::float32);
  check_floats<double>(DType::float64);
}

TEST(Kernels, OfEqualValuesTheEarlierSourceStays) {
  const auto minimum = reduced<float>(DType::float32, ReduceOp::min, {{0.0f, -0.0f}, {-0.0f, 0.0f}});
  EXPECT_FALSE(std::signbit(minimum[0]));
  EXPECT_TRUE(std::signbit(minimum[1]));
}

TEST(Kernels, HalvesOfOneMemberComeBackUnchanged) {
  for (const Half& half : {ieee, brain}) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    const auto result = reduced<std::uint16_t>(half.dtype, ReduceOp::sum, {all});
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(half.value(all[i]))) {
        ASSERT_TRUE(std::isnan(half.value(result[i]))) << i;
      } else {
        ASSERT_EQ(result[i], all[i]) << name_of(half.dtype);
      }
    }
  }
}

TEST(Kernels, HalvesAreSummedInFloatAndRoundedOnce) {
  std::mt19937_64 random(13);
  for (const Half& half : {ieee, brain}) {
    for (const std::size_t members : {2u, 3u, 7u}) {
      std::vector<std::vector<std::uint16_t>> inputs(members, std::vector<std::uint16_t>(40'001));
      for (auto& input : inputs) {
        for (auto& value : input) value = static_cast<std::uint16_t>(random());
      }
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
        const auto result = reduced(half.dtype, op, inputs);
        for (std::size_t i = 0; i < result.size(); ++i) {
          std::vector<float> column;
          for (const auto& input : inputs) column.push_back(half.value(input[i]));
          const float expected = float_model(op, column);
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(half.value(result[i])));
          } else {
            ASSERT_EQ(result[i], half.nearest(expected))
                << name_of(half.dtype) << ' ' << name_of(op) << " of " << members << ": " << expected;
          }
        }
      }
    }
  }
}

TEST(Kernels, HalvesRoundTiesToEven) {
  // 2048 + 1 lies halfway between two float16, 2048 + 3 too: even neighbours are 2048 and 2052.
  const std::uint16_t big = ieee.nearest(2048.0f);
  const auto sum =
      reduced<std::uint16_t>(DType::float16, ReduceOp::sum, {{big, big}, {ieee.nearest(1.0f), ieee.nearest(3.0f)}});
  EXPECT_EQ(ieee.value(sum[0]), 2048.0f);
  EXPECT_EQ(ieee.value(sum[1]), 2052.0f);
  // The largest finite value and half a step more is infinity; a little less is not.
  const std::uint16_t largest = 0x7bff;
  const auto edge = reduced<std::uint16_t>(DType::float16, ReduceOp::sum,
                                           {{largest, largest}, {ieee.nearest(16.0f), ieee.nearest(15.0f)}});
  EXPECT_EQ(edge[0], 0x7c00);
  EXPECT_EQ(edge[1], largest);
}

TEST(Kernels, ComplexNumbers) {
  using Row = std::vector<std::complex<float>>;
  const std::vector<Row> inputs{{{1, 2}, {0, 1}}, {{3, -1}, {0, 1}}};
  EXPECT_EQ(reduced(DType::complex64, ReduceOp::sum, inputs), (Row{{4, 1}, {0, 2}}));
  EXPECT_EQ(reduced(DType::complex64, ReduceOp::avg, inputs), (Row{{2, 0.5f}, {0, 1}}));
  EXPECT_EQ(reduced(DType::complex64, ReduceOp::product, inputs), (Row{{5, 5}, {-1, 0}}));
  const std::vector<std::vector<std::complex<double>>> doubles{{{1, 2}}, {{3, -1}}, {{0, 1}}};
  EXPECT_EQ(reduced(DType::complex128, ReduceOp::product, doubles)[0], (std::complex<double>{-5, 5}));
}

}  // namespace
}  // namespace closeranks::communicator
