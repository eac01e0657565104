#include "communicator/in_place.h"

#include <algorithm>
#include <cstdint>

#include "communicator/buffer_list.h"

namespace closeranks::communicator {
namespace {

// Where the output lies against the input, when the call is in place as torch and MPI know it.
bool is_known_form(const Call& call, const CallShape& shape, Rank self, const Buffer& input, const Buffer& output) {
  const auto* from = static_cast<const std::byte*>(input.data);
  const auto* to = static_cast<const std::byte*>(output.data);
  switch (call.kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::broadcast:
      return from == to;
    case OpKind::all_gather:
      return from == to + self.value() * shape.unit_bytes;
    case OpKind::reduce_scatter:
      return to == from + self.value() * shape.unit_bytes;
    default:
      return false;
  }
}

std::optional<Buffer> stretch_of(const Call& call, const std::vector<Buffer>& buffers) {
  const std::optional<Buffer> whole = only_buffer(buffers);
  return whole && aligned_to(call.dtype, whole->data) ? whole : std::nullopt;
}

}  // namespace

bool aligned_to(DType dtype, const void* memory) {
  // A complex number is aligned as its parts.
  const std::size_t alignment = std::min<std::size_t>(size_of(dtype), 8);
  return reinterpret_cast<std::uintptr_t>(memory) % alignment == 0;
}

InPlace in_place(const Call& call, const CallShape& shape, const GroupFacts& group) {
  InPlace result;
  if (call.kind == OpKind::all_reduce || call.kind == OpKind::reduce) result.output = stretch_of(call, call.outputs);
  if (gives_input(call.kind, call.root, group)) result.input = stretch_of(call, call.inputs);
  if (result.input && overlaps(*result.input, call.outputs)) {
    const std::optional<Buffer> output = only_buffer(call.outputs);
    if (!output || !is_known_form(call, shape, group.self, *result.input, *output)) result.input.reset();
  }
  return result;
}

}  // namespace closeranks::communicator
