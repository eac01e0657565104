#include "trace/event_log.h"

#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

namespace closeranks::trace {

using nlohmann::json;
using recorder::Event;
using recorder::EventKind;
using recorder::Role;
using recorder::WorkerTrace;

namespace {

constexpr std::size_t longest_line = 64 * 1024;

int number_after(const std::string& text, std::string_view start) {
  int number = 0;
  if (text.starts_with(start)) std::from_chars(text.data() + start.size(), text.data() + text.size(), number);
  return number;
}

// A wait status as from waitpid, out of the agent's sentence.
std::uint64_t wait_status_of(const std::string& reason) {
  const int signal = number_after(reason, "killed by signal ");
  return static_cast<std::uint64_t>(signal != 0 ? signal : number_after(reason, "exited with status ") << 8);
}

}  // namespace

bool is_event_log(std::string_view head) {
  return head.starts_with('{') && head.substr(0, head.find('\n')).find("\"event\":") != std::string_view::npos;
}

WorkerTrace read_event_log(const std::string& path, std::int64_t unix_offset_ns) {
  WorkerTrace agent;
  agent.role = Role::agent;
  agent.file = path;
  agent.writer = "closeranks run --events";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const json entry = line.size() <= longest_line ? json::parse(line, nullptr, false) : json();
    if (!entry.is_object() || !entry.contains("event") || !entry["event"].is_string() || !entry.contains("time") ||
        !entry["time"].is_number()) {
      ++agent.damaged;
      continue;
    }
    const auto text = [&entry](const char* key) {
      return entry.contains(key) && entry[key].is_string() ? entry[key].get<std::string>() : std::string();
    };
    const std::string name = text("event");
    if (name == "job_started") agent.events.clear();
    if (agent.host.empty()) agent.host = text("host");
    Event event;
    event.at_ns = static_cast<std::int64_t>(entry["time"].get<double>() * 1e9) - unix_offset_ns;
    event.detail = text("reason");
    if (entry.contains("slot") && entry["slot"].is_number_unsigned()) {
      event.slots.emplace_back(entry["slot"].get<std::uint32_t>());
    }
    if (entry.contains("worker") && entry["worker"].is_number_unsigned()) {
      event.worker = WorkerId(entry["worker"].get<std::uint64_t>());
    }
    agent.last_written_ns = event.at_ns;
    if (name == "worker_exited") {
      event.kind = EventKind::worker_exited;
      event.number = wait_status_of(event.detail);
    } else if (name == "worker_excluded") {
      event.kind = EventKind::excluded;
      if (!text("detail").empty()) event.detail = text("detail");
    } else if (name == "worker_hung") {
      event.kind = EventKind::excluded;
    } else {
      continue;
    }
    agent.events.push_back(std::move(event));
  }
  return agent;
}

}  // namespace closeranks::trace
