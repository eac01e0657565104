#include <ATen/core/LegacyTypeDispatch.h>

#include <set>
#include <string>
#include <utility>

#include "backend.h"
#include "base/log.h"
#include "failure.h"

namespace closeranks::torch_binding {
namespace {

const std::vector<at::Tensor>& only_list(const std::vector<std::vector<at::Tensor>>& lists, const char* op) {
  if (lists.size() != 1) {
    throw_invalid_call(std::string(op) + " takes one list of tensors per process, not " + std::to_string(lists.size()));
  }
  return lists.front();
}

void check_same_type(const std::vector<at::Tensor>& tensors, at::ScalarType type, const char* op) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != type) {
      throw_invalid_call(std::string(op) + " takes tensors of one type, not " + c10::toString(type) + " and " +
                         c10::toString(tensor.scalar_type()));
    }
  }
}

// One tensor per rank, all like `unit`.
void check_parts(const std::vector<at::Tensor>& parts, const at::Tensor& unit, int ranks, const char* op) {
  if (parts.size() != static_cast<std::size_t>(ranks)) {
    throw_invalid_call(std::string(op) + " needs one tensor per rank of the group: " + std::to_string(ranks) +
                       ", not " + std::to_string(parts.size()));
  }
  check_same_type(parts, unit.scalar_type(), op);
  for (const at::Tensor& part : parts) {
    if (part.numel() != unit.numel()) {
      throw_invalid_call(std::string(op) + " needs tensors of one size on every rank, not of " +
                         std::to_string(unit.numel()) + " and " + std::to_string(part.numel()) + " elements");
    }
  }
}

// `whole` holds one `unit` per rank.
void check_whole(const at::Tensor& whole, const at::Tensor& unit, int ranks, const char* op) {
  check_same_type({whole}, unit.scalar_type(), op);
  if (whole.numel() != unit.numel() * ranks) {
    throw_invalid_call(std::string(op) + " needs a tensor of " + std::to_string(ranks) + " times " +
                       std::to_string(unit.numel()) + " elements, one part per rank, not of " +
                       std::to_string(whole.numel()));
  }
}

// Bytes of the rows of `tensor` that go to or come from each rank: `sizes` rows, or equal parts when it is empty.
std::vector<std::uint64_t> bytes_by_rank(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes,
                                         std::int64_t ranks, const char* which) {
  const std::string op = std::string("all_to_all_single's ") + which;
  if (tensor.dim() == 0) {
    throw_invalid_call(op + " is a scalar; it needs a first dimension to cut");
  }
  const std::int64_t rows = tensor.size(0);
  const std::uint64_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / static_cast<std::uint64_t>(rows);
  if (sizes.empty()) {
    if (rows % ranks != 0) {
      throw_invalid_call(op + " has " + std::to_string(rows) + " rows, which " + std::to_string(ranks) +
                         " ranks cannot share equally; give split sizes");
    }
    return std::vector<std::uint64_t>(static_cast<std::size_t>(ranks),
                                      row_bytes * static_cast<std::uint64_t>(rows / ranks));
  }
  std::vector<std::uint64_t> bytes;
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0) {
      throw_invalid_call(op + " split sizes have " + std::to_string(size) + " among them; none can be negative");
    }
    bytes.push_back(row_bytes * static_cast<std::uint64_t>(size));
    sum += size;
  }
  if (static_cast<std::int64_t>(sizes.size()) != ranks || sum != rows) {
    throw_invalid_call(op + " split sizes must be one per rank and add up to its " + std::to_string(rows) + " rows");
  }
  return bytes;
}

}  // namespace

CloseranksBackend::WorkPointer CloseranksBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only_one(tensors, "broadcast");
  TensorCall call(OpKind::broadcast, "broadcast");
  call.call().root = checked_rank(options.rootRank, "broadcast");
  call.move_type(tensor.scalar_type());
  call.add_in_place(tensor);
  return issue(std::move(call), {c10d::OpType::BROADCAST, "closeranks:broadcast", options.timeout, options.asyncOp},
               tensors);
}

CloseranksBackend::WorkPointer CloseranksBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only_one(tensors, "all_reduce");
  TensorCall call(OpKind::all_reduce, "all_reduce");
  call.reduce_type(tensor.scalar_type(), options.reduceOp);
  call.call().fingerprint = FingerprintScope::current();
  call.add_in_place(tensor);
  return issue(std::move(call), {c10d::OpType::ALLREDUCE, "closeranks:all_reduce", options.timeout, options.asyncOp},
               tensors);
}

