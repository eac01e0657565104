// A set of 64-bit hashes of states: open addressing, because a search asks it millions of times. Two states with one
// hash would be taken for one: at ten million states the chance of any is one in 300,000.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace closeranks::simulator {

class StateSet {
 public:
  // True when it was not in the set yet.
  bool insert(std::uint64_t hash) {
    if (2 * (size_ + 1) > slots_.size()) {
      grow();
    }
    const std::uint64_t stored = hash == empty ? 1 : hash;
    std::size_t at = place(stored);
    while (slots_[at] != empty) {
      if (slots_[at] == stored) {
        return false;
      }
      at = (at + 1) & (slots_.size() - 1);
    }
    slots_[at] = stored;
    ++size_;
    return true;
  }

 private:
  static constexpr std::uint64_t empty = 0;

  [[nodiscard]] std::size_t place(std::uint64_t hash) const {
    return static_cast<std::size_t>(hash * 0x9e3779b97f4a7c15 >> 20) & (slots_.size() - 1);
  }
  void grow() {
    std::vector<std::uint64_t> old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (const std::uint64_t hash : old) {
      if (hash != empty) {
        insert(hash);
      }
    }
  }

  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(1024);
  std::size_t size_ = 0;
};

}  // namespace closeranks::simulator
