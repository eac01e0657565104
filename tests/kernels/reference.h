// Slow and obvious models of the reductions, written apart from the kernels, for comparison.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "closeranks/op.h"

namespace closeranks::kernels_test {

// Value of 16-bit floating-point patterns, computed field by field in double.
inline double value_of_half(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// The pattern nearest to `value`, ties to the even pattern, by search among all finite ones: patterns of one sign are
// ordered as their values. Overflow is where the next finite value would be, as IEEE says.
inline std::uint16_t nearest_half(float value, int exponent_bits, int mantissa_bits) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const auto infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  if (std::isnan(value)) return sign | infinity | static_cast<std::uint16_t>(1 << (mantissa_bits - 1));
  const double size = std::fabs(static_cast<double>(value));
  std::uint16_t low = 0;
  std::uint16_t high = infinity;  // first pattern above `size`, or infinity
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value_of_half(middle, exponent_bits, mantissa_bits) <= size ? low : high) = middle;
  }
  if (std::isinf(value)) return sign | infinity;
  const double below = value_of_half(low, exponent_bits, mantissa_bits);
  const double step =
      below - value_of_half(low == 0 ? 0 : static_cast<std::uint16_t>(low - 1), exponent_bits, mantissa_bits);
  const double above =
      high < infinity ? value_of_half(high, exponent_bits, mantissa_bits) : below + (step == 0 ? below : step);
  const double down = size - below;
  const double up = above - size;
  const bool round_up = up < down || (up == down && (low & 1) != 0);
  return sign | (round_up ? high : low);
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
inline constexpr Half ieee{DType::float16, 5, 10};
inline constexpr Half brain{DType::bfloat16, 8, 7};

}  // namespace closeranks::kernels_test
