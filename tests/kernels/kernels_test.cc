#include "communicator/kernels.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <array>
#include <complex>
#include <cstring>
#include <random>

#include "hwy/targets.h"
#include "reference.h"

namespace closeranks::communicator {
namespace {

using kernels_test::nearest_half;
using kernels_test::value_of_half;

constexpr std::array all_dtypes{DType::boolean,  DType::int8,    DType::uint8,   DType::int16,     DType::uint16,
                                DType::int32,    DType::uint32,  DType::int64,   DType::uint64,    DType::float16,
                                DType::bfloat16, DType::float32, DType::float64, DType::complex64, DType::complex128};
constexpr std::array all_reductions{ReduceOp::sum, ReduceOp::avg,  ReduceOp::product, ReduceOp::min,
                                    ReduceOp::max, ReduceOp::band, ReduceOp::bor,     ReduceOp::bxor};

template <class T>
std::vector<T> reduced(DType dtype, ReduceOp op, const std::vector<std::vector<T>>& inputs) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> result(inputs[0].size());
  reduce(dtype, op, sources, reinterpret_cast<std::byte*>(result.data()), result.size() * sizeof(T));
  return result;
}

template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// Integers: the model works in 128 bits and takes the low ones.
template <class T>
T integer_model(ReduceOp op, const std::vector<T>& column) {
  using Wide = __int128;
  Wide value = column[0];
  for (std::size_t i = 1; i < column.size(); ++i) {
    const Wide next = column[i];
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        value += next;
        break;
      case ReduceOp::product:
        value = static_cast<T>(static_cast<unsigned __int128>(value) * static_cast<unsigned __int128>(next));
        break;
      case ReduceOp::min:
        value = std::min(value, next);
        break;
      case ReduceOp::max:
        value = std::max(value, next);
        break;
      case ReduceOp::band:
        value &= next;
        break;
      case ReduceOp::bor:
        value |= next;
        break;
      case ReduceOp::bxor:
        value ^= next;
        break;
    }
  }
  if (op == ReduceOp::avg) value /= static_cast<Wide>(column.size());
  return static_cast<T>(value);
}

template <class T>
void check_integers(DType dtype) {
  std::mt19937_64 random(7);
  for (const std::size_t members : {1u, 2u, 3u, 5u}) {
    for (const std::size_t count : {0u, 1u, 7u, 64u, 1000u}) {
      std::vector<std::vector<T>> inputs(members, std::vector<T>(count));
      for (auto& input : inputs) {
        for (T& value : input) value = static_cast<T>(random());
      }
      // Extremes beside random values.
      if (count > 2) {
        for (auto& input : inputs) {
          input[0] = std::numeric_limits<T>::max();
          input[1] = std::numeric_limits<T>::min();
        }
      }
      for (const ReduceOp op : all_reductions) {
        // A mean of 64-bit values may wrap in its sum: compared for the others.
        if (op == ReduceOp::avg && sizeof(T) == 8) continue;
        const std::vector<T> result = reduced(dtype, op, inputs);
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<T> column;
          for (const auto& input : inputs) column.push_back(input[i]);
          ASSERT_EQ(result[i], integer_model(op, column)) << name_of(dtype) << ' ' << name_of(op) << ' ' << i;
        }
      }
    }
  }
}

TEST(Kernels, IntegersOfEveryWidth) {
  check_integers<std::int8_t>(DType::int8);
  check_integers<std::uint8_t>(DType::uint8);
  check_integers<std::int16_t>(DType::int16);
  check_integers<std::uint16_t>(DType::uint16);
  check_integers<std::int32_t>(DType::int32);
  check_integers<std::uint32_t>(DType::uint32);
  check_integers<std::int64_t>(DType::int64);
  check_integers<std::uint64_t>(DType::uint64);
}

TEST(Kernels, MeanOfIntegersIsCutTowardsZero) {
  EXPECT_EQ(reduced<std::int64_t>(DType::int64, ReduceOp::avg, {{-7, 7}, {0, 0}}), (std::vector<std::int64_t>{-3, 3}));
  EXPECT_EQ(reduced<std::int8_t>(DType::int8, ReduceOp::avg, {{100, -100}, {100, -100}}),
            (std::vector<std::int8_t>{100, -100}));
}

TEST(Kernels, BooleansAreLogic) {
  const std::vector<std::vector<std::uint8_t>> inputs{{0, 0, 1, 1}, {0, 1, 0, 1}};
  using Row = std::vector<std::uint8_t>;
  EXPECT_EQ(reduced(DType::boolean, ReduceOp::sum, inputs), (Row{0, 1, 1, 1}));
  EXPECT_EQ(reduced(DType::boolean, ReduceOp::max, inputs), (Row{0, 1, 1, 1}));
  EXPECT_EQ(reduced(DType::boolean, ReduceOp::bor, inputs), (Row{0, 1, 1, 1}));
  EXPECT_EQ(reduced(DType::boolean, ReduceOp::product, inputs), (Row{0, 0, 0, 1}));
  EXPECT_EQ(reduced(DType::boolean, ReduceOp::min, inputs), (Row{0, 0, 0, 1}));
  EXPECT_EQ(reduced(DType::boolean, ReduceOp::band, inputs), (Row{0, 0, 0, 1}));
  EXPECT_EQ(reduced(DType::boolean, ReduceOp::bxor, inputs), (Row{0, 1, 1, 0}));
  // Any other byte is true, and results are 0 or 1.
  EXPECT_EQ(reduced<std::uint8_t>(DType::boolean, ReduceOp::sum, {{4}, {2}}), (Row{1}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::boolean, ReduceOp::product, {{4}, {2}}), (Row{1}));
  EXPECT_EQ(reduced<std::uint8_t>(DType::boolean, ReduceOp::bxor, {{4}, {2}}), (Row{0}));
}

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