CloseranksBackend::WorkPointer CloseranksBackend::allreduce_sparse(Tensors& /*tensors*/,
                                                                   const c10d::AllreduceOptions& /*options*/) {
  throw_unsupported("all_reduce takes dense tensors; for an embedding use sparse=False, or call to_dense() first");
}

CloseranksBackend::WorkPointer CloseranksBackend::allreduce_coalesced(Tensors& tensors,
                                                                      const c10d::AllreduceCoalescedOptions& options) {
  if (tensors.empty()) {
    throw_invalid_call("all_reduce_coalesced was given no tensors");
  }
  const at::ScalarType type = tensors.front().scalar_type();
  check_same_type(tensors, type, "all_reduce_coalesced");
  TensorCall call(OpKind::all_reduce, "all_reduce_coalesced");
  call.reduce_type(type, options.reduceOp);
  for (const at::Tensor& tensor : tensors) {
    call.add_in_place(tensor);
  }
  return issue(std::move(call),
               {c10d::OpType::ALLREDUCE_COALESCED, "closeranks:all_reduce", options.timeout, options.asyncOp}, tensors);
}

CloseranksBackend::WorkPointer CloseranksBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only_one(tensors, "reduce");
  TensorCall call(OpKind::reduce, "reduce");
  call.call().root = checked_rank(options.rootRank, "reduce");
  call.reduce_type(tensor.scalar_type(), options.reduceOp);
  if (call.call().root == communicator_->rank()) {
    call.add_in_place(tensor);
  } else {
    call.add_input(tensor);
  }
  return issue(std::move(call), {c10d::OpType::REDUCE, "closeranks:reduce", options.timeout, options.asyncOp}, tensors);
}

c10::intrusive_ptr<CloseranksWork> CloseranksBackend::issue_gathering(TensorCall call, Issue how, Tensors results,
                                                                      const FillPart& fill_part) {
  WorkOptions options = work_options(how, std::move(results));
  if (communicator_->alone()) {
    // A newcomer's own input is in every place: nothing is missing.
    return start(std::move(call), std::move(options));
  }
  options.after_success = [said = said_vacant_, group = communicator_->options(), name = call.name(),
                           fill_part](const Contributors& from) {
    if (from.slots.size() == group.members.size()) {
      return;
    }
    if (group.lowest_member_is_root && fill_part) {
      const std::set<Slot> real(from.slots.begin(), from.slots.end());
      for (std::size_t rank = 0; rank < group.members.size(); ++rank) {
        if (!real.contains(group.members[rank])) {
          fill_part(rank);
        }
      }
    } else if (!said->exchange(true)) {
      log::warning(std::string(name) + " on group " + group.name + " has zeros in the parts of " +
                   std::to_string(group.members.size() - from.slots.size()) +
                   " vacant slots; work.contributors() tells which parts are real (said once per group)");
    }
  };
  return start(std::move(call), std::move(options));
}

CloseranksBackend::WorkPointer CloseranksBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only_one(inputs, "all_gather");
  const Tensors& parts = only_list(outputs, "all_gather");
  check_parts(parts, input, getSize(), "all_gather");
  TensorCall call(OpKind::all_gather, "all_gather");
  call.move_type(input.scalar_type());
  call.add_input(input);
  for (const at::Tensor& part : parts) {
    call.add_output(part);
  }
  return issue_gathering(std::move(call),
                         {c10d::OpType::ALLGATHER, "closeranks:all_gather", options.timeout, options.asyncOp}, parts,
                         [parts, input](std::size_t rank) {
                           const at::AutoDispatchBelowADInplaceOrView guard;
                           parts[rank].copy_(input.view_as(parts[rank]));
                         });
}

CloseranksBackend::WorkPointer CloseranksBackend::all_gather_single(at::Tensor& output, at::Tensor& input,
                                                                    const c10d::AllgatherOptions& options) {
  check_whole(output, input, getSize(), "all_gather_single");
  TensorCall call(OpKind::all_gather, "all_gather_single");
  call.move_type(input.scalar_type());
  call.add_input(input);
  call.add_output(output);
  return issue_gathering(
      std::move(call), {c10d::OpType::_ALLGATHER_BASE, "closeranks:_all_gather_base", options.timeout, options.asyncOp},
      {output});
}

