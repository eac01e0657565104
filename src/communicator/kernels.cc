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

}  // namespace

Status check_reduction(DType dtype, ReduceOp reduce) {
  bool meaningful = true;
  switch (reduce) {
    case ReduceOp::sum:
    case ReduceOp::product:
      meaningful = dtype != DType::bytes;
      break;
    case ReduceOp::avg:
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
  const DefaultFloatEnvironment environment;
  if (reduce_with_vectors(dtype, reduce, sources.data(), sources.size(), destination, bytes)) return;
  reduce_without_vectors(dtype, reduce, sources.data(), sources.size(), destination, bytes);
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
  const DefaultFloatEnvironment environment;
  if (weigh_with_vectors(dtype, sources.data(), weights.data(), sources.size(), destination, bytes)) return;
  weigh_without_vectors(dtype, sources.data(), weights.data(), sources.size(), destination, bytes);
}

}  // namespace closeranks::communicator
