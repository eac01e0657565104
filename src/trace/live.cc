#include "trace/live.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

namespace closeranks::trace {

using recorder::Event;
using recorder::EventKind;
using recorder::Role;
using recorder::WorkerTrace;

namespace {

// A process that reads from a disk is in uninterruptible sleep for a moment: only one that stays there is in trouble.
constexpr int looks = 3;
constexpr auto between_looks = std::chrono::milliseconds(20);
// The kernel tells a process's start no more precisely.
constexpr std::int64_t tick_ns = 10'000'000;

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string this_host() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

// Its state letter; 0: there is no such process.
char state_of(std::uint32_t pid) {
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '\0' : stat[end + 2];
}

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

// A field of /proc/PID/stat after the state, which is the third; nullopt: the process is gone.
std::optional<std::int64_t> field_of(std::uint32_t pid, int wanted) {
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end = stat.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(end + 1));
  std::string skipped;
  for (int field = 3; field < wanted; ++field) fields >> skipped;
  std::int64_t value = 0;
  return fields >> value ? std::optional(value) : std::nullopt;
}

// The kernel is taking it down, which takes a while where there is much memory: it is exiting, or will never return
// from the kernel to its program.
bool is_ending(std::uint32_t pid) {
  constexpr std::int64_t exiting = 0x4;  // PF_EXITING, in field 9
  if ((field_of(pid, 9).value_or(exiting) & exiting) != 0) return true;
  const std::string status = read_text("/proc/" + std::to_string(pid) + "/status");
  const std::size_t pending = status.find("SigPnd:");
  if (pending == std::string::npos) return true;
  constexpr std::uint64_t kill_bit = std::uint64_t{1} << (SIGKILL - 1);
  return (std::strtoull(status.c_str() + pending + sizeof("SigPnd:"), nullptr, 16) & kill_bit) != 0;
}

// When the process began, CLOCK_MONOTONIC; nullopt: it is gone.
std::optional<std::int64_t> start_ns(std::uint32_t pid) {
  // Ticks since boot, suspended time included.
  const auto ticks = field_of(pid, 22);
  if (!ticks.has_value()) return std::nullopt;
  return *ticks * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)) - (clock_ns(CLOCK_BOOTTIME) - monotonic_ns());
}

// A pid may be another process's by now: one that began after the file's last word. Nothing is read that takes a lock
// of the process's (its maps, say): one that hangs in the kernel may hold it for ever.
std::optional<bool> is_running(const WorkerTrace& worker) {
  char state = state_of(worker.pid);
  for (int look = 1; look < looks && state == 'D' && is_ending(worker.pid); ++look) {
    std::this_thread::sleep_for(between_looks);
    state = state_of(worker.pid);
  }
  if (state == '\0' || state == 'Z' || state == 'X') return false;
  // One that hangs in the kernel does not end, whatever it was sent.
  if (state != 'D' && is_ending(worker.pid)) return false;
  const auto start = start_ns(worker.pid);
  if (!start.has_value()) return false;
  if (worker.last_written_ns == 0) return std::nullopt;
  return *start <= worker.last_written_ns - worker.clock_offset_ns + tick_ns;
}

std::string trouble_of(std::uint32_t pid) {
  char state = state_of(pid);
  if (state == 'T') return "stopped (T)";
  for (int look = 1; look < looks && state == 'D'; ++look) {
    std::this_thread::sleep_for(between_looks);
    state = state_of(pid);
  }
  if (state != 'D') return "";
  const std::string call = trimmed(read_text("/proc/" + std::to_string(pid) + "/wchan"));
  return "in the kernel: " + (call.empty() || call == "0" ? "it does not say where" : call);
}

}  // namespace

void look_at_processes(recorder::JobTrace& job) {
  const std::string boot = trimmed(read_text("/proc/sys/kernel/random/boot_id"));
  const std::string host = this_host();
  WorkerTrace observer;
  observer.role = Role::agent;
  observer.file = "/proc";
  observer.writer = "closeranks trace";
  observer.host = host;
  for (WorkerTrace& worker : job.workers) {
    // Another container of this machine has the same boot and other pids; its host's name tells.
    if (worker.pid == 0 || boot.empty() || worker.boot_id != boot || worker.host != host) continue;
    worker.running = is_running(worker);
    if (worker.running != true) continue;
    job.read_ns = monotonic_ns() + worker.clock_offset_ns;
    if (worker.role != Role::worker || !worker.slot.has_value()) continue;
    const std::string trouble = trouble_of(worker.pid);
    if (trouble.empty()) continue;
    Event event;
    event.kind = EventKind::peer_state;
    event.at_ns = job.read_ns;
    event.slots = {*worker.slot};
    event.worker = worker.worker;
    event.detail = trouble;
    observer.events.push_back(event);
  }
  observer.last_written_ns = job.read_ns;
  if (!observer.events.empty()) job.workers.push_back(std::move(observer));
}

}  // namespace closeranks::trace
