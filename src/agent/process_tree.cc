#include "agent/process_tree.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "base/process_state.h"

namespace closeranks::agent {
namespace {

// Deeper chains of forks than this are no training script.
constexpr int max_ancestors = 1000;

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The worker named by the environment that `pid` was started with.
std::optional<WorkerId> worker_in_environment(pid_t pid) {
  const auto environment = read_file("/proc/" + std::to_string(pid) + "/environ");
  constexpr std::string_view name = "CLOSERANKS_WORKER=";
  if (!environment.has_value()) return std::nullopt;
  std::size_t at = environment->find(name);
  while (at != std::string::npos && at != 0 && (*environment)[at - 1] != '\0') at = environment->find(name, at + 1);
  if (at == std::string::npos) return std::nullopt;
  std::uint64_t worker = 0;
  const char* begin = environment->c_str() + at + name.size();
  const char* end = environment->c_str() + environment->size();
  if (std::from_chars(begin, end, worker).ec != std::errc()) return std::nullopt;
  return WorkerId(worker);
}

std::optional<WorkerId> owner_of(pid_t pid, const std::map<pid_t, WorkerId>& mains,
                                 const std::map<pid_t, pid_t>& parents) {
  pid_t ancestor = pid;
  for (int step = 0; step < max_ancestors; ++step) {
    const auto parent = parents.find(ancestor);
    if (parent == parents.end()) break;
    ancestor = parent->second;
    if (const auto main = mains.find(ancestor); main != mains.end()) return main->second;
  }
  if (const auto main = mains.find(::getpgid(pid)); main != mains.end()) return main->second;
  return worker_in_environment(pid);
}

}  // namespace

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

std::vector<TreeMember> tree_members(const std::map<pid_t, WorkerId>& mains) {
  std::vector<TreeMember> members;
  std::map<pid_t, pid_t> parents;
  for (const pid_t pid : descendants_of(::getpid())) {
    const auto state = process_state(pid);
    if (!state.has_value() || state->letter == 'Z' || state->letter == 'X') continue;
    parents[pid] = state->parent;
    if (mains.contains(pid)) continue;
    members.push_back({pid, state->start_ticks, WorkerId(), false});
  }
  for (TreeMember& member : members) {
    if (const auto owner = owner_of(member.pid, mains, parents); owner.has_value()) {
      member.worker = *owner;
      member.known = true;
    }
  }
  return members;
}

bool kill_member(const TreeMember& member) {
  auto process = open_process(member.pid);
  if (!process.ok()) return process.status().fault() == Fault::peer_lost;
  // The descriptor is of whoever has the pid now; the start time tells whether that is the one that was meant.
  const auto state = process_state(member.pid);
  if (!state.has_value() || state->start_ticks != member.start_ticks) return true;
  return send_signal(process.value(), SIGKILL).ok();
}

bool holds_segments(pid_t pid) {
  const auto maps = read_file("/proc/" + std::to_string(pid) + "/maps");
  if (!maps.has_value()) return process_state(pid).has_value();
  // A line is "begin-end rwxs offset device inode path". A private mapping (p in place of s) is a fork child's of its
  // parent's arena: what it writes there nobody else sees.
  constexpr std::string_view path = "/memfd:closeranks";
  for (std::size_t at = maps->find(path); at != std::string::npos; at = maps->find(path, at + 1)) {
    const std::size_t line = maps->rfind('\n', at) + 1;
    if (maps->find(' ', line) + 4 < at && (*maps)[maps->find(' ', line) + 4] == 's') return true;
  }
  return false;
}

}  // namespace closeranks::agent
