#include "base/assert.h"
#include "closeranks/op.h"

namespace closeranks {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::int8:
    case DType::uint8:
    case DType::bytes:
      return 1;
    case DType::int16:
    case DType::uint16:
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::int32:
    case DType::uint32:
    case DType::float32:
      return 4;
    case DType::int64:
    case DType::uint64:
    case DType::float64:
    case DType::complex64:
      return 8;
    case DType::complex128:
      return 16;
  }
  CR_ASSERT(!"a dtype outside its enum");
}

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::barrier:
      return "barrier";
    case OpKind::all_reduce:
      return "all_reduce";
    case OpKind::broadcast:
      return "broadcast";
    case OpKind::all_gather:
      return "all_gather";
    case OpKind::reduce_scatter:
      return "reduce_scatter";
    case OpKind::gather:
      return "gather";
    case OpKind::scatter:
      return "scatter";
    case OpKind::reduce:
      return "reduce";
    case OpKind::all_to_all:
      return "all_to_all";
    case OpKind::send:
      return "send";
    case OpKind::recv:
      return "recv";
  }
  CR_ASSERT(!"an op kind outside its enum");
}

std::string_view name_of(ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::product:
      return "product";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::band:
      return "band";
    case ReduceOp::bor:
      return "bor";
    case ReduceOp::bxor:
      return "bxor";
    case ReduceOp::premul_sum:
      return "premul_sum";
  }
  CR_ASSERT(!"a reduce op outside its enum");
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return "bool";
    case DType::int8:
      return "int8";
    case DType::uint8:
      return "uint8";
    case DType::int16:
      return "int16";
    case DType::uint16:
      return "uint16";
    case DType::int32:
      return "int32";
    case DType::uint32:
      return "uint32";
    case DType::int64:
      return "int64";
    case DType::uint64:
      return "uint64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::complex64:
      return "complex64";
    case DType::complex128:
      return "complex128";
    case DType::bytes:
      return "bytes";
  }
  CR_ASSERT(!"a dtype outside its enum");
}

std::string_view name_of(Policy policy) {
  switch (policy) {
    case Policy::fail:
      return "fail";
    case Policy::repair:
      return "repair";
    case Policy::exact:
      return "exact";
  }
  CR_ASSERT(!"a policy outside its enum");
}

}  // namespace closeranks
