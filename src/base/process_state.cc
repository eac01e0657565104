#include "base/process_state.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "base/system_error.h"

namespace closeranks {
namespace {

constexpr std::uint64_t kill_bit = 1ull << (SIGKILL - 1);

// A file of /proc in one piece; nullopt when it, or its process, is gone.
std::optional<std::string> read_proc(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  if (!file || !(content << file.rdbuf())) {
    return std::nullopt;
  }
  return content.str();
}

std::string proc(pid_t pid) { return "/proc/" + std::to_string(pid); }

// The numbers that name the entries of a folder of /proc: processes, or threads of one.
std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> numbers;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename();
    pid_t number = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failed == std::errc() && end == name.data() + name.size()) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

std::optional<ProcessState> parse_stat(const std::string& text) {
  // pid (command) letter parent ...: the command may itself contain spaces and parentheses.
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) {
    return std::nullopt;
  }
  ProcessState state;
  state.command = text.substr(open + 1, close - open - 1);
  std::istringstream rest(text.substr(close + 1));
  rest >> state.letter >> state.parent;
  // Fields 5 to 8 lie between the parent (4) and the flags (9), 10 to 21 between those and the start time (22).
  std::string skipped;
  for (int field = 5; field < 9; ++field) {
    rest >> skipped;
  }
  std::uint64_t flags = 0;
  rest >> flags;
  constexpr std::uint64_t exiting_flag = 0x4;  // PF_EXITING
  state.exiting = (flags & exiting_flag) != 0;
  for (int field = 10; field < 22; ++field) {
    rest >> skipped;
  }
  rest >> state.start_ticks;
  return rest ? std::optional(state) : std::nullopt;
}

// A hexadecimal signal mask of /proc/.../status, 0 when absent.
std::uint64_t signal_mask(const std::string& status, std::string_view field) {
  const std::size_t at = status.find(field);
  if (at == std::string::npos) {
    return 0;
  }
  const std::size_t digits = status.find_first_not_of(" \t", at + field.size());
  std::uint64_t mask = 0;
  std::from_chars(status.data() + digits, status.data() + status.size(), mask, 16);
  return mask;
}

}  // namespace

Result<FileDescriptor> open_process(pid_t pid) {
  FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (process.valid()) {
    return process;
  }
  if (errno == ESRCH) {
    return Status(Fault::peer_lost, Move::repair_group, "there is no process " + std::to_string(pid));
  }
  return system_error("cannot open process " + std::to_string(pid), errno);
}

Status send_signal(const FileDescriptor& process, int signal) {
  if (::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) == 0 || errno == ESRCH) {
    return {};
  }
  return system_error("cannot send signal " + std::to_string(signal), errno);
}

bool has_ended(const FileDescriptor& process) {
  pollfd wanted{process.get(), POLLIN, 0};
  return ::poll(&wanted, 1, 0) > 0;
}

bool all_threads_without_memory(pid_t pid) {
  for (const pid_t thread : numbers_in(proc(pid) + "/task")) {
    const auto statm = read_proc(proc(pid) + "/task/" + std::to_string(thread) + "/statm");
    // The first number is the size of the address space; a thread that is gone has none either.
    if (statm.has_value() && !statm->empty() && !statm->starts_with("0 ")) {
      return false;
    }
  }
  return true;
}

std::optional<ProcessState> process_state(pid_t pid) {
  const auto text = read_proc(proc(pid) + "/stat");
  return text.has_value() ? parse_stat(*text) : std::nullopt;
}

bool is_ending(pid_t pid) {
  const auto state = process_state(pid);
  const auto status = read_proc(proc(pid) + "/status");
  if (!state.has_value() || !status.has_value() || state->exiting) {
    return true;
  }
  return (signal_mask(*status, "SigPnd:") & kill_bit) != 0;
}

bool is_unkillable(pid_t pid) {
  const std::vector<pid_t> threads = numbers_in(proc(pid) + "/task");
  const auto stuck = [pid](pid_t thread) {
    const std::string folder = proc(pid) + "/task/" + std::to_string(thread);
    const auto stat = read_proc(folder + "/stat");
    const auto status = read_proc(folder + "/status");
    if (!stat.has_value() || !status.has_value()) {
      return true;  // this thread has ended
    }
    const auto state = parse_stat(*stat);
    const std::uint64_t pending = signal_mask(*status, "SigPnd:") | signal_mask(*status, "ShdPnd:");
    return state.has_value() && state->letter == 'D' && (pending & kill_bit) != 0;
  };
  return !threads.empty() && std::all_of(threads.begin(), threads.end(), stuck);
}

std::string waiting_channel(pid_t pid) {
  const std::string channel = read_proc(proc(pid) + "/wchan").value_or("");
  return channel == "0" ? "" : channel;
}

std::string describe_process(pid_t pid) {
  const auto state = process_state(pid);
  if (!state.has_value()) {
    return "dead";
  }
  switch (state->letter) {
    case 'Z':
    case 'X':
      return "dead";
    case 'R':
      return "running (R)";
    case 'T':
      return "stopped (T)";
    case 't':
      return "traced (t)";
    case 'D':
      break;
    default:
      return std::string("sleeping (") + state->letter + ")";
  }
  const std::string channel = waiting_channel(pid);
  if (!channel.empty()) {
    return "in the kernel: " + channel;
  }
  // "0 0x3 ...": the number of the system call; "running" and "-1 ..." are none.
  const std::string call = read_proc(proc(pid) + "/syscall").value_or("");
  const bool known = !call.empty() && call.front() >= '0' && call.front() <= '9';
  return known ? "in the kernel: system call " + call.substr(0, call.find(' ')) : "in the kernel (D)";
}

std::vector<pid_t> descendants_of(pid_t pid) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t candidate : numbers_in("/proc")) {
    if (const auto state = process_state(candidate); state.has_value() && state->letter != 'Z') {
      children.emplace(state->parent, candidate);
    }
  }
  std::vector<pid_t> found;
  std::size_t looked_at = 0;
  for (pid_t parent = pid;; parent = found[looked_at++]) {
    const auto [from, until] = children.equal_range(parent);
    for (auto child = from; child != until; ++child) {
      found.push_back(child->second);
    }
    if (looked_at == found.size()) {
      return found;
    }
  }
}

std::string describe_wait_status(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    const char* name = ::sigabbrev_np(signal);
    return "killed by signal " + std::to_string(signal) + (name != nullptr ? " (SIG" + std::string(name) + ")" : "");
  }
  if (WIFEXITED(wait_status)) {
    return "exited with status " + std::to_string(WEXITSTATUS(wait_status));
  }
  return "ended with wait status " + std::to_string(wait_status);
}

}  // namespace closeranks
