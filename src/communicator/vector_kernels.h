// The reductions that have vector code (Highway, the best instruction set of the machine at run time).
#pragma once

#include <cstddef>

#include "closeranks/op.h"

namespace closeranks::communicator {

// As reduce() of kernels.h. False, and nothing done, when this pair has no vector code: it covers all reductions of
// the real floating-point types, and sum, min and max of int32 and int64.
bool reduce_with_vectors(DType dtype, ReduceOp reduce, const std::byte* const* sources, std::size_t source_count,
                         std::byte* destination, std::size_t bytes);

// As reduce_weighted() of kernels.h with unequal weights. False, and nothing done, for any other type than the real
// floating-point ones.
bool weigh_with_vectors(DType dtype, const std::byte* const* sources, const double* weights, std::size_t source_count,
                        std::byte* destination, std::size_t bytes);

}  // namespace closeranks::communicator
