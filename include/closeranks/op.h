// The vocabulary of a collective call: its kind, element type and reduction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace closeranks {

enum class OpKind : std::uint8_t {
  barrier,
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  reduce,
  all_to_all,
  send,
  recv,
};

// `premul_sum`: the sum of each member's input times its own Call::factor.
enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum };

// Element types of torch's CPU tensors. `bytes` moves data without a type (no reduction on it).
enum class DType : std::uint8_t {
  boolean,
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
  bytes,
};

// What a group does when a member is lost. `fail`: every member's op raises at once, naming the slot.
// `repair`: survivors finish the op in flight and go on; right only where every slot holds the same state.
// `exact`: as repair, but an op that lacks the input of a member that was present at the last boundary (or when the
// group was made) ends with Fault::incomplete on every survivor: the caller repeats its step without that member.
enum class Policy : std::uint8_t { fail, repair, exact };

std::size_t size_of(DType dtype);  // bytes per element
std::string_view name_of(OpKind kind);
std::string_view name_of(ReduceOp reduce);
std::string_view name_of(DType dtype);
std::string_view name_of(Policy policy);

}  // namespace closeranks
