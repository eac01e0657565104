// Memory of test calls: ordinary, or of the engine's shared arena.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "closeranks/engine.h"
#include "closeranks/shared_memory.h"
#include "processes.h"

namespace closeranks::communicator_test {

// Where a call's tensors lie. `mixed`: each member's inputs and outputs here or there, as chance has it.
enum class Memory : std::uint8_t { own, shared, mixed };
constexpr std::string_view name_of(Memory memory) {
  return memory == Memory::own ? "own" : memory == Memory::shared ? "shared" : "mixed";
}
// `number`: of the tensor, for mixed.
inline bool is_shared(Memory memory, std::uint32_t rank, std::uint64_t number) {
  const std::uint64_t mixed = (number * 0x9e3779b97f4a7c15 + rank * 0xc2b2ae3d27d4eb4f) >> 40;
  return memory == Memory::shared || (memory == Memory::mixed && mixed % 2 == 0);
}

template <class T>
class Tensor {
 public:
  // `count` elements, all `fill`. `skew` elements in front of the first make it begin in the middle of its block.
  Tensor(const Engine& engine, bool shared, std::uint64_t count, T fill = T{}, std::uint64_t skew = 0) : count_(count) {
    if (shared && count > 0) {
      memory_ = engine.shared_memory();
      block_ = memory_->allocate((count + skew) * sizeof(T));
      require(block_ != nullptr, "no shared memory for a tensor of " + std::to_string(count));
      data_ = reinterpret_cast<T*>(block_) + skew;
    } else {
      owned_.resize(count + skew);
      data_ = owned_.data() + skew;
    }
    std::fill_n(data_, count, fill);
  }
  ~Tensor() {
    if (block_ != nullptr) memory_->release(block_);
  }
  Tensor(Tensor&& other) noexcept
      : memory_(std::move(other.memory_)),
        block_(std::exchange(other.block_, nullptr)),
        owned_(std::move(other.owned_)),
        data_(other.data_),
        count_(other.count_) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor& operator=(Tensor&&) = delete;

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] std::uint64_t size() const { return count_; }
  T& operator[](std::uint64_t i) { return data_[i]; }
  const T& operator[](std::uint64_t i) const { return data_[i]; }
  // `count` elements from `first` on; all of them.
  [[nodiscard]] Buffer part(std::uint64_t first, std::uint64_t count) { return {data_ + first, count * sizeof(T)}; }
  [[nodiscard]] Buffer buffer() { return part(0, count_); }

 private:
  std::shared_ptr<SharedMemory> memory_;
  std::byte* block_ = nullptr;
  std::vector<T> owned_;
  T* data_ = nullptr;
  std::uint64_t count_ = 0;
};

}  // namespace closeranks::communicator_test
