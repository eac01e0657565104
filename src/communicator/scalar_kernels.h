// The reductions without vector code of their own: short integers, bool, complex, and the rarer ops of int32 and int64.
#pragma once

#include <cstddef>

#include "closeranks/op.h"

namespace closeranks::communicator {

// As reduce() of kernels.h, for every pair that check_reduction() allows and reduce_with_vectors() does not cover.
void reduce_without_vectors(DType dtype, ReduceOp reduce, const std::byte* const* sources, std::size_t source_count,
                            std::byte* destination, std::size_t bytes);

// As reduce_weighted() of kernels.h with unequal weights, for the types weigh_with_vectors() does not cover.
void weigh_without_vectors(DType dtype, const std::byte* const* sources, const double* weights,
                           std::size_t source_count, std::byte* destination, std::size_t bytes);

}  // namespace closeranks::communicator
