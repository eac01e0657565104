#include "tensors.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <string>

#include "failure.h"

namespace closeranks::torch_binding {
namespace {

// A tensor whose memory cannot be read or written as it lies: strided, or a lazy conjugate or negative.
bool needs_stand_in(const at::Tensor& tensor) { return !tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg(); }

// The number that this member's tensor is multiplied by.
double factor_of(const c10d::ReduceOp& reduce, const std::string& op) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(reduce.supplement_.get());
  if (supplement == nullptr) {
    throw_invalid_call(op + " was given PREMUL_SUM without a factor; make it with _make_nccl_premul_sum(factor)");
  }
  const at::Tensor& factor = supplement->tensor_factor;
  if (!factor.defined()) {
    return supplement->double_factor;
  }
  if (factor.numel() != 1 || !factor.device().is_cpu() || factor.is_complex()) {
    throw_invalid_call(op + " takes a PREMUL_SUM factor of one real number on the CPU, not " +
                       c10::str(factor.sizes()) + " of " + c10::toString(factor.scalar_type()) + " on " +
                       factor.device().str());
  }
  return factor.item<double>();
}

}  // namespace

DType dtype_for_moving(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DType::boolean;
    case at::kChar:
      return DType::int8;
    case at::kByte:
      return DType::uint8;
    case at::kShort:
      return DType::int16;
    case at::kUInt16:
      return DType::uint16;
    case at::kInt:
      return DType::int32;
    case at::kUInt32:
      return DType::uint32;
    case at::kLong:
      return DType::int64;
    case at::kUInt64:
      return DType::uint64;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kFloat:
      return DType::float32;
    case at::kDouble:
      return DType::float64;
    case at::kComplexFloat:
      return DType::complex64;
    case at::kComplexDouble:
      return DType::complex128;
    default:
      return DType::bytes;
  }
}

std::vector<std::uint32_t> slot_numbers(const std::vector<Slot>& slots) {
  std::vector<std::uint32_t> values;
  values.reserve(slots.size());
  for (const Slot slot : slots) {
    values.push_back(slot.value());
  }
  return values;
}

TensorCall::TensorCall(OpKind kind, const char* name) : name_(name) { call_.kind = kind; }

void TensorCall::reduce_type(at::ScalarType type, const c10d::ReduceOp& reduce) {
  call_.dtype = dtype_for_moving(type);
  // Which reductions suit a type, the core decides.
  if (call_.dtype == DType::bytes) {
    throw_invalid_call(std::string(name_) + " cannot reduce tensors of type " + c10::toString(type) +
                       "; convert them to a numeric type first");
  }
  switch (reduce.op_) {
    case c10d::ReduceOp::SUM:
      call_.reduce = ReduceOp::sum;
      return;
    case c10d::ReduceOp::AVG:
      call_.reduce = ReduceOp::avg;
      return;
    case c10d::ReduceOp::PRODUCT:
      call_.reduce = ReduceOp::product;
      return;
    case c10d::ReduceOp::MIN:
      call_.reduce = ReduceOp::min;
      return;
    case c10d::ReduceOp::MAX:
      call_.reduce = ReduceOp::max;
      return;
    case c10d::ReduceOp::BAND:
      call_.reduce = ReduceOp::band;
      return;
    case c10d::ReduceOp::BOR:
      call_.reduce = ReduceOp::bor;
      return;
    case c10d::ReduceOp::BXOR:
      call_.reduce = ReduceOp::bxor;
      return;
    case c10d::ReduceOp::PREMUL_SUM:
      call_.reduce = ReduceOp::premul_sum;
      call_.factor = factor_of(reduce, name_);
      return;
    default:
      throw_invalid_call(std::string(name_) + " was given an unknown reduction");
  }
}

void TensorCall::check(const at::Tensor& tensor, bool written) const {
  if (tensor.layout() != at::kStrided) {
    throw_unsupported(std::string(name_) + " takes dense tensors; this one is " + c10::str(tensor.layout()) +
                      ": call to_dense() first");
  }
  if (!tensor.device().is_cpu()) {
    throw_unsupported(std::string(name_) + " was given a tensor on " + tensor.device().str() +
                      ", but closeranks serves CPU tensors only so far; move it to the CPU, or use another backend for "
                      "this device's group");
  }
  if (written && at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    throw_invalid_call(std::string(name_) +
                       " cannot write into a tensor whose elements share memory (an expanded one); call clone() first");
  }
}

Buffer TensorCall::keep(const at::Tensor& memory) {
  kept_.push_back(memory);
  return Buffer{memory.data_ptr(), memory.nbytes()};
}

at::Tensor TensorCall::readable(const at::Tensor& tensor) {
  check(tensor, false);
  inputs_.push_back(tensor);
  if (!needs_stand_in(tensor)) {
    return tensor;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor TensorCall::writable(const at::Tensor& tensor, bool also_read) {
  check(tensor, true);
  if (!needs_stand_in(tensor)) {
    return tensor;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  at::Tensor stand_in = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  if (also_read) {
    stand_in.copy_(tensor);
  }
  copies_.push_back({stand_in, tensor});
  return stand_in;
}

void TensorCall::add_input(const at::Tensor& tensor) { call_.inputs.push_back(keep(readable(tensor))); }

void TensorCall::add_output(const at::Tensor& tensor) { call_.outputs.push_back(keep(writable(tensor, false))); }

void TensorCall::add_in_place(const at::Tensor& tensor) {
  inputs_.push_back(tensor);
  const Buffer buffer = keep(writable(tensor, true));
  call_.inputs.push_back(buffer);
  call_.outputs.push_back(buffer);
}

void TensorCall::append_parts(std::vector<Buffer>& buffers, const std::vector<Buffer>& whole, std::int64_t parts) {
  for (std::int64_t part = 0; part < parts; ++part) {
    for (const Buffer& buffer : whole) {
      const std::size_t bytes = buffer.bytes / static_cast<std::size_t>(parts);
      buffers.push_back({static_cast<std::byte*>(buffer.data) + bytes * static_cast<std::size_t>(part), bytes});
    }
  }
}

void TensorCall::add_outputs_by_part(const std::vector<at::Tensor>& tensors, std::int64_t parts) {
  std::vector<Buffer> whole;
  whole.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    whole.push_back(keep(writable(tensor, false)));
  }
  append_parts(call_.outputs, whole, parts);
}

void TensorCall::add_inputs_by_part(const std::vector<at::Tensor>& tensors, std::int64_t parts) {
  std::vector<Buffer> whole;
  whole.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    whole.push_back(keep(readable(tensor)));
  }
  append_parts(call_.inputs, whole, parts);
}

void TensorCall::copy_back() {
  // Below autograd: the write is not an operation of the user's graph, and inference tensors allow it only there.
  const at::AutoDispatchBelowADInplaceOrView guard;
  for (const CopyBack& copy : copies_) {
    copy.to.copy_(copy.from);
  }
  copies_.clear();
}

std::uint64_t TensorCall::bytes_of(const std::vector<Buffer>& buffers) {
  std::uint64_t bytes = 0;
  for (const Buffer& buffer : buffers) {
    bytes += buffer.bytes;
  }
  return bytes;
}

}  // namespace closeranks::torch_binding
