#include "communicator/alone.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "communicator/buffer_list.h"
#include "communicator/kernels.h"

namespace closeranks::communicator {
namespace {

// The caller's memory may be a list of pieces of any alignment, and inputs may be outputs: both go through memory of
// our own. A newcomer's set-up is short of no time for that.
std::vector<std::byte> unit_of_input(const Call& call, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<std::byte> unit(bytes);
  copy_from(call.inputs, offset, unit.data(), bytes);
  return unit;
}

void reduce_own(const Call& call, std::uint64_t offset, std::uint64_t bytes, double weight) {
  std::vector<std::byte> result(bytes);
  if (call.reduce != ReduceOp::avg || weight > 0) {
    const std::vector<std::byte> input = unit_of_input(call, offset, bytes);
    const std::byte* source = input.data();
    if (call.reduce == ReduceOp::premul_sum) {
      reduce_scaled(call.dtype, {&source, 1}, {&weight, 1}, result.data(), bytes);
    } else {
      reduce(call.dtype, call.reduce, {&source, 1}, result.data(), bytes);
    }
  }
  copy_to(call.outputs, 0, result.data(), bytes);
}

void fill_every_place(const Call& call, std::uint64_t unit_bytes, std::uint32_t members) {
  const std::vector<std::byte> unit = unit_of_input(call, 0, unit_bytes);
  for (std::uint32_t place = 0; place < members; ++place) {
    copy_to(call.outputs, place * unit_bytes, unit.data(), unit_bytes);
  }
}

// Its parts for and from the others are as those of vacant slots in a group that has joined: zeros come from there. (An
// own part in every place, as all_gather gives it, would have another size than the caller expects.)
Status exchange_own(const Call& call, const GroupFacts& group) {
  const std::uint32_t self = group.self.value();
  const std::uint64_t own = call.input_bytes[self];
  if (own != call.output_bytes[self]) {
    return {Fault::mismatch, Move::fix_call,
            "all_to_all: this worker sends " + std::to_string(own) + " bytes to itself and expects " +
                std::to_string(call.output_bytes[self])};
  }
  const auto before = [self](const std::vector<std::uint64_t>& parts) {
    return std::accumulate(parts.begin(), parts.begin() + self, std::uint64_t{0});
  };
  const std::vector<std::byte> part = unit_of_input(call, before(call.input_bytes), own);
  fill_zeros(call.outputs, 0, total_bytes(call.outputs));
  copy_to(call.outputs, before(call.output_bytes), part.data(), own);
  return {};
}

Status answer_broadcast(const Call& call, std::uint64_t unit_bytes, const std::vector<std::byte>* answer) {
  if (answer == nullptr) {
    if (!call.inputs.empty() && !same_memory(call.inputs, call.outputs)) {
      const std::vector<std::byte> unit = unit_of_input(call, 0, unit_bytes);
      copy_to(call.outputs, 0, unit.data(), unit_bytes);
    }
    return {};
  }
  if (answer->size() != unit_bytes) {
    return {Fault::mismatch, Move::fix_call,
            "broadcast of " + std::to_string(unit_bytes) + " bytes was to be answered with the others' " +
                std::to_string(answer->size()) + " bytes: this worker's model is not theirs"};
  }
  copy_to(call.outputs, 0, answer->data(), unit_bytes);
  return {};
}

}  // namespace

Status run_alone(const Call& call, const CallShape& shape, const GroupFacts& group, double weight,
                 const std::vector<std::byte>* answer) {
  const std::uint64_t unit = shape.unit_bytes;
  const bool at_root = call.root == group.self;
  switch (call.kind) {
    case OpKind::barrier:
      break;
    case OpKind::all_reduce:
      reduce_own(call, 0, unit, weight);
      break;
    case OpKind::reduce_scatter:
      reduce_own(call, group.self.value() * unit, unit, weight);
      break;
    case OpKind::broadcast:
      return answer_broadcast(call, unit, answer);
    case OpKind::all_gather:
      fill_every_place(call, unit, group.members);
      break;
    case OpKind::gather:
      if (at_root) fill_every_place(call, unit, group.members);
      break;
    case OpKind::scatter:
      if (at_root) {
        const std::vector<std::byte> own = unit_of_input(call, group.self.value() * unit, unit);
        copy_to(call.outputs, 0, own.data(), unit);
      }
      break;
    case OpKind::reduce:
      if (at_root) reduce_own(call, 0, unit, weight);
      break;
    case OpKind::all_to_all:
      return exchange_own(call, group);
    case OpKind::send:
    case OpKind::recv:
      return {Fault::unsupported, Move::retry,
              std::string(name_of(call.kind)) +
                  ": this worker takes a lost one's place and has not joined the others yet, so there is nobody to "
                  "exchange messages with. Do it after the first boundary of the session"};
  }
  return {};
}

}  // namespace closeranks::communicator
