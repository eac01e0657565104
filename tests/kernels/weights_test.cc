// Weighted means and sums of multiples.
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

TEST(WeightedMean, EqualWeightsAreThePlainMean) {
  for (const DType dtype : all_dtypes) {
    if (!check_reduction(dtype, ReduceOp::avg).ok()) continue;
    const auto inputs = random_bytes(3, size_of(dtype) * 77, 23);
    const auto plain = reduced(dtype, ReduceOp::avg, inputs);
    EXPECT_EQ(weighted(dtype, inputs, {0.3, 0.3, 0.3}), plain) << name_of(dtype);
  }
}

template <class T>
void check_weighted_floats(DType dtype) {
  std::mt19937_64 random(29);
  std::normal_distribution<T> normal;
  const std::vector<double> weights{3, 1.25, 64};
  for (const std::size_t count : {1u, 7u, 16u, 33u, 1000u}) {
    std::vector<std::vector<T>> inputs(3, std::vector<T>(count));
    for (auto& input : inputs) {
      for (T& value : input) value = normal(random);
    }
    const auto result = weighted(dtype, inputs, weights);
    for (std::size_t i = 0; i < count; ++i) {
      volatile T sum = static_cast<T>(weights[0]) * inputs[0][i];
      for (std::size_t s = 1; s < 3; ++s) {
        volatile T product = static_cast<T>(weights[s]) * inputs[s][i];
        sum = sum + product;
      }
      ASSERT_EQ(bits_of(result[i]), bits_of<T>(sum / static_cast<T>(68.25))) << name_of(dtype) << ' ' << i;
    }
  }
}

TEST(WeightedMean, OfFloats) {
  check_weighted_floats<float>(DType::float32);
  check_weighted_floats<double>(DType::float64);
}

TEST(WeightedMean, OfHalvesIsRoundedOnce) {
  for (const Half& half : {ieee, brain}) {
    std::mt19937_64 random(31);
    std::vector<std::vector<std::uint16_t>> inputs(2, std::vector<std::uint16_t>(4099));
    for (auto& input : inputs) {
      for (auto& value : input) value = half.nearest(static_cast<float>(random() % 2000) / 7.0f);
    }
    const auto result = weighted(half.dtype, inputs, {1, 31});
    for (std::size_t i = 0; i < result.size(); ++i) {
      const volatile float product = 31.0f * half.value(inputs[1][i]);
      const float sum = half.value(inputs[0][i]) + product;
      ASSERT_EQ(result[i], half.nearest(sum / 32.0f)) << name_of(half.dtype) << ' ' << i;
    }
  }
}

TEST(WeightedMean, OfIntegersAndComplexNumbers) {
  EXPECT_EQ(weighted<std::int32_t>(DType::int32, {{10, -10, 7}, {20, -20, -8}}, {3, 1}),
            (std::vector<std::int32_t>{12, -12, 3}));
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(weighted<std::int64_t>(DType::int64, {{most}, {most}}, {1, 2}), (std::vector<std::int64_t>{most}));
  using Row = std::vector<std::complex<float>>;
  EXPECT_EQ(weighted<std::complex<float>>(DType::complex64, {Row{{4, 8}}, Row{{8, 0}}}, {1, 3}), (Row{{7, 2}}));
}

TEST(WeightedMean, OfNothingIsZero) {
  std::vector<float> result(5, 3.0f);
  reduce_weighted(DType::float32, {}, {}, reinterpret_cast<std::byte*>(result.data()), 20);
  EXPECT_EQ(result, std::vector<float>(5, 0.0f));
}

// ---- premul_sum -----------------------------------------------------------------------------------------------------

template <class T>
void check_scaled_floats(DType dtype) {
  std::mt19937_64 random(41);
  std::normal_distribution<T> normal;
  using Limits = std::numeric_limits<T>;
  const std::vector<T> special{
      T(0), -T(0), Limits::infinity(), Limits::max(), Limits::denorm_min(), Limits::quiet_NaN()};
  // A factor that is no value of the type is rounded to it first; 0 makes a NaN of infinity.
  for (const std::vector<double>& factors : {std::vector<double>{0.1}, {3, -1.0 / 3}, {0, 1e-3, 7, 1}}) {
    for (const std::size_t count : {1u, 7u, 16u, 33u, 1000u}) {
      std::vector<std::vector<T>> inputs(factors.size(), std::vector<T>(count));
      for (auto& input : inputs) {
        for (T& value : input) value = random() % 8 == 0 ? special[random() % special.size()] : normal(random);
      }
      const auto result = scaled(dtype, inputs, factors);
      for (std::size_t i = 0; i < count; ++i) {
        volatile T sum = static_cast<T>(factors[0]) * inputs[0][i];
        for (std::size_t s = 1; s < factors.size(); ++s) {
          volatile T product = static_cast<T>(factors[s]) * inputs[s][i];
          sum = sum + product;
        }
        if (std::isnan(sum)) {
          ASSERT_TRUE(std::isnan(result[i]));
        } else {
          ASSERT_EQ(bits_of(result[i]), bits_of<T>(sum)) << name_of(dtype) << ' ' << i;
        }
      }
    }
  }
}

