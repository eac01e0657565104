#include "recorder/op_stack.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "recorder/ring_layout.h"

namespace closeranks::recorder {
namespace {

constexpr std::string_view before_file = "File \"";
constexpr std::string_view before_line = "\", line ";
constexpr std::string_view before_function = " in ";

}  // namespace

bool append_frame(std::string& stack, const Frame& frame) {
  std::string line(before_file);
  line.append(frame.file).append(before_line).append(std::to_string(frame.line));
  line.append(before_function).append(frame.function);
  if (stack.size() + 1 + line.size() > op_stack_max_bytes) return false;
  stack += (stack.empty() ? "" : "\n") + line;
  return true;
}

std::vector<Frame> frames_of(std::string_view stack) {
  std::vector<Frame> frames;
  while (!stack.empty()) {
    const std::size_t length = std::min(stack.find('\n'), stack.size());
    const std::string_view line = stack.substr(0, length);
    stack.remove_prefix(std::min(length + 1, stack.size()));
    const std::size_t end_of_file = line.rfind(before_line);
    if (!line.starts_with(before_file) || end_of_file == std::string_view::npos) continue;
    Frame frame;
    const std::string_view rest = line.substr(end_of_file + before_line.size());
    const auto [after, error] = std::from_chars(rest.data(), rest.data() + rest.size(), frame.line);
    const std::string_view function = rest.substr(static_cast<std::size_t>(after - rest.data()));
    if (error != std::errc() || !function.starts_with(before_function)) continue;
    frame.file = line.substr(before_file.size(), end_of_file - before_file.size());
    frame.function = function.substr(before_function.size());
    frames.push_back(std::move(frame));
  }
  return frames;
}

}  // namespace closeranks::recorder