CloseranksBackend::WorkPointer CloseranksBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  if (inputs.empty() || outputs.size() != static_cast<std::size_t>(getSize())) {
    throw_invalid_call("all_gather_coalesced needs tensors, and one list of outputs per rank");
  }
  TensorCall call(OpKind::all_gather, "all_gather_coalesced");
  call.move_type(inputs.front().scalar_type());
  check_same_type(inputs, inputs.front().scalar_type(), "all_gather_coalesced");
  for (const at::Tensor& input : inputs) {
    call.add_input(input);
  }
  Tensors flat;
  for (const Tensors& of_rank : outputs) {
    if (of_rank.size() != inputs.size()) {
      throw_invalid_call("all_gather_coalesced needs one output per input in the list of every rank");
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      check_parts({of_rank[i]}, inputs[i], 1, "all_gather_coalesced");
      call.add_output(of_rank[i]);
      flat.push_back(of_rank[i]);
    }
  }
  return issue_gathering(std::move(call),
                         {c10d::OpType::ALLGATHER_COALESCED, "closeranks:all_gather", options.timeout, options.asyncOp},
                         std::move(flat));
}

CloseranksBackend::WorkPointer CloseranksBackend::all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                                                              const c10d::AllgatherOptions& options) {
  if (inputs.empty() || outputs.size() != inputs.size()) {
    throw_invalid_call("all_gather_single_coalesced needs one output per input, and at least one");
  }
  TensorCall call(OpKind::all_gather, "all_gather_single_coalesced");
  const at::ScalarType type = inputs.front().scalar_type();
  check_same_type(inputs, type, "all_gather_single_coalesced");
  call.move_type(type);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_whole(outputs[i], inputs[i], getSize(), "all_gather_single_coalesced");
    call.add_input(inputs[i]);
  }
  call.add_outputs_by_part(outputs, getSize());
  return issue_gathering(std::move(call),
                         {c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED, "closeranks:all_gather_into_tensor_coalesced",
                          options.timeout, options.asyncOp},
                         outputs);
}

CloseranksBackend::WorkPointer CloseranksBackend::gather(TensorLists& outputs, Tensors& inputs,
                                                         const c10d::GatherOptions& options) {
  const at::Tensor& input = only_one(inputs, "gather");
  TensorCall call(OpKind::gather, "gather");
  call.call().root = checked_rank(options.rootRank, "gather");
  call.move_type(input.scalar_type());
  call.add_input(input);
  Tensors results;
  if (call.call().root == communicator_->rank()) {
    results = only_list(outputs, "gather");
    check_parts(results, input, getSize(), "gather");
    for (const at::Tensor& part : results) {
      call.add_output(part);
    }
  } else if (!outputs.empty()) {
    throw_invalid_call("gather takes outputs on its root only");
  }
  return issue_gathering(std::move(call), {c10d::OpType::GATHER, "closeranks:gather", options.timeout, options.asyncOp},
                         std::move(results));
}

CloseranksBackend::WorkPointer CloseranksBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                                const c10d::GatherOptions& options) {
  TensorCall call(OpKind::gather, "gather_single");
  call.call().root = checked_rank(options.rootRank, "gather_single");
  call.move_type(input.scalar_type());
  call.add_input(input);
  Tensors results;
  if (call.call().root == communicator_->rank()) {
    check_whole(output, input, getSize(), "gather_single");
    call.add_output(output);
    results.push_back(output);
  }
  return issue_gathering(std::move(call), {c10d::OpType::GATHER, "closeranks:gather", options.timeout, options.asyncOp},
                         std::move(results));
}

CloseranksBackend::WorkPointer CloseranksBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                          const c10d::ScatterOptions& options) {
  const at::Tensor& output = only_one(outputs, "scatter");
  TensorCall call(OpKind::scatter, "scatter");
  call.call().root = checked_rank(options.rootRank, "scatter");
  call.move_type(output.scalar_type());
  if (call.call().root == communicator_->rank()) {
    const Tensors& parts = only_list(inputs, "scatter");
    check_parts(parts, output, getSize(), "scatter");
    for (const at::Tensor& part : parts) {
      call.add_input(part);
    }
  } else if (!inputs.empty()) {
    throw_invalid_call("scatter takes inputs on its root only");
  }
  call.add_output(output);
  return issue(std::move(call), {c10d::OpType::SCATTER, "closeranks:scatter", options.timeout, options.asyncOp},
               outputs);
}