struct Half {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  [[nodiscard]] float value(std::uint16_t bits) const {
    return static_cast<float>(value_of_half(bits, exponent_bits, mantissa_bits));
  }
  [[nodiscard]] std::uint16_t nearest(float value) const { return nearest_half(value, exponent_bits, mantissa_bits); }
};
constexpr Half ieee{DType::float16, 5, 10};
constexpr Half brain{DType::bfloat16, 8, 7};

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

TEST(Kernels, MeaninglessPairsAreNamed) {
  for (const DType dtype : all_dtypes) {
    for (const ReduceOp op : all_reductions) {
      const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
      const bool ordered = op == ReduceOp::min || op == ReduceOp::max;
      const bool complex = dtype == DType::complex64 || dtype == DType::complex128;
      const bool floating =
          dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 || dtype == DType::float64;
      const bool allowed = !(bitwise && (floating || complex)) && !(ordered && complex) &&
                           !(op == ReduceOp::avg && dtype == DType::boolean);
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

// Which of two NaNs wins is not ours to say (kernels.h): all alike for comparison.
std::vector<std::uint8_t> without_nans(DType dtype, std::vector<std::uint8_t> bytes) {
  const auto replace = [&bytes]<class T>(T) {
    for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      if (std::isnan(value)) std::memset(bytes.data() + at, 0xff, sizeof(T));
    }
  };
  if (dtype == DType::float32 || dtype == DType::complex64) replace(float{});
  if (dtype == DType::float64 || dtype == DType::complex128) replace(double{});
  return bytes;
}

// Every pair, every length of tail: an element's bits do not depend on its place in the range.
TEST(Kernels, TailsAreReducedLikeBodies) {
  std::mt19937_64 random(17);
  for (const DType dtype : all_dtypes) {
    const std::size_t size = size_of(dtype);
    std::vector<std::vector<std::uint8_t>> inputs(3, std::vector<std::uint8_t>(size * 200));
    for (auto& input : inputs) {
      for (auto& byte : input) byte = static_cast<std::uint8_t>(random());
    }
    for (const ReduceOp op : all_reductions) {
      if (!check_reduction(dtype, op).ok()) continue;
      const auto whole = reduced(dtype, op, inputs);
      for (std::size_t count = 0; count < 140; ++count) {
        std::vector<std::vector<std::uint8_t>> shorter;
        for (const auto& input : inputs) shorter.emplace_back(input.begin(), input.begin() + count * size);
        const auto part = reduced(dtype, op, shorter);
        const std::vector<std::uint8_t> start(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(part.size()));
        ASSERT_EQ(without_nans(dtype, part), without_nans(dtype, start)) << name_of(dtype) << ' ' << name_of(op);
      }
    }
  }
}

// Two members on one host might be told to use different instruction sets; and results should not change with the
// machine. So all targets that run here agree bit for bit.
TEST(Kernels, AllInstructionSetsAgree) {
  std::mt19937_64 random(19);
  const std::int64_t supported = hwy::SupportedTargets();
  for (const DType dtype : all_dtypes) {
    std::vector<std::vector<std::uint8_t>> inputs(4, std::vector<std::uint8_t>(size_of(dtype) * 1003));
    for (auto& input : inputs) {
      for (auto& byte : input) byte = static_cast<std::uint8_t>(random());
    }
    for (const ReduceOp op : all_reductions) {
      if (!check_reduction(dtype, op).ok()) continue;
      const auto best = reduced(dtype, op, inputs);
      for (std::int64_t rest = supported; rest != 0; rest &= rest - 1) {
        hwy::SetSupportedTargetsForTest(rest & -rest);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
        ASSERT_EQ(without_nans(dtype, reduced(dtype, op, inputs)), without_nans(dtype, best))
            << name_of(dtype) << ' ' << name_of(op) << ' ' << hwy::TargetName(rest & -rest);
      }
      hwy::SetSupportedTargetsForTest(0);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    }
  }
}

template <class T>
std::vector<T> weighted(DType dtype, const std::vector<std::vector<T>>& inputs, const std::vector<double>& weights) {
  std::vector<const std::byte*> sources;
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> result(inputs[0].size());
  reduce_weighted(dtype, sources, weights, reinterpret_cast<std::byte*>(result.data()), result.size() * sizeof(T));
  return result;
}

TEST(WeightedMean, EqualWeightsAreThePlainMean) {
  std::mt19937_64 random(23);
  for (const DType dtype : all_dtypes) {
    if (!check_reduction(dtype, ReduceOp::avg).ok()) continue;
    std::vector<std::vector<std::uint8_t>> inputs(3, std::vector<std::uint8_t>(size_of(dtype) * 77));
    for (auto& input : inputs) {
      for (auto& byte : input) byte = static_cast<std::uint8_t>(random());
    }
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

TEST(WeightedMean, AllInstructionSetsAgree) {
  std::mt19937_64 random(37);
  const std::int64_t supported = hwy::SupportedTargets();
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    std::vector<std::vector<std::uint8_t>> inputs(4, std::vector<std::uint8_t>(size_of(dtype) * 1003));
    for (auto& input : inputs) {
      for (auto& byte : input) byte = static_cast<std::uint8_t>(random());
    }
    const std::vector<double> weights{1, 0.1, 32, 7};
    const auto best = without_nans(dtype, weighted(dtype, inputs, weights));
    for (std::int64_t rest = supported; rest != 0; rest &= rest - 1) {
      hwy::SetSupportedTargetsForTest(rest & -rest);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      ASSERT_EQ(without_nans(dtype, weighted(dtype, inputs, weights)), best)
          << name_of(dtype) << ' ' << hwy::TargetName(rest & -rest);
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
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
