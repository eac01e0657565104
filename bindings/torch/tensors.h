// Tensors as the memory of a Call: checks, element types, and contiguous stand-ins for memory that is not.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "closeranks/communicator.h"

namespace closeranks::torch_binding {

// A tensor type without a reduction (float8, complex32, quantised ones) moves as bytes.
DType dtype_for_moving(at::ScalarType type);
// As Python sees a list of slots.
std::vector<std::uint32_t> slot_numbers(const std::vector<Slot>& slots);

// One Call and what must happen around it. Built on the caller's thread before issue; the Work that owns it copies
// back when the op has succeeded. Tensors stay alive as long as this does.
class TensorCall {
 public:
  // `name` is the op in the user's words ("all_gather"), a literal, for errors.
  TensorCall(OpKind kind, const char* name);

  // Each checks the tensor (dense, on the CPU; outputs also not overlapping themselves) and throws Unsupported or
  // InvalidCall. Memory is appended to the call's inputs or outputs in the order of the calls.
  void add_input(const at::Tensor& tensor);
  void add_output(const at::Tensor& tensor);
  void add_in_place(const at::Tensor& tensor);
  // Of `parts` equal consecutive parts of each tensor, appends part `part`, for every part in turn and every tensor
  // within it: the layout of an all_gather or reduce_scatter of several tensors at once.
  void add_outputs_by_part(const std::vector<at::Tensor>& tensors, std::int64_t parts);
  void add_inputs_by_part(const std::vector<at::Tensor>& tensors, std::int64_t parts);

  // Sets the call's element type, for moving tensors of `type` as they are, or for reducing them by `reduce` (with its
  // factor, for PREMUL_SUM). Throws InvalidCall for a type without arithmetic or a reduction that is none.
  void move_type(at::ScalarType type) { call_.dtype = dtype_for_moving(type); }
  void reduce_type(at::ScalarType type, const c10d::ReduceOp& reduce);

  // Copies stand-ins back into the tensors they stood for. Call once, after success, on any thread.
  void copy_back();

  [[nodiscard]] Call& call() { return call_; }
  [[nodiscard]] const char* name() const { return name_; }
  [[nodiscard]] std::uint64_t input_bytes() const { return bytes_of(call_.inputs); }
  [[nodiscard]] std::uint64_t output_bytes() const { return bytes_of(call_.outputs); }
  // The tensors as they were given to add_input and add_in_place: what the profiler shows.
  [[nodiscard]] const std::vector<at::Tensor>& inputs() const { return inputs_; }
  // By whose shapes the recorder knows the call: what it brings, or gets if it brings nothing.
  [[nodiscard]] const std::vector<at::Tensor>& shown() const { return inputs_.empty() ? kept_ : inputs_; }

 private:
  struct CopyBack {
    at::Tensor from;
    at::Tensor to;
  };

  void check(const at::Tensor& tensor, bool written) const;
  at::Tensor readable(const at::Tensor& tensor);
  at::Tensor writable(const at::Tensor& tensor, bool also_read);
  Buffer keep(const at::Tensor& memory);
  static void append_parts(std::vector<Buffer>& buffers, const std::vector<Buffer>& whole, std::int64_t parts);
  static std::uint64_t bytes_of(const std::vector<Buffer>& buffers);

  Call call_;
  const char* name_;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> kept_;
  std::vector<CopyBack> copies_;
};

}  // namespace closeranks::torch_binding