CloseranksBackend::WorkPointer CloseranksBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                                 const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only_one(outputs, "reduce_scatter");
  const Tensors& parts = only_list(inputs, "reduce_scatter");
  check_parts(parts, output, getSize(), "reduce_scatter");
  TensorCall call(OpKind::reduce_scatter, "reduce_scatter");
  call.reduce_type(output.scalar_type(), options.reduceOp);
  for (const at::Tensor& part : parts) {
    call.add_input(part);
  }
  call.add_output(output);
  return issue(std::move(call),
               {c10d::OpType::REDUCE_SCATTER, "closeranks:reduce_scatter", options.timeout, options.asyncOp}, outputs);
}

CloseranksBackend::WorkPointer CloseranksBackend::reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                                                        const c10d::ReduceScatterOptions& options) {
  check_whole(input, output, getSize(), "reduce_scatter_single");
  TensorCall call(OpKind::reduce_scatter, "reduce_scatter_single");
  call.reduce_type(output.scalar_type(), options.reduceOp);
  call.add_input(input);
  call.add_output(output);
  return issue(
      std::move(call),
      {c10d::OpType::_REDUCE_SCATTER_BASE, "closeranks:_reduce_scatter_base", options.timeout, options.asyncOp},
      {output});
}

CloseranksBackend::WorkPointer CloseranksBackend::reduce_scatter_single_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  if (outputs.empty() || outputs.size() != inputs.size()) {
    throw_invalid_call("reduce_scatter_single_coalesced needs one output per input, and at least one");
  }
  TensorCall call(OpKind::reduce_scatter, "reduce_scatter_single_coalesced");
  const at::ScalarType type = outputs.front().scalar_type();
  check_same_type(outputs, type, "reduce_scatter_single_coalesced");
  call.reduce_type(type, options.reduceOp);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_whole(inputs[i], outputs[i], getSize(), "reduce_scatter_single_coalesced");
  }
  call.add_inputs_by_part(inputs, getSize());
  for (const at::Tensor& output : outputs) {
    call.add_output(output);
  }
  return issue(std::move(call),
               {c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "closeranks:reduce_scatter_tensor_coalesced",
                options.timeout, options.asyncOp},
               outputs);
}

CloseranksBackend::WorkPointer CloseranksBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  if (outputs.size() != ranks || inputs.size() != ranks) {
    throw_invalid_call("all_to_all takes one input and one output per rank: " + std::to_string(ranks) + " each, not " +
                       std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()));
  }
  TensorCall call(OpKind::all_to_all, "all_to_all");
  const at::ScalarType type = inputs.front().scalar_type();
  check_same_type(inputs, type, "all_to_all");
  check_same_type(outputs, type, "all_to_all");
  call.move_type(type);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    call.add_input(inputs[rank]);
    call.add_output(outputs[rank]);
    call.call().input_bytes.push_back(inputs[rank].nbytes());
    call.call().output_bytes.push_back(outputs[rank].nbytes());
  }
  return issue_gathering(std::move(call),
                         {c10d::OpType::ALLTOALL, "closeranks:all_to_all", options.timeout, options.asyncOp}, outputs);
}

CloseranksBackend::WorkPointer CloseranksBackend::all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                                    std::vector<std::int64_t>& output_sizes,
                                                                    std::vector<std::int64_t>& input_sizes,
                                                                    const c10d::AllToAllOptions& options) {
  TensorCall call(OpKind::all_to_all, "all_to_all_single");
  check_same_type({output}, input.scalar_type(), "all_to_all_single");
  call.move_type(input.scalar_type());
  call.add_input(input);
  call.add_output(output);
  call.call().input_bytes = bytes_by_rank(input, input_sizes, getSize(), "input");
  call.call().output_bytes = bytes_by_rank(output, output_sizes, getSize(), "output");
  return issue_gathering(std::move(call),
                         {c10d::OpType::ALLTOALL_BASE, "closeranks:all_to_all", options.timeout, options.asyncOp},
                         {output});
}

CloseranksBackend::WorkPointer CloseranksBackend::barrier(const c10d::BarrierOptions& options) {
  return issue(TensorCall(OpKind::barrier, "barrier"),
               {c10d::OpType::BARRIER, "closeranks:barrier", options.timeout, options.asyncOp}, {});
}

void CloseranksBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  const auto work =
      issue(TensorCall(OpKind::barrier, "monitored_barrier"),
            {c10d::OpType::BARRIER, "closeranks:monitored_barrier", options.timeout, options.asyncOp}, {});
  work->wait(std::chrono::milliseconds{0});
}

}  // namespace closeranks::torch_binding
