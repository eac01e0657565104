#include "agent/out_of_memory.h"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace closeranks::agent {
namespace {

// From the kill to the death of a worker with much memory, on a busy machine.
constexpr std::chrono::seconds from_kill_to_death{5};

constexpr const char* machine_file = "/proc/vmstat";
// One control group: version 2, with one hierarchy; version 1, where memory has one of its own.
constexpr const char* version_2_root = "/sys/fs/cgroup";
constexpr const char* version_1_root = "/sys/fs/cgroup/memory";

}  // namespace

std::string out_of_memory_file(pid_t pid) {
  std::ifstream groups("/proc/" + std::to_string(pid) + "/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" of version 2, "5:memory:/path" of version 1.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string file;
    if (controllers == ",,") file = version_2_root + line.substr(second + 1) + "/memory.events";
    if (controllers.find(",memory,") != std::string::npos) {
      file = version_1_root + line.substr(second + 1) + "/memory.oom_control";
    }
    if (!file.empty() && out_of_memory_kills(file).has_value()) return file;
  }
  return machine_file;
}

std::optional<std::uint64_t> out_of_memory_kills(const std::string& file) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t count = 0;
    if (words >> name >> count && name == "oom_kill") return count;
  }
  return std::nullopt;
}

void OutOfMemoryWatch::look(pid_t pid, Clock::time_point now) {
  const std::string file = out_of_memory_file(pid);
  const std::optional<std::uint64_t> count = out_of_memory_kills(file);
  if (!count) return;
  if (file != file_) {
    // Moved to another group, or seen for the first time.
    file_ = file;
    before_ = last_ = *count;
    since_ = now;
  }
  if (*count != last_) {
    last_ = *count;
    since_ = now;
  }
  if (now - since_ > from_kill_to_death) before_ = last_;
}

std::optional<std::uint64_t> OutOfMemoryWatch::killed() const {
  if (file_.empty()) return std::nullopt;
  const std::optional<std::uint64_t> count = out_of_memory_kills(file_);
  return count && *count > before_ ? count : std::nullopt;
}

}  // namespace closeranks::agent
