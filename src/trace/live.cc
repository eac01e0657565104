#include "trace/live.h"

#include <unistd.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "base/process_state.h"

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

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::int64_t monotonic_ns() { return clock_ns(CLOCK_MONOTONIC); }

// When a process began, CLOCK_MONOTONIC. Its ticks count from boot, suspended time included.
std::int64_t start_ns(std::uint64_t ticks) {
  return static_cast<std::int64_t>(ticks) * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)) -
         (clock_ns(CLOCK_BOOTTIME) - monotonic_ns());
}

// A pid may be another process's by now: one that began after the file's last word. Nothing is read that takes a lock
// of the process's (its maps, say): one that hangs in the kernel may hold it for ever.
std::optional<bool> is_running(const WorkerTrace& worker) {
  const auto pid = static_cast<pid_t>(worker.pid);
  auto state = process_state(pid);
  for (int look = 1; look < looks && state.has_value() && state->letter == 'D' && is_ending(pid); ++look) {
    std::this_thread::sleep_for(between_looks);
    state = process_state(pid);
  }
  if (!state.has_value() || state->letter == 'Z' || state->letter == 'X') return false;
  // One that hangs in the kernel does not end, whatever it was sent.
  if (state->letter != 'D' && is_ending(pid)) return false;
  if (worker.last_written_ns == 0) return std::nullopt;
  return start_ns(state->start_ticks) <= worker.last_written_ns - worker.clock_offset_ns + tick_ns;
}

std::string trouble_of(pid_t pid) {
  const auto letter_now = [pid] {
    const auto state = process_state(pid);
    return state.has_value() ? state->letter : '\0';
  };
  char letter = letter_now();
  if (letter == 'T') return "stopped (T)";
  for (int look = 1; look < looks && letter == 'D'; ++look) {
    std::this_thread::sleep_for(between_looks);
    letter = letter_now();
  }
  if (letter != 'D') return "";
  const std::string channel = waiting_channel(pid);
  return "in the kernel: " + (channel.empty() ? "it does not say where" : channel);
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
    const std::string trouble = trouble_of(static_cast<pid_t>(worker.pid));
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
