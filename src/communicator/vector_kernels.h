// The reductions and the copy that have vector code (Highway, the best instruction set of the machine at run time).
#pragma once

#include <cstddef>

#include "closeranks/op.h"

namespace closeranks::communicator {

// As reduce() of kernels.h. False, and nothing done, for the pairs of scalar_kernels.h. premul_sum is
// scale_with_vectors().
bool reduce_with_vectors(DType dtype, ReduceOp reduce, const std::byte* const* sources, std::size_t source_count,
                         std::byte* destination, std::size_t bytes);

// The sum of factors[s] * sources[s], as reduce_scaled() of kernels.h; with `divisor` each element is divided by it.
// False, and nothing done, for integers.
bool scale_with_vectors(DType dtype, const std::byte* const* sources, const double* factors, std::size_t source_count,
                        const double* divisor, std::byte* destination, std::size_t bytes);

// memcpy past the caches. No overlap; any alignment. The bytes are visible to whoever sees a later store of this
// thread.
void stream_with_vectors(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace closeranks::communicator
