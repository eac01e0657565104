#include "recorder/ring_text.h"

#include <cstddef>
#include <cstdint>

namespace closeranks::recorder {
namespace {

// Bytes of the sound UTF-8 character at the start of `text`, which is not empty; 0: there is none.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than need be, surrogates, past the last character.
  const std::uint8_t second = byte(1);
  const bool unsound = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                       (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return unsound ? 0 : bytes;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const auto first = static_cast<std::uint8_t>(text.front());
    const bool control = (first < 0x20 && first != '\t' && first != '\n') || first == 0x7f;
    if (bytes == 0 || control) {
      clean += '?';
      text.remove_prefix(1);
    } else {
      clean.append(text.substr(0, bytes));
      text.remove_prefix(bytes);
    }
  }
  return clean;
}

}  // namespace closeranks::recorder
