// send, recv, and all_to_all, which is made of them.
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "backend.h"
#include "failure.h"

namespace closeranks::torch_binding {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds unset_timeout{-1};
// Apart from any tag a user would choose.
constexpr std::int32_t all_to_all_tag = std::numeric_limits<std::int32_t>::min();

// The rows of `tensor` that each rank sends or receives: `sizes`, or equal parts when it is empty.
std::vector<at::Tensor> rows_by_rank(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes,
                                     std::int64_t ranks, const char* which) {
  const std::string op = std::string("all_to_all_single's ") + which;
  if (tensor.dim() == 0) {
    throw_invalid_call(op + " is a scalar; it needs a first dimension to cut");
  }
  const std::int64_t rows = tensor.size(0);
  if (sizes.empty()) {
    if (rows % ranks != 0) {
      throw_invalid_call(op + " has " + std::to_string(rows) + " rows, which " + std::to_string(ranks) +
                         " ranks cannot share equally; give split sizes");
    }
    return tensor.tensor_split(ranks);
  }
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    sum += size;
  }
  if (static_cast<std::int64_t>(sizes.size()) != ranks || sum != rows) {
    throw_invalid_call(op + " split sizes must be one per rank and add up to its " + std::to_string(rows) + " rows");
  }
  return tensor.split_with_sizes(sizes);
}

TensorCall transfer(OpKind kind, const char* name, const at::Tensor& tensor, Rank peer, std::int32_t tag) {
  TensorCall call(kind, name);
  call.call().root = peer;
  call.call().tag = tag;
  call.call().dtype = dtype_for_moving(tensor.scalar_type());
  if (kind == OpKind::send) {
    call.add_input(tensor);
  } else {
    call.add_output(tensor);
  }
  return call;
}

}  // namespace

CloseranksBackend::WorkPointer CloseranksBackend::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor& tensor = only_one(tensors, "send");
  return issue(transfer(OpKind::send, "send", tensor, checked_rank(destination, "send"), tag),
               {c10d::OpType::SEND, "closeranks:send", unset_timeout}, tensors);
}

CloseranksBackend::WorkPointer CloseranksBackend::recv(Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = only_one(tensors, "recv");
  return issue(transfer(OpKind::recv, "recv", tensor, checked_rank(source, "recv"), tag),
               {c10d::OpType::RECV, "closeranks:recv", unset_timeout}, tensors);
}

CloseranksBackend::WorkPointer CloseranksBackend::recvAnysource(Tensors& tensors, int tag) {
  TensorCall call = transfer(OpKind::recv, "recv", only_one(tensors, "recv"), Rank(0), tag);
  call.call().any_source = true;
  return issue(std::move(call), {c10d::OpType::RECVANYSOURCE, "closeranks:recvAnySource", unset_timeout}, tensors);
}

CloseranksBackend::WorkPointer CloseranksBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllToAllOptions& options) {
  const auto ranks = static_cast<std::size_t>(getSize());
  if (outputs.size() != ranks || inputs.size() != ranks) {
    throw_invalid_call("all_to_all takes one input and one output per rank: " + std::to_string(ranks) + " each");
  }
  const auto self = static_cast<std::size_t>(getRank());
  if (outputs[self].numel() != inputs[self].numel() || outputs[self].scalar_type() != inputs[self].scalar_type()) {
    throw_invalid_call("all_to_all's own part differs between input and output, in size or type");
  }
  const std::vector<Slot> present = communicator_->present();
  const std::set<Slot> there(present.begin(), present.end());
  const std::vector<Slot>& members = communicator_->options().members;
  std::vector<TensorCall> calls;
  for (std::size_t step = 1; step < ranks; ++step) {
    // In step k everyone sends to the k-th after it, so no rank has all others waiting for it.
    const std::size_t destination = (self + step) % ranks;
    const std::size_t source = (self + ranks - step) % ranks;
    if (there.contains(members[destination])) {
      calls.push_back(transfer(OpKind::send, "all_to_all", inputs[destination],
                               Rank(static_cast<std::uint32_t>(destination)), all_to_all_tag));
    }
    if (there.contains(members[source])) {
      calls.push_back(transfer(OpKind::recv, "all_to_all", outputs[source], Rank(static_cast<std::uint32_t>(source)),
                               all_to_all_tag));
    } else {
      const at::NoGradGuard guard;
      outputs[source].zero_();
    }
  }
  {
    const at::NoGradGuard guard;
    outputs[self].view(-1).copy_(inputs[self].reshape(-1));
  }
  return issue(std::move(calls), {c10d::OpType::ALLTOALL, "closeranks:all_to_all", options.timeout, options.asyncOp},
               outputs);
}

CloseranksBackend::WorkPointer CloseranksBackend::all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                                    std::vector<std::int64_t>& output_sizes,
                                                                    std::vector<std::int64_t>& input_sizes,
                                                                    const c10d::AllToAllOptions& options) {
  Tensors outputs = rows_by_rank(output, output_sizes, getSize(), "output");
  Tensors inputs = rows_by_rank(input, input_sizes, getSize(), "input");
  return alltoall(outputs, inputs, options);
}

}  // namespace closeranks::torch_binding
