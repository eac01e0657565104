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

template <class Real>
struct Complex {
  Real real;
  Real imaginary;
};

// Loads `Element`s, combines them as `Accumulator`s column by column in source order, stores what `finish` makes.
template <class Element, class Accumulator, class Combine, class Finish>
void columns(const std::byte* const* sources, std::size_t source_count, std::byte* destination, std::size_t bytes,
             Combine combine, Finish finish) {
  const std::size_t count = bytes / sizeof(Element);
  auto* out = reinterpret_cast<Element*>(destination);
  std::array<Accumulator, tile> sum;
  for (std::size_t from = 0; from < count; from += tile) {
    const std::size_t length = std::min(tile, count - from);
    const auto* first = reinterpret_cast<const Element*>(sources[0]) + from;
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8 is a number here, its sign is meant to be extended
    for (std::size_t i = 0; i < length; ++i) sum[i] = static_cast<Accumulator>(first[i]);
    for (std::size_t s = 1; s < source_count; ++s) {
      const auto* next = reinterpret_cast<const Element*>(sources[s]) + from;
      for (std::size_t i = 0; i < length; ++i) sum[i] = combine(sum[i], static_cast<Accumulator>(next[i]));
    }
    for (std::size_t i = 0; i < length; ++i) out[from + i] = finish(sum[i]);
  }
}

// Sums wrap around in unsigned arithmetic: signed overflow is undefined in C++, and two's complement gives the same
// bits.
template <class Element>
void integers(ReduceOp reduce, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
              std::size_t bytes) {
  // At least 32 bits wide: uint16 * uint16 would otherwise be promoted to int and overflow there.
  using Wide = std::conditional_t<(sizeof(Element) < 4), std::uint32_t, std::make_unsigned_t<Element>>;
  // A mean of small integers is that of their true sum; 64-bit ones wrap like their sum does.
  using Mean = std::conditional_t<std::is_signed_v<Element>, std::int64_t, std::uint64_t>;
  const auto narrow = [](Wide value) { return static_cast<Element>(value); };
  const auto same = [](Element value) { return value; };
  switch (reduce) {
    case ReduceOp::sum:
      return columns<Element, Wide>(
          sources, source_count, destination, bytes, [](Wide a, Wide b) { return static_cast<Wide>(a + b); }, narrow);
    case ReduceOp::product:
      return columns<Element, Wide>(
          sources, source_count, destination, bytes, [](Wide a, Wide b) { return static_cast<Wide>(a * b); }, narrow);
    case ReduceOp::avg:
      return columns<Element, Mean>(
          sources, source_count, destination, bytes,
          [](Mean a, Mean b) {
            return static_cast<Mean>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
          },
          [source_count](Mean sum) { return static_cast<Element>(sum / static_cast<Mean>(source_count)); });
    case ReduceOp::min:
      return columns<Element, Element>(
          sources, source_count, destination, bytes, [](Element a, Element b) { return b < a ? b : a; }, same);
    case ReduceOp::max:
      return columns<Element, Element>(
          sources, source_count, destination, bytes, [](Element a, Element b) { return a < b ? b : a; }, same);
    case ReduceOp::band:
      return columns<Element, Element>(
          sources, source_count, destination, bytes, [](Element a, Element b) { return static_cast<Element>(a & b); },
          same);
    case ReduceOp::bor:
      return columns<Element, Element>(
          sources, source_count, destination, bytes, [](Element a, Element b) { return static_cast<Element>(a | b); },
          same);
    case ReduceOp::bxor:
      return columns<Element, Element>(
          sources, source_count, destination, bytes, [](Element a, Element b) { return static_cast<Element>(a ^ b); },
          same);
  }
}

// Truth values are one byte, any non-zero byte is true, and results are 0 or 1.
void booleans(ReduceOp reduce, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
              std::size_t bytes) {
  const auto truth = [](std::uint8_t value) { return static_cast<std::uint8_t>(value != 0); };
  switch (reduce) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return columns<std::uint8_t, std::uint8_t>(
          sources, source_count, destination, bytes,
          [](std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>(a | b); }, truth);
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band:
      return columns<std::uint8_t, std::uint8_t>(
          sources, source_count, destination, bytes,
          [](std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>((a != 0) & (b != 0)); }, truth);
    case ReduceOp::bxor:
      return columns<std::uint8_t, std::uint8_t>(
          sources, source_count, destination, bytes,
          [](std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>((a != 0) ^ (b != 0)); }, truth);
    case ReduceOp::avg:
      break;
  }
  CR_ASSERT(!"a mean of truth values passed check_reduction");
}

