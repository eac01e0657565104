// Tensor contents as symbols: half a part holds nothing known, one member's input, a reduction of inputs, zeros, or
// what its caller did with it after the op. A reduction of anything but matching inputs is spoiled for good.
#pragma once

#include <cstdint>
#include <string>

#include "closeranks/ids.h"

namespace closeranks::simulator {

// Packed: 4 bits of content, 12 of entry, 16 of cell, 32 of members. Cell: 2 * (part within the input) + half.
using Value = std::uint64_t;

enum class Content : std::uint8_t { unknown, input, reduced, zeros, spoiled, reused };

constexpr Value make_value(Content content, std::uint64_t sequence, std::uint32_t cell, std::uint32_t members) {
  return static_cast<Value>(content) << 60 | (sequence & 0xfff) << 48 | std::uint64_t{cell & 0xffff} << 32 | members;
}
constexpr Value input_of(Rank member, std::uint64_t sequence, std::uint32_t cell) {
  return make_value(Content::input, sequence, cell, std::uint32_t{1} << member.value());
}
constexpr Value zero_value = make_value(Content::zeros, 0, 0, 0);
constexpr Value spoiled_value = make_value(Content::spoiled, 0, 0, 0);
constexpr Value reused_value = make_value(Content::reused, 0, 0, 0);

constexpr Content content_of(Value value) { return static_cast<Content>(value >> 60); }
constexpr std::uint32_t members_of(Value value) { return static_cast<std::uint32_t>(value); }

// One more input into a running reduction; start with zero_value.
constexpr Value reduce_one(Value sum, Value next) {
  if (content_of(next) != Content::input || content_of(sum) == Content::spoiled) {
    return spoiled_value;
  }
  const Value as_reduced = make_value(Content::reduced, next >> 48 & 0xfff, next >> 32 & 0xffff, members_of(next));
  if (sum == zero_value) {
    return as_reduced;
  }
  const bool same_place = (sum ^ as_reduced) >> 32 == 0;
  const bool in_order = members_of(next) > members_of(sum);  // slot order: each bit above all earlier ones
  return same_place && in_order ? sum | members_of(next) : spoiled_value;
}

// "inputs of {0, 2} to entry 1, block 0.5".
std::string describe(Value value);

}  // namespace closeranks::simulator
