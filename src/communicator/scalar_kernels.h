// The reductions without vector code: those of integers that need wider arithmetic than their own, means and sums of
// scaled inputs; and products of complex numbers.
#pragma once

#include <cstddef>

#include "closeranks/op.h"

namespace closeranks::communicator {

// As reduce() of kernels.h with product, for complex numbers.
void product_of_complex(DType dtype, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
                        std::size_t bytes);

// As reduce() with avg, reduce_weighted() with unequal weights, and reduce_scaled() of kernels.h, for integers.
void mean_of_integers(DType dtype, const std::byte* const* sources, std::size_t source_count, std::byte* destination,
                      std::size_t bytes);
void weigh_integers(DType dtype, const std::byte* const* sources, const double* weights, std::size_t source_count,
                    std::byte* destination, std::size_t bytes);
void scale_integers(DType dtype, const std::byte* const* sources, const double* factors, std::size_t source_count,
                    std::byte* destination, std::size_t bytes);

}  // namespace closeranks::communicator
