#include "agent/python_stack.h"

#include <signal.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "base/process_state.h"

namespace closeranks::agent {
namespace {

constexpr std::string_view frame_start = "  File \"";

// `  File "/a/train.py", line 17 in wait_for_data` -> "/a/train.py:17 in wait_for_data"
std::string short_frame(std::string_view line) {
  line.remove_prefix(frame_start.size());
  const std::size_t quote = line.rfind("\", line ");
  if (quote == std::string_view::npos) return std::string(line);
  return std::string(line.substr(0, quote)) + ":" + std::string(line.substr(quote + 8));
}

}  // namespace

int stack_signal() { return SIGRTMIN + 6; }

bool answers_stack_signal(pid_t pid) {
  const auto state = process_state(pid);
  if (!state.has_value() || state->letter == 'T' || state->letter == 't' || state->letter == 'Z') return false;
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  constexpr std::string_view caught = "SigCgt:";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(caught)) continue;
    const std::uint64_t mask = std::strtoull(line.c_str() + caught.size(), nullptr, 16);
    return (mask >> (stack_signal() - 1) & 1) != 0;
  }
  return false;
}

std::vector<std::string> recent_frames(std::string_view text, std::size_t most) {
  std::vector<std::string> frames;
  bool in_thread = false;
  bool current = false;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const bool names_current = line.starts_with("Current thread ");
    if (names_current || line.starts_with("Thread ") || line.starts_with("Stack (most recent call first)")) {
      // Its own thread comes last in faulthandler's list of all.
      if (current) break;
      in_thread = names_current || frames.empty();
      current = names_current;
      if (names_current) frames.clear();
    } else if (in_thread && line.starts_with(frame_start) && frames.size() < most) {
      frames.push_back(short_frame(line));
    }
  }
  return frames;
}

}  // namespace closeranks::agent
