#include "trace/sentences.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace closeranks::trace {

std::string name_worker(Slot slot, const recorder::WorkerTrace* worker) {
  std::string text = "slot " + std::to_string(slot.value());
  if (worker == nullptr) return text;
  std::string details;
  if (worker->worker.has_value()) details = "worker " + std::to_string(worker->worker->value());
  if (!worker->host.empty()) details += (details.empty() ? "on " : " on ") + worker->host;
  if (worker->pid != 0) details += (details.empty() ? "pid " : ", pid ") + std::to_string(worker->pid);
  return details.empty() ? text : text + " (" + details + ")";
}

std::string name_worker(const JobIndex& index, Slot slot) { return name_worker(slot, index.last(slot)); }

std::string name_op(const std::string& kind, std::uint64_t sequence, const std::string& group) {
  return (kind.empty() ? "op" : kind) + " #" + std::to_string(sequence) + " of group '" + group + "'";
}

std::string describe(const recorder::OpCall& call) {
  if (call.kind == "barrier") return call.kind;
  std::string inner;
  const auto add = [&inner](const std::string& text, const char* between) {
    if (!text.empty()) inner += (inner.empty() ? "" : between) + text;
  };
  add(call.dtype, ", ");
  add(call.shape, " ");
  add(call.reduce, ", ");
  if (call.root.has_value()) {
    add((is_point_to_point(call) ? "peer " : "root ") + std::to_string(call.root->value()), ", ");
  }
  return call.kind + "(" + inner + ")";
}

std::string duration(std::int64_t ns) {
  char text[32];
  const auto value = static_cast<double>(std::max<std::int64_t>(ns, 0));
  if (value < 1e6) {
    std::snprintf(text, sizeof text, "%.0f us", value / 1e3);
  } else if (value < 1e9) {
    std::snprintf(text, sizeof text, "%.0f ms", value / 1e6);
  } else if (value < 120e9) {
    std::snprintf(text, sizeof text, "%.1f s", value / 1e9);
  } else {
    std::snprintf(text, sizeof text, "%.0f min", value / 60e9);
  }
  return text;
}

std::string name_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string count_of(std::uint64_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

std::string last_line(const std::string& text) {
  std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "";
  const std::size_t start = text.rfind('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1,
                     end - (start == std::string::npos ? 0 : start + 1) + 1);
}

std::string innermost(const std::string& stack) {
  const std::size_t start = stack.find("File ");
  if (start == std::string::npos) return "";
  return stack.substr(start, stack.find('\n', start) - start);
}

std::string at_its_line(const recorder::OpTrace& op) {
  const std::string frame = innermost(op.stack);
  return frame.empty() ? "" : " at " + frame;
}

}  // namespace closeranks::trace
