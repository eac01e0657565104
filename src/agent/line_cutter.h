// Cuts a stream of bytes into whole lines of bounded length. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace closeranks::agent {

// Longer lines are passed on in pieces of this size, so that a worker that never writes a newline costs no memory.
inline constexpr std::size_t max_line_bytes = 64ull * 1024;

class LineCutter {
 public:
  using Take = std::function<void(std::string_view line)>;

  explicit LineCutter(std::size_t max_bytes = max_line_bytes) : max_bytes_(max_bytes) {}

  // Calls `take` for every line that `bytes` completes, without its newline. As on a terminal, what a carriage return
  // overwrote is not part of the line (progress bars), and one at the end is dropped.
  void feed(std::string_view bytes, const Take& take);
  // The stream has ended: what is left is a line.
  void finish(const Take& take);

 private:
  void emit(const Take& take);
  std::size_t max_bytes_;
  std::string pending_;
};

// For a terminal: control characters that could garble it become '?'; tabs and colour sequences (ESC [ ... m) stay.
std::string printable(std::string_view line);

}  // namespace closeranks::agent
