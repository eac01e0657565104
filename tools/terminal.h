// A terminal that shows one screen, drawn again and again, until a key or a signal ends it.
#pragma once

#include <termios.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "base/file_descriptor.h"

namespace closeranks::tools {

struct TerminalSize {
  std::size_t columns = 80;
  std::size_t lines = 24;
};

// Takes stdin and stdout as they are found, and gives them back so.
class Terminal {
 public:
  // Blocks SIGINT, SIGTERM, SIGHUP and SIGWINCH for this thread.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  [[nodiscard]] static bool is_one();
  [[nodiscard]] static TerminalSize size();
  // Replaces what it shows. `lines`: no longer than it is wide, each. False when nobody reads any more.
  bool show(const std::vector<std::string>& lines);

  enum class Wish { nothing, draw_again, end };
  // Waits for a key, a new size, a signal, or the time.
  Wish wait(std::chrono::milliseconds time);

 private:
  FileDescriptor signals_;
  termios before_{};
  bool has_keys_ = false;  // stdin is a terminal, too
};

}  // namespace closeranks::tools
