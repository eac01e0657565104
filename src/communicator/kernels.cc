#include "communicator/kernels.h"

#include <algorithm>
#include <array>
#include <cfenv>
#include <cstring>
#include <string>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "base/assert.h"
#include "communicator/scalar_kernels.h"
#include "communicator/vector_kernels.h"

namespace closeranks::communicator {
namespace {

// The thread that reduces a block is any thread of any member, and a user may have set flush-to-zero on one of them
// (torch.set_flush_denormal): results must not depend on who was first.
class DefaultFloatEnvironment {
 public:
#if defined(__SSE2__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;
};

bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }

bool is_floating(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32 || dtype == DType::float64;
}

// Shorter results stay in the caches, whoever reads them when.
constexpr std::size_t least_streamed = std::size_t{16} * 1024;
// A streamed reduction makes its result in pieces of this size in the first-level cache, and copies them out from
// there. A multiple of the longest element and of the vectors.
constexpr std::size_t piece = std::size_t{4} * 1024;

// Runs `kernel(sources, destination, bytes)` over the whole range: at once, or piece by piece if the result is to be
// streamed.
template <class Kernel>
void placed(std::span<const std::byte* const> sources, std::byte* destination, std::size_t bytes, Reuse reuse,
            Kernel kernel) {
  constexpr std::size_t most_sources = 64;
  if (reuse == Reuse::soon || bytes < least_streamed || sources.size() > most_sources) {
    kernel(sources.data(), destination, bytes);
    return;
  }
  alignas(64) std::array<std::byte, piece> result;
  std::array<const std::byte*, most_sources> from;
  for (std::size_t at = 0; at < bytes; at += piece) {
    const std::size_t length = std::min(piece, bytes - at);
    for (std::size_t s = 0; s < sources.size(); ++s) from[s] = sources[s] + at;
    kernel(from.data(), result.data(), length);
    stream_with_vectors(destination + at, result.data(), length);
  }
}

}  // namespace

Status check_reduction(DType dtype, ReduceOp reduce) {
  bool meaningful = true;
  switch (reduce) {
    case ReduceOp::sum:
    case ReduceOp::product:
      meaningful = dtype != DType::bytes;
      break;
    case ReduceOp::avg:
    case ReduceOp::premul_sum:
      meaningful = dtype != DType::bytes && dtype != DType::boolean;
      break;
    case ReduceOp::min:
    case ReduceOp::max:
      meaningful = dtype != DType::bytes && !is_complex(dtype);
      break;
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      meaningful = dtype != DType::bytes && !is_complex(dtype) && !is_floating(dtype);
      break;
  }
  if (meaningful) return {};
  return {Fault::invalid_argument, Move::fix_call,
          "reduction " + std::string(name_of(reduce)) + " is not defined on " + std::string(name_of(dtype)) +
              ": choose another reduction or convert the tensor"};
}

void reduce(DType dtype, ReduceOp reduce, std::span<const std::byte* const> sources, std::byte* destination,
            std::size_t bytes, Reuse reuse) {
  CR_ASSERT(!sources.empty());
  CR_ASSERT(bytes % size_of(dtype) == 0);
  if (reduce == ReduceOp::premul_sum) reduce = ReduceOp::sum;
  const DefaultFloatEnvironment environment;
  placed(sources, destination, bytes, reuse, [&](const std::byte* const* from, std::byte* to, std::size_t length) {
    if (reduce_with_vectors(dtype, reduce, from, sources.size(), to, length)) return;
    if (is_complex(dtype)) return product_of_complex(dtype, from, sources.size(), to, length);
    mean_of_integers(dtype, from, sources.size(), to, length);
  });
}

void reduce_weighted(DType dtype, std::span<const std::byte* const> sources, std::span<const double> weights,
                     std::byte* destination, std::size_t bytes, Reuse reuse) {
  CR_ASSERT(sources.size() == weights.size() && bytes % size_of(dtype) == 0);
  if (sources.empty()) {
    std::memset(destination, 0, bytes);
    return;
  }
  const auto differs = [&](double weight) { return weight != weights.front(); };
  if (std::none_of(weights.begin(), weights.end(), differs)) {
    reduce(dtype, ReduceOp::avg, sources, destination, bytes, reuse);
    return;
  }
  double total = 0;
  for (const double weight : weights) total += weight;
  const DefaultFloatEnvironment environment;
  placed(sources, destination, bytes, reuse, [&](const std::byte* const* from, std::byte* to, std::size_t length) {
    if (scale_with_vectors(dtype, from, weights.data(), sources.size(), &total, to, length)) return;
    weigh_integers(dtype, from, weights.data(), sources.size(), to, length);
  });
}

void reduce_scaled(DType dtype, std::span<const std::byte* const> sources, std::span<const double> factors,
                   std::byte* destination, std::size_t bytes, Reuse reuse) {
  CR_ASSERT(!sources.empty());
  CR_ASSERT(sources.size() == factors.size() && bytes % size_of(dtype) == 0);
  const DefaultFloatEnvironment environment;
  placed(sources, destination, bytes, reuse, [&](const std::byte* const* from, std::byte* to, std::size_t length) {
    if (scale_with_vectors(dtype, from, factors.data(), sources.size(), nullptr, to, length)) return;
    scale_integers(dtype, from, factors.data(), sources.size(), to, length);
  });
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Reuse reuse) {
  if (reuse == Reuse::late && bytes >= least_streamed) return stream_with_vectors(to, from, bytes);
  std::memcpy(to, from, bytes);
}

}  // namespace closeranks::communicator
