// DDP's communication hook of closeranks.data_parallel: averages a bucket over its contributors.
//
// In C++, so that no bucket of a backward pass takes the GIL.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace closeranks::torch_binding {

// With a hook DDP leaves the division to it. AVG divides by the number of contributors of each entry, so the slots a
// gradient comes from and its divisor are always the same (protocol rule 3).
class ContributorsHook final : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> tensors{bucket.getBufferRef()};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    return state_->allreduce(tensors, options)->getFuture();
  }
};

}  // namespace closeranks::torch_binding
