#include "communicator/call_shape.h"

#include <algorithm>
#include <cmath>

#include "communicator/buffer_list.h"
#include "communicator/kernels.h"

namespace closeranks::communicator {
namespace {

Status wrong(const Call& call, const std::string& why) {
  return {Fault::invalid_argument, Move::fix_call, std::string(name_of(call.kind)) + ": " + why};
}

std::string bytes_of(std::uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

// Bytes of one side, and what they must be.
struct Fit {
  std::uint64_t unit = 0;
  std::uint64_t actual = 0;
  std::uint64_t expected = 0;
  const char* side = "";
  const char* because = "";
};

Status misfit(const Call& call, const Fit& fit) {
  return wrong(call, std::string(fit.side) + " has " + bytes_of(fit.actual) + ", expected " + bytes_of(fit.expected) +
                         " (" + fit.because + ")");
}

Status expect_sum(const Call& call, const char* what, std::uint64_t actual, const std::vector<std::uint64_t>& parts,
                  std::uint32_t members) {
  if (parts.size() != members) {
    return wrong(call, std::string(what) + "_bytes has " + std::to_string(parts.size()) + " numbers, expected " +
                           std::to_string(members) + " (one for each member)");
  }
  std::uint64_t left = actual;
  for (const std::uint64_t part : parts) {
    if (part % size_of(call.dtype) != 0) {
      return wrong(call, bytes_of(part) + " is not a whole number of " + std::string(name_of(call.dtype)));
    }
    if (part > left) {
      return wrong(call, std::string(what) + " has " + bytes_of(actual) + ", fewer than " + what + "_bytes add up to");
    }
    left -= part;
  }
  return left == 0 ? Status{} : misfit(call, {0, actual, actual - left, what, "what its parts add up to"});
}

Status check_exchange(const Call& call, const GroupFacts& group) {
  Status fits = expect_sum(call, "input", total_bytes(call.inputs), call.input_bytes, group.members);
  if (fits.ok()) fits = expect_sum(call, "output", total_bytes(call.outputs), call.output_bytes, group.members);
  return fits;
}

bool null_memory(const std::vector<Buffer>& buffers) {
  return std::any_of(buffers.begin(), buffers.end(),
                     [](const Buffer& buffer) { return buffer.data == nullptr && buffer.bytes != 0; });
}

// The unit, from whichever side of the call has exactly one on this member; and what the other side has to be then.
Fit fit_of(const Call& call, const GroupFacts& group) {
  const std::uint64_t inputs = total_bytes(call.inputs);
  const std::uint64_t outputs = total_bytes(call.outputs);
  const std::uint64_t members = group.members;
  const bool at_root = call.root == group.self;
  switch (call.kind) {
    case OpKind::barrier:
      return {0, inputs + outputs, 0, "the call", "a barrier moves no data"};
    case OpKind::all_reduce:
      return {inputs, outputs, inputs, "output", "as long as the input"};
    case OpKind::broadcast: {
      const bool gives = gives_input(call.kind, call.root, group);
      return {outputs, gives ? inputs : outputs, outputs, "input", "as long as the output"};
    }
    case OpKind::all_gather:
      return {inputs, outputs, inputs * members, "output", "one input of each member"};
    case OpKind::reduce_scatter:
      return {outputs, inputs, outputs * members, "input", "one output of each member"};
    case OpKind::gather:
      if (at_root) return {inputs, outputs, inputs * members, "output", "one input of each member"};
      return {inputs, outputs, 0, "output", "only the root has output"};
    case OpKind::scatter:
      if (at_root) return {outputs, inputs, outputs * members, "input", "one output of each member"};
      return {outputs, inputs, 0, "input", "only the root has input"};
    case OpKind::reduce:
      if (at_root) return {inputs, outputs, inputs, "output", "as long as the input"};
      return {inputs, outputs, 0, "output", "only the root has output"};
    case OpKind::all_to_all:  // check_exchange()
      return {inputs, 0, 0, "", ""};
    case OpKind::send:
      return {inputs, outputs, 0, "output", "a send has none"};
    case OpKind::recv:
      return {outputs, inputs, 0, "input", "a recv has none"};
  }
  return {};
}

// Mixes `value` into `hash`: FNV-1a's step over 64-bit words, with the upper bits folded back in. Not for adversaries;
// it tells calls apart that differ by mistake.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash ^= value;
  hash *= 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

}  // namespace

bool is_reduction(OpKind kind) {
  return kind == OpKind::all_reduce || kind == OpKind::reduce || kind == OpKind::reduce_scatter;
}

bool input_is_list(OpKind kind) {
  return kind == OpKind::reduce_scatter || kind == OpKind::scatter || kind == OpKind::all_to_all;
}

bool output_is_list(OpKind kind) {
  return kind == OpKind::all_gather || kind == OpKind::gather || kind == OpKind::all_to_all;
}

bool gives_input(OpKind kind, Rank root, const GroupFacts& group) {
  switch (kind) {
    case OpKind::barrier:
    case OpKind::recv:
      return false;
    case OpKind::broadcast:
      return group.lowest_member_is_root || root == group.self;
    case OpKind::scatter:
      return root == group.self;
    default:
      return true;
  }
}

bool is_weight(double weight) { return weight >= 0 && !std::isinf(weight); }

algorithm::Range CallShape::piece(std::uint32_t piece) const {
  const std::uint64_t from = piece * piece_unit_bytes;
  return {from, std::min(piece_unit_bytes, unit_bytes - from)};
}

Result<CallShape> shape_of(const Call& call, const GroupFacts& group) {
  const bool point_to_point = call.kind == OpKind::send || call.kind == OpKind::recv;
  const bool names_a_rank = algorithm::is_rooted(call.kind) || (point_to_point && !call.any_source);
  if (names_a_rank && call.root.value() >= group.members) {
    return wrong(call, "rank " + std::to_string(call.root.value()) + " is not in this group of " +
                           std::to_string(group.members));
  }
  if (point_to_point && !call.any_source && call.root == group.self) {
    return wrong(call, "a member does not send to itself");
  }
  if (null_memory(call.inputs) || null_memory(call.outputs)) return wrong(call, "a buffer has a size but no memory");
  if (is_reduction(call.kind)) {
    const Status meaningful = check_reduction(call.dtype, call.reduce);
    if (!meaningful.ok()) return wrong(call, meaningful.message());
  }
  const Fit fit = fit_of(call, group);
  if (fit.actual != fit.expected) return misfit(call, fit);
  if (call.kind == OpKind::all_to_all) {
    Status sizes = check_exchange(call, group);
    if (!sizes.ok()) return sizes;
  }
  if (fit.unit % size_of(call.dtype) != 0) {
    return wrong(call, bytes_of(fit.unit) + " is not a whole number of " + std::string(name_of(call.dtype)));
  }
  if (point_to_point || call.kind == OpKind::all_to_all) return CallShape{fit.unit, fit.unit, 1};
  return cut(call.kind, call.dtype, fit.unit, group);
}

CallShape cut(OpKind kind, DType dtype, std::uint64_t unit_bytes, const GroupFacts& group) {
  CallShape shape{unit_bytes, unit_bytes, 1};
  if (unit_bytes <= algorithm::inline_bytes) return shape;  // the shortest pieces of the largest groups are longer
  const std::uint64_t longest = algorithm::piece_unit_bytes(kind, dtype, group.members, group.entry_budget_bytes);
  if (unit_bytes > longest) {
    shape.piece_unit_bytes = longest;
    shape.pieces = static_cast<std::uint32_t>((unit_bytes + longest - 1) / longest);
  }
  return shape;
}

std::uint64_t signature_of(const Call& call, std::uint64_t unit_bytes, std::uint32_t entry, Policy policy,
                           bool lowest_member_is_root) {
  const bool root_is_agreed =
      algorithm::is_rooted(call.kind) && !(call.kind == OpKind::broadcast && lowest_member_is_root);
  const std::uint64_t root = root_is_agreed ? 1 + std::uint64_t{call.root.value()} : 0;
  const std::uint64_t reduce = is_reduction(call.kind) ? static_cast<std::uint64_t>(call.reduce) : 0;
  // Every field has bits of its own.
  const std::uint64_t what = static_cast<std::uint64_t>(call.kind) | static_cast<std::uint64_t>(call.dtype) << 8 |
                             reduce << 16 | static_cast<std::uint64_t>(policy) << 24 | root << 32;
  std::uint64_t hash = mixed(0xcbf29ce484222325, what);
  hash = mixed(hash, unit_bytes);
  hash = mixed(hash, entry);
  return mixed(hash, call.fingerprint);
}

std::string describe(OpKind kind, DType dtype, ReduceOp reduce, Rank root, std::uint64_t unit_bytes,
                     bool lowest_member_is_root) {
  std::string text(name_of(kind));
  if (kind == OpKind::barrier) return text;
  if (kind == OpKind::all_to_all) {
    return text + " of " + std::string(name_of(dtype)) + ", " + std::to_string(unit_bytes / size_of(dtype)) + " sent";
  }
  text += " of " + std::to_string(unit_bytes / size_of(dtype)) + " " + std::string(name_of(dtype));
  if (is_reduction(kind)) text += ", " + std::string(name_of(reduce));
  if (kind == OpKind::broadcast && lowest_member_is_root) return text + ", from the lowest present member";
  if (kind == OpKind::broadcast || kind == OpKind::scatter) text += " from rank " + std::to_string(root.value());
  if (kind == OpKind::gather || kind == OpKind::reduce) text += " to rank " + std::to_string(root.value());
  return text;
}

}  // namespace closeranks::communicator
