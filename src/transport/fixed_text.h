// Text in a fixed field of a shared layout: cut to fit, always zero-terminated; read without trusting the terminator.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace closeranks::transport {

template <std::size_t size>
void write_fixed_text(std::array<char, size>& field, std::string_view text) {
  field.fill('\0');
  text.copy(field.data(), size - 1);
}

template <std::size_t size>
std::string read_fixed_text(const std::array<char, size>& field) {
  return {field.begin(), std::find(field.begin(), field.end(), '\0')};
}

// For log lines: what a stranger wrote, without control characters.
inline std::string printable_text(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char letter) { return letter < 0x20 || letter >= 0x7f; }, '?');
  return text;
}

}  // namespace closeranks::transport
