// send, recv, and recv from anybody.
#include <utility>

#include "backend.h"

namespace closeranks::torch_binding {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds unset_timeout{-1};

TensorCall transfer(OpKind kind, const at::Tensor& tensor, Rank peer, std::int32_t tag) {
  TensorCall call(kind, kind == OpKind::send ? "send" : "recv");
  call.call().root = peer;
  call.call().tag = tag;
  call.move_type(tensor.scalar_type());
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
  return issue(transfer(OpKind::send, tensor, checked_rank(destination, "send"), tag),
               {c10d::OpType::SEND, "closeranks:send", unset_timeout}, tensors);
}

CloseranksBackend::WorkPointer CloseranksBackend::recv(Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = only_one(tensors, "recv");
  return issue(transfer(OpKind::recv, tensor, checked_rank(source, "recv"), tag),
               {c10d::OpType::RECV, "closeranks:recv", unset_timeout}, tensors);
}

CloseranksBackend::WorkPointer CloseranksBackend::recvAnysource(Tensors& tensors, int tag) {
  TensorCall call = transfer(OpKind::recv, only_one(tensors, "recv"), Rank(0), tag);
  call.call().any_source = true;
  return issue(std::move(call), {c10d::OpType::RECVANYSOURCE, "closeranks:recvAnySource", unset_timeout}, tensors);
}

}  // namespace closeranks::torch_binding
