// Reductions over one range of several members' inputs: the arithmetic of all_reduce, reduce and reduce_scatter; and
// the copies of all collectives.
//
// The result is a pure function of the sources and their order, bit for bit (NaNs aside, see below), on every thread
// and instruction set: it does not depend on the thread's rounding or flush-to-zero mode, on the alignment of any
// pointer, or on the place of an element in the range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "closeranks/op.h"
#include "closeranks/status.h"

namespace closeranks::communicator {

// ok, or Fault::invalid_argument naming both when `reduce` has no meaning on `dtype`: bitwise ops on floating point,
// an order on complex numbers, a mean or a multiple of truth values, any reduction of untyped bytes.
Status check_reduction(DType dtype, ReduceOp reduce);

// destination[i] = (..(sources[0][i] op sources[1][i]) op ..), in the order given, `bytes` from each source.
//   sum, product   integers wrap around; bool: or, and
//   avg            the sum divided by the number of sources. Integers up to 32 bits are summed without wrapping and
//                  divided towards zero
//   min, max       a NaN in any source wins; of equal values the earlier source's bits stay
//   premul_sum     as sum: every factor is 1
//   float16, bfloat16  computed in float32 and rounded once, to nearest even; a NaN result is the positive quiet one
// Which of two NaNs a sum or product of float32, float64 or complex keeps, sign and payload, is the processor's and the
// compiler's choice: the same on all members, as they run the same code.
// Preconditions: check_reduction() is ok; one source at least; `bytes` is a whole number of elements; all pointers
// are aligned to the element; the destination overlaps no source. Any thread; allocates nothing.
void reduce(DType dtype, ReduceOp reduce, std::span<const std::byte* const> sources, std::byte* destination,
            std::size_t bytes);

// A weighted mean: destination[i] = (w[0] * x[0][i] + w[1] * x[1][i] ..) / (w[0] + w[1] ..), in the order given; all
// zeros without sources. Equal weights: exactly reduce() with avg, bit for bit and as fast.
//   float16, bfloat16  in float32, rounded once
//   float, complex     in their own type, weights rounded to it
//   integers           in float64, divided towards zero: exact while the sums are below 2^53
// Preconditions: as of reduce(), with avg; weights are finite and above zero.
void reduce_weighted(DType dtype, std::span<const std::byte* const> sources, std::span<const double> weights,
                     std::byte* destination, std::size_t bytes);

// premul_sum: destination[i] = f[0] * x[0][i] + f[1] * x[1][i] .., in the order given. Types as for a weighted mean;
//   integers           by a whole factor up to 2^53 they wrap around, as products and sums do; by any other, each
//                      product is made in float64, cut towards zero and kept within the type's range (0 for a NaN)
// A factor may be anything, 0 and infinity and NaN too. Preconditions: as of reduce(), with premul_sum.
void reduce_scaled(DType dtype, std::span<const std::byte* const> sources, std::span<const double> factors,
                   std::byte* destination, std::size_t bytes);

// When what is written will be read again, by whomever. `late`: it goes to memory past the caches, which saves reading
// the old bytes in and throwing others out.
enum class Reuse : std::uint8_t { soon, late };

// memcpy. No overlap; any alignment. With `late` the bytes are visible to whoever sees a later store of this thread,
// as with plain stores; short copies are never streamed.
// Measured on 2 cores with 512 KiB of second-level cache each and 32 MiB of third:
//   out of a region or a peer's tensor into memory that nobody has touched for long: late 17 GB/s, soon 9.5
//   out of the cache into such memory (what has just been staged): late 23, soon 13
//   a finished block into the tensors it was reduced from, whose lines are still in the cache: 2 processes and 16 MiB
//   take 0.9 ms with soon, 1.4 with late; into the staging region of a piece below the cache's size: no difference
// Reductions have no such choice: streaming their result gained less than a tenth.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Reuse reuse = Reuse::soon);

}  // namespace closeranks::communicator
