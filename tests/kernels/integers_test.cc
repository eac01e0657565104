// Integers and truth values against models in wider arithmetic.
#include <gtest/gtest.h>

#include <limits>

#include "support.h"

namespace closeranks::communicator {
namespace {

// Integers: the model works in 128 bits and takes the low ones.
template <class T>
T integer_model(ReduceOp op, const std::vector<T>& column) {
  using Wide = Int128;
  Wide value = column[0];
  for (std::size_t i = 1; i < column.size(); ++i) {
    const Wide next = column[i];
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
      case ReduceOp::premul_sum:
        value += next;
        break;
      case ReduceOp::product:
        value = static_cast<T>(static_cast<Uint128>(value) * static_cast<Uint128>(next));
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

}  // namespace
}  // namespace closeranks::communicator