TEST(ScaledSum, OfFloatsRoundsEachProduct) {
  check_scaled_floats<float>(DType::float32);
  check_scaled_floats<double>(DType::float64);
}

TEST(ScaledSum, OfHalvesIsRoundedOnce) {
  for (const Half& half : {ieee, brain}) {
    const auto bytes = random_bytes(3, 2 * 30'001, 43);
    std::vector<std::vector<std::uint16_t>> inputs(3, std::vector<std::uint16_t>(30'001));
    for (std::size_t s = 0; s < 3; ++s) std::memcpy(inputs[s].data(), bytes[s].data(), bytes[s].size());
    const std::vector<double> factors{0.1, 2, -0.7};
    const auto result = scaled(half.dtype, inputs, factors);
    for (std::size_t i = 0; i < result.size(); ++i) {
      volatile float sum = static_cast<float>(factors[0]) * half.value(inputs[0][i]);
      for (std::size_t s = 1; s < 3; ++s) {
        const volatile float product = static_cast<float>(factors[s]) * half.value(inputs[s][i]);
        sum = sum + product;
      }
      if (std::isnan(sum)) {
        ASSERT_TRUE(std::isnan(half.value(result[i])));
      } else {
        ASSERT_EQ(result[i], half.nearest(sum)) << name_of(half.dtype) << ' ' << i;
      }
    }
  }
}

TEST(ScaledSum, OfComplexNumbers) {
  using Row = std::vector<std::complex<double>>;
  EXPECT_EQ(scaled(DType::complex128, std::vector<Row>{{{4, 8}}, {{8, 1}}}, {0.5, -2}), (Row{{-14, 2}}));
}

template <class T>
void check_whole_factors(DType dtype) {
  const auto bytes = random_bytes(3, 999 * sizeof(T), 47);
  std::vector<std::vector<T>> inputs(3, std::vector<T>(999));
  for (std::size_t s = 0; s < 3; ++s) std::memcpy(inputs[s].data(), bytes[s].data(), bytes[s].size());
  const auto result = scaled(dtype, inputs, {-3, 1, 1'000'000'007});
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Int128 sum =
        static_cast<Int128>(inputs[0][i]) * -3 + inputs[1][i] + static_cast<Int128>(inputs[2][i]) * 1'000'000'007;
    ASSERT_EQ(result[i], static_cast<T>(sum)) << name_of(dtype) << ' ' << i;
  }
}

TEST(ScaledSum, OfIntegersWrapsAroundByWholeFactors) {
  check_whole_factors<std::int8_t>(DType::int8);
  check_whole_factors<std::uint8_t>(DType::uint8);
  check_whole_factors<std::int16_t>(DType::int16);
  check_whole_factors<std::uint16_t>(DType::uint16);
  check_whole_factors<std::int32_t>(DType::int32);
  check_whole_factors<std::uint32_t>(DType::uint32);
  check_whole_factors<std::int64_t>(DType::int64);
  check_whole_factors<std::uint64_t>(DType::uint64);
}

TEST(ScaledSum, OfIntegersCutsOtherProductsAndKeepsThemInRange) {
  using Row = std::vector<std::int32_t>;
  EXPECT_EQ(scaled(DType::int32, std::vector<Row>{{7, -7, 1}, {10, 10, 10}}, {0.5, 1}), (Row{13, 7, 10}));
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  constexpr auto least = std::numeric_limits<std::int32_t>::lowest();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(scaled(DType::int32, std::vector<Row>{{5, -5, 0}}, {1e300}), (Row{most, least, 0}));
  EXPECT_EQ(scaled(DType::int32, std::vector<Row>{{5, -5, 0}}, {infinity}), (Row{most, least, 0}));
  EXPECT_EQ(scaled(DType::int32, std::vector<Row>{{5, -5, 0}}, {std::nan("")}), (Row{0, 0, 0}));
  EXPECT_EQ(scaled(DType::uint8, std::vector<std::vector<std::uint8_t>>{{200, 100}}, {-0.5}),
            (std::vector<std::uint8_t>{0, 0}));
  EXPECT_EQ(scaled(DType::int64, std::vector<std::vector<std::int64_t>>{{most}}, {1e300}),
            (std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::max()}));
}

TEST(ScaledSum, ByOnesIsThePlainSum) {
  for (const DType dtype : all_dtypes) {
    if (!check_reduction(dtype, ReduceOp::premul_sum).ok()) continue;
    const auto inputs = random_bytes(3, size_of(dtype) * 131, 53);
    const auto plain = without_nans(dtype, reduced(dtype, ReduceOp::sum, inputs));
    EXPECT_EQ(without_nans(dtype, scaled(dtype, inputs, {1, 1, 1})), plain) << name_of(dtype);
    EXPECT_EQ(without_nans(dtype, reduced(dtype, ReduceOp::premul_sum, inputs)), plain) << name_of(dtype);
  }
}

}  // namespace
}  // namespace closeranks::communicator
