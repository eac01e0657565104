// Reductions over one range of several members' inputs: the arithmetic of all_reduce and reduce_scatter.
//
// The result is a pure function of the sources and their order, bit for bit (NaNs aside, see below), on every thread
// and instruction set: it does not depend on the thread's rounding or flush-to-zero mode, and a vector's tail goes
// through the same instructions as its body.
#pragma once

#include <cstddef>
#include <span>

#include "closeranks/op.h"
#include "closeranks/status.h"

namespace closeranks::communicator {

// ok, or Fault::invalid_argument naming both when `reduce` has no meaning on `dtype`: bitwise ops on floating point,
// an order on complex numbers, a mean of truth values, any reduction of untyped bytes.
Status check_reduction(DType dtype, ReduceOp reduce);

// destination[i] = (..(sources[0][i] op sources[1][i]) op ..), in the order given, `bytes` from each source.
//   sum, product   integers wrap around; bool: or, and
//   avg            the sum divided by the number of sources. Integers up to 32 bits are summed without wrapping and
//                  divided towards zero
//   min, max       a NaN in any source wins; of equal values the earlier source's bits stay
//   float16, bfloat16  computed in float32 and rounded once, to nearest even; a NaN result is the positive quiet one
// Which of two NaNs a sum or product of float32, float64 or complex keeps, sign and payload, is the processor's and the
// compiler's choice: the same on all members, as they run the same code.
// Preconditions: check_reduction() is ok; one source at least; `bytes` is a whole number of elements; all pointers
// are aligned to the element; the destination overlaps no source. Any thread; allocates nothing.
void reduce(DType dtype, ReduceOp reduce, std::span<const std::byte* const> sources, std::byte* destination,
            std::size_t bytes);

// A weighted mean: destination[i] = (w[0] * x[0][i] + w[1] * x[1][i] ..) / (w[0] + w[1] ..), in the order given; all
// zeros without sources. Equal weights: exactly reduce() with avg, bit for bit and as fast.
//   float16, bfloat16  in float32, rounded once    float32, float64  in their own type, weights rounded to it
//   integers           in float64, divided towards zero: exact while the sums are below 2^53
// Preconditions: as of reduce(); weights are finite and above zero.
void reduce_weighted(DType dtype, std::span<const std::byte* const> sources, std::span<const double> weights,
                     std::byte* destination, std::size_t bytes);

}  // namespace closeranks::communicator
