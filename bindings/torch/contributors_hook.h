// DDP's communication hook of closeranks.data_parallel: averages a bucket over its contributors.
//
// In C++, so that no bucket of a backward pass takes the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

#include "backend.h"

namespace closeranks::torch_binding {

// With a hook DDP leaves the division to it. AVG divides by the number of contributors of each entry, so the slots a
// gradient comes from and its divisor are always the same (protocol rule 3).
//
// Each bucket's all_reduce carries a fingerprint of the bucket's layout. Members whose buckets hold other gradients, or
// the same in another order, would otherwise add up what does not belong together whenever the sizes agree; so they get
// a Mismatch.
class ContributorsHook final : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  // `parameters`: the reducer's, in its order. They are known by their identity, and must outlive the hook's reducer
  // (the model owns both).
  ContributorsHook(c10::intrusive_ptr<c10d::ProcessGroup> group, const std::vector<at::Tensor>& parameters)
      : CppCommHookInterface(std::move(group)) {
    for (const at::Tensor& parameter : parameters) {
      places_.emplace(parameter.unsafeGetTensorImpl(), places_.size());
    }
  }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> tensors{bucket.getBufferRef()};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    const FingerprintScope layout(fingerprint_of(bucket));
    return state_->allreduce(tensors, options)->getFuture();
  }

 private:
  // Of the bucket's number, and the places and sizes of what is in it. Never 0, which stands for no fingerprint.
  [[nodiscard]] std::uint64_t fingerprint_of(const c10d::GradBucket& bucket) const {
    std::uint64_t hash = mixed(0xcbf29ce484222325, bucket.getIndex());
    for (const at::Tensor& parameter : bucket.getParameters()) {
      const auto found = places_.find(parameter.unsafeGetTensorImpl());
      hash = mixed(hash, found == places_.end() ? places_.size() : found->second);
      hash = mixed(hash, static_cast<std::uint64_t>(parameter.numel()));
    }
    return hash | 1;
  }
  static std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    return hash ^ (hash >> 29);
  }

  std::unordered_map<const c10::TensorImpl*, std::size_t> places_;
};

}  // namespace closeranks::torch_binding
