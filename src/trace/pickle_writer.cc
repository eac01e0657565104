#include "trace/pickle_writer.h"

#include <cstring>

namespace closeranks::trace {

void PickleWriter::integer(std::int64_t value) {
  char bytes[8];
  std::memcpy(bytes, &value, sizeof bytes);
  bytes_ += "\x8a\x08";  // LONG1 of eight bytes
  bytes_.append(bytes, sizeof bytes);
}

void PickleWriter::text(std::string_view value) {
  const auto length = static_cast<std::uint32_t>(value.size());
  char bytes[4];
  std::memcpy(bytes, &length, sizeof bytes);
  bytes_ += 'X';
  bytes_.append(bytes, sizeof bytes);
  bytes_.append(value);
}

void PickleWriter::pair_of_texts(std::string_view first, std::string_view second) {
  text(first);
  text(second);
  bytes_ += '\x86';
}

}  // namespace closeranks::trace
