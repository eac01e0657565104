#include "agent/line_cutter.h"

#include <algorithm>

namespace closeranks::agent {

void LineCutter::emit(const Take& take) {
  std::string_view line = pending_;
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (const std::size_t at = line.rfind('\r'); at != std::string_view::npos) line.remove_prefix(at + 1);
  take(line);
  pending_.clear();
}

void LineCutter::feed(std::string_view bytes, const Take& take) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const std::size_t until = std::min({newline, bytes.size(), max_bytes_ - pending_.size()});
    pending_.append(bytes.substr(0, until));
    bytes.remove_prefix(until);
    if (!bytes.empty() && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      emit(take);
    } else if (pending_.size() == max_bytes_) {
      emit(take);
    }
  }
}

void LineCutter::finish(const Take& take) {
  if (!pending_.empty()) emit(take);
}

std::string printable(std::string_view line) {
  std::string result;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const auto byte = static_cast<unsigned char>(line[at]);
    if (byte == 0x1b && at + 1 < line.size() && line[at + 1] == '[') {
      const std::size_t end = line.find_first_not_of("0123456789;", at + 2);
      if (end != std::string_view::npos && line[end] == 'm') {
        result.append(line.substr(at, end + 1 - at));
        at = end;
        continue;
      }
    }
    result.push_back((byte >= 0x20 && byte != 0x7f) || byte == '\t' ? line[at] : '?');
  }
  return result;
}

}  // namespace closeranks::agent