// The textbook product, without std::complex's repair of NaNs: torch's does the same.
template <class Real>
void complexes(ReduceOp reduce, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
               std::size_t bytes) {
  using Number = Complex<Real>;
  const auto same = [](Number value) { return value; };
  const auto add = [](Number a, Number b) { return Number{a.real + b.real, a.imaginary + b.imaginary}; };
  switch (reduce) {
    case ReduceOp::sum:
      return columns<Number, Number>(sources, source_count, destination, bytes, add, same);
    case ReduceOp::avg: {
      const auto divisor = static_cast<Real>(source_count);
      return columns<Number, Number>(sources, source_count, destination, bytes, add, [divisor](Number sum) {
        return Number{sum.real / divisor, sum.imaginary / divisor};
      });
    }
    case ReduceOp::product:
      return columns<Number, Number>(
          sources, source_count, destination, bytes,
          [](Number a, Number b) {
            return Number{a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
          },
          same);
    default:
      break;
  }
  CR_ASSERT(!"an op that complex numbers lack passed check_reduction");
}

// Sums `weight * value` column by column in source order, in float64, and stores what `finish` makes of sum and total.
template <class Element, class Accumulator, class Weigh, class Finish>
void weighted_columns(const std::byte* const* sources, const double* weights, std::size_t source_count,
                      std::byte* destination, std::size_t bytes, Weigh weigh, Finish finish) {
  const std::size_t count = bytes / sizeof(Element);
  auto* out = reinterpret_cast<Element*>(destination);
  double total = 0;
  for (std::size_t s = 0; s < source_count; ++s) total += weights[s];
  std::array<Accumulator, tile> sum;
  for (std::size_t from = 0; from < count; from += tile) {
    const std::size_t length = std::min(tile, count - from);
    std::fill_n(sum.begin(), length, Accumulator{});
    for (std::size_t s = 0; s < source_count; ++s) {
      const auto* next = reinterpret_cast<const Element*>(sources[s]) + from;
      for (std::size_t i = 0; i < length; ++i) sum[i] = weigh(sum[i], weights[s], next[i]);
    }
    for (std::size_t i = 0; i < length; ++i) out[from + i] = finish(sum[i], total);
  }
}

template <class Element>
void weigh_integers(const std::byte* const* sources, const double* weights, std::size_t source_count,
                    std::byte* destination, std::size_t bytes) {
  weighted_columns<Element, double>(
      sources, weights, source_count, destination, bytes,
      [](double sum, double weight, Element value) { return sum + weight * static_cast<double>(value); },
      [](double sum, double total) {
        // A mean lies between its inputs, but for the rounding of 64-bit ones to float64: at the type's end that may be
        // one more than the type holds.
        using Limits = std::numeric_limits<Element>;
        const double mean = std::trunc(sum / total);
        if (mean >= static_cast<double>(Limits::max())) return Limits::max();
        if (mean <= static_cast<double>(Limits::lowest())) return Limits::lowest();
        return static_cast<Element>(mean);
      });
}

template <class Real>
void weigh_complexes(const std::byte* const* sources, const double* weights, std::size_t source_count,
                     std::byte* destination, std::size_t bytes) {
  weighted_columns<Complex<Real>, Complex<double>>(
      sources, weights, source_count, destination, bytes,
      [](Complex<double> sum, double weight, Complex<Real> value) {
        return Complex<double>{sum.real + weight * static_cast<double>(value.real),
                               sum.imaginary + weight * static_cast<double>(value.imaginary)};
      },
      [](Complex<double> sum, double total) {
        return Complex<Real>{static_cast<Real>(sum.real / total), static_cast<Real>(sum.imaginary / total)};
      });
}

}  // namespace

void reduce_without_vectors(DType dtype, ReduceOp reduce, const std::byte* const* sources, std::size_t source_count,
                            std::byte* destination, std::size_t bytes) {
  const auto run = [&](auto kernel) { kernel(reduce, sources, source_count, destination, bytes); };
  switch (dtype) {
    case DType::boolean:
      return run(booleans);
    case DType::int8:
      return run(integers<std::int8_t>);
    case DType::uint8:
      return run(integers<std::uint8_t>);
    case DType::int16:
      return run(integers<std::int16_t>);
    case DType::uint16:
      return run(integers<std::uint16_t>);
    case DType::int32:
      return run(integers<std::int32_t>);
    case DType::uint32:
      return run(integers<std::uint32_t>);
    case DType::int64:
      return run(integers<std::int64_t>);
    case DType::uint64:
      return run(integers<std::uint64_t>);
    case DType::complex64:
      return run(complexes<float>);
    case DType::complex128:
      return run(complexes<double>);
    case DType::float16:
    case DType::bfloat16:
    case DType::float32:
    case DType::float64:
    case DType::bytes:
      break;
  }
  CR_ASSERT(!"a dtype without scalar code reached reduce_without_vectors");
}

void weigh_without_vectors(DType dtype, const std::byte* const* sources, const double* weights,
                           std::size_t source_count, std::byte* destination, std::size_t bytes) {
  const auto run = [&](auto kernel) { kernel(sources, weights, source_count, destination, bytes); };
  switch (dtype) {
    case DType::int8:
      return run(weigh_integers<std::int8_t>);
    case DType::uint8:
      return run(weigh_integers<std::uint8_t>);
    case DType::int16:
      return run(weigh_integers<std::int16_t>);
    case DType::uint16:
      return run(weigh_integers<std::uint16_t>);
    case DType::int32:
      return run(weigh_integers<std::int32_t>);
    case DType::uint32:
      return run(weigh_integers<std::uint32_t>);
    case DType::int64:
      return run(weigh_integers<std::int64_t>);
    case DType::uint64:
      return run(weigh_integers<std::uint64_t>);
    case DType::complex64:
      return run(weigh_complexes<float>);
    case DType::complex128:
      return run(weigh_complexes<double>);
    case DType::boolean:
    case DType::float16:
    case DType::bfloat16:
    case DType::float32:
    case DType::float64:
    case DType::bytes:
      break;
  }
  CR_ASSERT(!"a dtype without a weighted mean reached weigh_without_vectors");
}

}  // namespace closeranks::communicator
