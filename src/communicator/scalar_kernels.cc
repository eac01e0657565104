#include "communicator/scalar_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/assert.h"

namespace closeranks::communicator {
namespace {

// Elements accumulated at a time: in the first-level cache, and long enough for the compiler to vectorise.
constexpr std::size_t tile = 256;

// Calls `run` with a value of the type.
template <class Run>
void with_integer(DType dtype, Run run) {
  switch (dtype) {
    case DType::int8:
      return run(std::int8_t{});
    case DType::uint8:
      return run(std::uint8_t{});
    case DType::int16:
      return run(std::int16_t{});
    case DType::uint16:
      return run(std::uint16_t{});
    case DType::int32:
      return run(std::int32_t{});
    case DType::uint32:
      return run(std::uint32_t{});
    case DType::int64:
      return run(std::int64_t{});
    case DType::uint64:
      return run(std::uint64_t{});
    default:
      break;
  }
  CR_ASSERT(!"a dtype that is no integer reached the kernels of integers");
}

// Adds what `prepare` makes of each element and its source's number, column by column in source order, and stores what
// `finish` makes of the sum.
template <class Element, class Accumulator, class Prepare, class Finish>
void columns(const std::byte* const* sources, std::size_t source_count, std::byte* destination, std::size_t bytes,
             Prepare prepare, Finish finish) {
  const std::size_t count = bytes / sizeof(Element);
  auto* out = reinterpret_cast<Element*>(destination);
  std::array<Accumulator, tile> sum;
  for (std::size_t from = 0; from < count; from += tile) {
    const std::size_t length = std::min(tile, count - from);
    std::fill_n(sum.begin(), length, Accumulator{});
    for (std::size_t s = 0; s < source_count; ++s) {
      const auto* next = reinterpret_cast<const Element*>(sources[s]) + from;
      for (std::size_t i = 0; i < length; ++i) sum[i] += prepare(next[i], s);
    }
    for (std::size_t i = 0; i < length; ++i) out[from + i] = finish(sum[i]);
  }
}

// The textbook product, without the repair of NaNs that std::complex does: torch's does the same.
template <class Real>
void multiply(const std::byte* const* sources, std::size_t source_count, std::byte* destination, std::size_t bytes) {
  struct Number {
    Real real;
    Real imaginary;
  };
  const auto number = [sources](std::size_t source, std::size_t i) {
    return reinterpret_cast<const Number*>(sources[source])[i];
  };
  auto* out = reinterpret_cast<Number*>(destination);
  for (std::size_t i = 0; i < bytes / sizeof(Number); ++i) {
    Number a = number(0, i);
    for (std::size_t s = 1; s < source_count; ++s) {
      const Number b = number(s, i);
      a = {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
    }
    out[i] = a;
  }
}

// The nearest value of the type towards zero; its ends for what is beyond them, 0 for a NaN.
template <class Element>
Element cut(double value) {
  using Limits = std::numeric_limits<Element>;
  if (std::isnan(value)) return 0;
  // The largest 64-bit values have no double of their own: the next one up is beyond the type.
  if (value >= static_cast<double>(Limits::max())) return Limits::max();
  if (value <= static_cast<double>(Limits::lowest())) return Limits::lowest();
  return static_cast<Element>(value);
}

}  // namespace

void product_of_complex(DType dtype, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
                        std::size_t bytes) {
  if (dtype == DType::complex64) return multiply<float>(sources, source_count, destination, bytes);
  CR_ASSERT(dtype == DType::complex128);
  multiply<double>(sources, source_count, destination, bytes);
}

void mean_of_integers(DType dtype, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
                      std::size_t bytes) {
  with_integer(dtype, [&]<class Element>(Element) {
    // The mean of small integers is that of their true sum; 64-bit ones wrap like their sum does, in unsigned
    // arithmetic: signed overflow is undefined in C++, and two's complement gives the same bits.
    using Wide = std::conditional_t<std::is_signed_v<Element>, std::int64_t, std::uint64_t>;
    columns<Element, std::uint64_t>(
        sources, source_count, destination, bytes,
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number here, its sign is meant to be extended
        [](Element value, std::size_t /*source*/) { return static_cast<std::uint64_t>(static_cast<Wide>(value)); },
        [source_count](std::uint64_t sum) {
          return static_cast<Element>(static_cast<Wide>(sum) / static_cast<Wide>(source_count));
        });
  });
}

void weigh_integers(DType dtype, const std::byte* const* sources, const double* weights, std::size_t source_count,
                    std::byte* destination, std::size_t bytes) {
  double total = 0;
  for (std::size_t s = 0; s < source_count; ++s) total += weights[s];
  with_integer(dtype, [&]<class Element>(Element) {
    columns<Element, double>(
        sources, source_count, destination, bytes,
        [weights](Element value, std::size_t source) { return weights[source] * static_cast<double>(value); },
        // A mean lies between its inputs, but for the rounding of 64-bit ones to float64.
        [total](double sum) { return cut<Element>(sum / total); });
  });
}

void scale_integers(DType dtype, const std::byte* const* sources, const double* factors, std::size_t source_count,
                    std::byte* destination, std::size_t bytes) {
  // Up to here every whole number is a double, so a factor is what was meant.
  constexpr double exact = 9007199254740992;
  with_integer(dtype, [&]<class Element>(Element) {
    columns<Element, std::uint64_t>(
        sources, source_count, destination, bytes,
        [factors](Element value, std::size_t source) {
          const double factor = factors[source];
          if (std::trunc(factor) == factor && std::fabs(factor) <= exact) {
            // Products and sums wrap around, in unsigned arithmetic as above.
            // NOLINTNEXTLINE(bugprone-signed-char-misuse)
            return static_cast<std::uint64_t>(static_cast<std::int64_t>(factor)) * static_cast<std::uint64_t>(value);
          }
          // NOLINTNEXTLINE(bugprone-signed-char-misuse)
          return static_cast<std::uint64_t>(cut<Element>(factor * static_cast<double>(value)));
        },
        [](std::uint64_t sum) { return static_cast<Element>(sum); });
  });
}

}  // namespace closeranks::communicator
