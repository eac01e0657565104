#include "communicator/kernels.h"

#include <algorithm>
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
  // Setting it costs as much as the sum of an 8-byte op: only where it is another than what threads start with.
  DefaultFloatEnvironment() : saved_(_mm_getcsr()), other_((saved_ & ~raised) != usual) {
    if (other_) _mm_setcsr(usual);
  }
  ~DefaultFloatEnvironment() {
    if (other_) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned usual = 0x1f80;
  static constexpr unsigned raised = 0x3f;  // what operations have met so far: changes nothing
  unsigned saved_;
  bool other_;
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

// Shorter copies stay in the caches, whoever reads them when.
constexpr std::size_t least_streamed = std::size_t{16} * 1024;
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
            std::size_t bytes) {
  CR_ASSERT(!sources.empty());
  CR_ASSERT(bytes % size_of(dtype) == 0);
  if (reduce == ReduceOp::premul_sum) reduce = ReduceOp::sum;
  const DefaultFloatEnvironment environment;
  if (reduce_with_vectors(dtype, reduce, sources.data(), sources.size(), destination, bytes)) return;
  if (is_complex(dtype)) return product_of_complex(dtype, sources.data(), sources.size(), destination, bytes);
  mean_of_integers(dtype, sources.data(), sources.size(), destination, bytes);
}

void reduce_weighted(DType dtype, std::span<const std::byte* const> sources, std::span<const double> weights,
                     std::byte* destination, std::size_t bytes) {
  CR_ASSERT(sources.size() == weights.size() && bytes % size_of(dtype) == 0);
  if (sources.empty()) {
    std::memset(destination, 0, bytes);
    return;
  }
  const auto differs = [&](double weight) { return weight != weights.front(); };
  if (std::none_of(weights.begin(), weights.end(), differs)) {
    reduce(dtype, ReduceOp::avg, sources, destination, bytes);
    return;
  }
  double total = 0;
  for (const double weight : weights) total += weight;
  const DefaultFloatEnvironment environment;
  if (scale_with_vectors(dtype, sources.data(), weights.data(), sources.size(), &total, destination, bytes)) return;
  weigh_integers(dtype, sources.data(), weights.data(), sources.size(), destination, bytes);
}

void reduce_scaled(DType dtype, std::span<const std::byte* const> sources, std::span<const double> factors,
                   std::byte* destination, std::size_t bytes) {
  CR_ASSERT(!sources.empty());
  CR_ASSERT(sources.size() == factors.size() && bytes % size_of(dtype) == 0);
  const DefaultFloatEnvironment environment;
  if (scale_with_vectors(dtype, sources.data(), factors.data(), sources.size(), nullptr, destination, bytes)) return;
  scale_integers(dtype, sources.data(), factors.data(), sources.size(), destination, bytes);
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Reuse reuse) {
  if (reuse == Reuse::late && bytes >= least_streamed) return stream_with_vectors(to, from, bytes);
  std::memcpy(to, from, bytes);
}

}  // namespace closeranks::communicator
