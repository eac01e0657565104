#include "arena_allocator.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/log.h"

namespace closeranks::torch_binding {
namespace {

// Above every allocator that torch brings: whatever was there before gets all that is not shared.
constexpr std::uint8_t priority = 255;

void release_block(void* data);

class ArenaAllocator final : public c10::Allocator {
 public:
  // `base` has no raw deleter only if it is no plain allocator; then its blocks pass through as they are.
  explicit ArenaAllocator(c10::Allocator* base) : base_(base), base_deleter_(base->raw_deleter()) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes >= least_shared_bytes) {
      if (void* data = allocate_shared(bytes); data != nullptr) {
        return {data, data, &release_block, c10::Device(c10::DeviceType::CPU)};
      }
    }
    if (base_deleter_ == nullptr) {
      return base_->allocate(bytes);
    }
    // One deleter for all blocks: that is what raw_deleter() promises.
    void* data = base_->raw_allocate(bytes);
    return {data, data, &release_block, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override {
    return base_deleter_ != nullptr ? &release_block : nullptr;
  }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  void release(void* data);
  void set_memory(const std::shared_ptr<SharedMemory>& memory);
  [[nodiscard]] std::shared_ptr<SharedMemory> memory();

  std::mutex& mutex() { return mutex_; }

 private:
  void* allocate_shared(std::size_t bytes);

  c10::Allocator* base_;
  c10::DeleterFnPtr base_deleter_;
  // Of the two below; held for a look-up only, and over every fork, so that it is free in the child.
  std::mutex mutex_;
  std::weak_ptr<SharedMemory> memory_;
  // A block's context is its address and nothing else, so whose it is stands here.
  std::unordered_map<void*, std::shared_ptr<SharedMemory>> blocks_;
  // All shared blocks ever given lie in [lowest_, highest_): the others, by far the most, need no look-up.
  std::atomic<std::uintptr_t> lowest_{UINTPTR_MAX};
  std::atomic<std::uintptr_t> highest_{0};
};

// Torch never frees an allocator: tensors refer to it until the process ends. Null until the first call of
// share_large_tensors.
std::atomic<ArenaAllocator*> installed{nullptr};

void release_block(void* data) { installed.load(std::memory_order_acquire)->release(data); }

void ArenaAllocator::set_memory(const std::shared_ptr<SharedMemory>& memory) {
  const std::lock_guard lock(mutex_);
  memory_ = memory;
}

std::shared_ptr<SharedMemory> ArenaAllocator::memory() {
  const std::lock_guard lock(mutex_);
  return memory_.lock();
}

void* ArenaAllocator::allocate_shared(std::size_t bytes) {
  std::shared_ptr<SharedMemory> memory = this->memory();
  void* data = memory ? memory->allocate(bytes) : nullptr;
  if (data == nullptr) {
    return nullptr;
  }
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  for (std::uintptr_t seen = lowest_; first < seen && !lowest_.compare_exchange_weak(seen, first);) {
  }
  for (std::uintptr_t seen = highest_; first >= seen && !highest_.compare_exchange_weak(seen, first + 1);) {
  }
  {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(data, std::move(memory));
  }
  c10::profiledCPUMemoryReporter().New(data, bytes);
  return data;
}

void ArenaAllocator::release(void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address >= lowest_.load(std::memory_order_relaxed) && address < highest_.load(std::memory_order_relaxed)) {
    std::unique_lock lock(mutex_);
    if (const auto found = blocks_.find(data); found != blocks_.end()) {
      const std::shared_ptr<SharedMemory> memory = std::move(found->second);
      blocks_.erase(found);
      lock.unlock();
      c10::profiledCPUMemoryReporter().Delete(data);
      memory->release(static_cast<std::byte*>(data));
      return;
    }
  }
  base_deleter_(data);
}

}  // namespace

bool sharing_is_wanted(bool coordinated) {
  const char* set = std::getenv("CLOSERANKS_SHARED_ARENAS");
  const std::string_view value = set == nullptr ? "" : set;
  if (value == "0" || value == "1") {
    return value == "1";
  }
  if (!value.empty()) {
    log::warning("CLOSERANKS_SHARED_ARENAS is '" + std::string(value) + "'; it may be 0 or 1, and is not heeded");
  }
  return coordinated;
}

void share_large_tensors(const std::shared_ptr<SharedMemory>& memory) {
  static ArenaAllocator* allocator = [] {
    auto* made = new ArenaAllocator(c10::GetAllocator(c10::DeviceType::CPU));
    installed.store(made, std::memory_order_release);
    ::pthread_atfork([] { installed.load()->mutex().lock(); }, [] { installed.load()->mutex().unlock(); },
                     [] { installed.load()->mutex().unlock(); });
    return made;
  }();
  allocator->set_memory(memory);
  c10::SetAllocator(c10::DeviceType::CPU, allocator, priority);
}

bool in_shared_memory(const at::Tensor& tensor) {
  ArenaAllocator* allocator = installed.load(std::memory_order_acquire);
  const std::shared_ptr<SharedMemory> memory = allocator == nullptr ? nullptr : allocator->memory();
  if (!memory || !tensor.has_storage()) {
    return false;
  }
  return tensor.storage().nbytes() > 0 && memory->contains(tensor.storage().data(), tensor.storage().nbytes());
}

SharedMemory::Usage shared_memory_usage() {
  ArenaAllocator* allocator = installed.load(std::memory_order_acquire);
  const std::shared_ptr<SharedMemory> memory = allocator == nullptr ? nullptr : allocator->memory();
  return memory ? memory->usage() : SharedMemory::Usage{};
}

void bind_shared_memory(pybind11::module_& module) {
  module.def("in_shared_memory", &in_shared_memory, pybind11::arg("tensor"));
  module.def("shared_memory_usage", [] {
    const SharedMemory::Usage usage = shared_memory_usage();
    pybind11::dict result;
    result["capacity_bytes"] = usage.capacity_bytes;
    result["in_use_bytes"] = usage.in_use_bytes;
    result["blocks"] = usage.blocks;
    result["held_bytes"] = usage.held_bytes;
    result["idle_bytes"] = usage.idle_bytes;
    result["resident_bytes"] = usage.resident_bytes;
    result["given_back_bytes"] = usage.given_back_bytes;
    result["retired_bytes"] = usage.retired_bytes;
    return result;
  });
}

}  // namespace closeranks::torch_binding
