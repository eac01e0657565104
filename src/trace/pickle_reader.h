// Python pickles of plain data, as torch's flight recorder writes them: read without executing anything. Whatever could
// construct an object or call a function is refused. No byte is trusted; memory stays within a small multiple of the
// input's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "closeranks/status.h"

namespace closeranks::trace {

class Pickle {
 public:
  enum class Type : std::uint8_t { none, boolean, integer, real, text, list, tuple, dict };
  using Index = std::uint32_t;

  struct Node {
    Type type = Type::none;
    std::int64_t integer = 0;  // and boolean
    double real = 0;
    std::string text;
    std::vector<Index> items;  // of a dict: key, value, key, value
  };

  [[nodiscard]] const Node& at(Index index) const { return nodes_.at(index); }
  [[nodiscard]] const Node& root() const { return nodes_.at(root_); }
  // A dict's value under a text key; null: it is no dict, or has no such key.
  [[nodiscard]] const Node* find(const Node& dict, std::string_view key) const;

 private:
  friend class PickleMachine;
  std::vector<Node> nodes_;
  Index root_ = 0;
};

// Fault::refused with a sentence: no pickle, cut, or one that is more than plain data.
Result<Pickle> read_pickle(std::span<const std::byte> bytes);

}  // namespace closeranks::trace
