// Shows an error that several workers have in common once. Python's tracebacks are held back until they are whole; the
// same one from other workers is then told in one line instead of shown again. Pure; time is an argument. Everything
// else passes through at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "closeranks/ids.h"

namespace closeranks::agent {

// One line for the user. `slot` none: a line of the agent itself.
struct ShownLine {
  std::optional<Slot> slot;
  int stream = 2;  // 1 stdout, 2 stderr
  std::string text;
  friend bool operator==(const ShownLine&, const ShownLine&) = default;
};

class TracebackFilter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Lines = std::vector<ShownLine>;

  // A traceback is whole when nothing followed its error line for this long, ...
  static constexpr std::chrono::milliseconds quiet{100};
  // ... or nothing at all came for this long (python writes line by line, and cores may be busy), ...
  static constexpr std::chrono::milliseconds patience{2000};
  // ... or this long after its error line, whatever follows, ...
  static constexpr std::chrono::milliseconds longest{500};
  // ... or at this many lines.
  static constexpr std::size_t most_lines = 400;
  // So long the first of several equal tracebacks waits for the others.
  static constexpr std::chrono::milliseconds gather{400};
  // Different errors remembered; the oldest is forgotten first.
  static constexpr std::size_t most_remembered = 256;

  // One line of a worker's stream. Returns what is to be shown now, in order.
  Lines line(Slot slot, int stream, std::string_view text, Time now);
  // The worker's stream has ended: its last traceback is whole.
  Lines ended(Slot slot, int stream, Time now);
  // Call at next_tick() at the latest.
  Lines tick(Time now);
  [[nodiscard]] std::optional<Time> next_tick() const;
  // Shows all that is held.
  Lines finish(Time now);

 private:
  struct Block {
    std::vector<std::string> lines;
    bool error_seen = false;  // the line that names the exception
    Time last;
    std::optional<Time> error_at;
  };
  struct Remembered {
    std::string key;
    Slot first;
    int stream = 2;
    std::vector<std::string> lines;
    std::vector<Slot> others;  // that showed the same
    std::size_t others_told = 0;
    bool shown = false;
    Time due;  // when to show it, or to tell of the others
  };
  void close(Slot slot, int stream, Block block, Time now, Lines& shown);
  void show(Remembered& error, Lines& shown);
  void flush_due(Time now, bool all, Lines& shown);

  std::map<std::pair<Slot, int>, Block> open_;
  std::vector<Remembered> errors_;
};

}  // namespace closeranks::agent
