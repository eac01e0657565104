#include "agent/log_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

namespace closeranks::agent {
namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = "running.lock";

std::string time_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &local);
  return text;
}

FileDescriptor take_lock(const fs::path& folder, int flags) {
  FileDescriptor lock(::open((folder / lock_name).c_str(), O_RDWR | O_CLOEXEC | flags, 0600));
  if (lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) lock.reset();
  return lock;
}

void remove_old(const fs::path& root) {
  std::vector<fs::path> jobs;
  std::error_code error;
  for (fs::directory_iterator entry(root, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (is_job_folder(entry->path().filename()) && entry->is_directory(error)) jobs.push_back(entry->path());
  }
  std::sort(jobs.begin(), jobs.end());
  const std::size_t surplus = jobs.size() > kept_jobs ? jobs.size() - kept_jobs : 0;
  for (std::size_t at = 0; at < surplus; ++at) {
    // A job without its lock file is one that another agent is making right now, or a remnant of one that failed to.
    const bool has_lock = fs::exists(jobs[at] / lock_name, error);
    const FileDescriptor lock = has_lock ? take_lock(jobs[at], 0) : FileDescriptor();
    if (lock.valid()) fs::remove_all(jobs[at], error);
  }
}

}  // namespace

bool is_job_folder(const std::string& name) {
  if (name.size() <= job_id_at || name[8] != '-' || name[15] != '-') return false;
  return std::all_of(name.begin(), name.begin() + 15, [](unsigned char c) { return std::isdigit(c) != 0 || c == '-'; });
}

bool is_running(const std::string& folder) {
  const fs::path path(folder);
  std::error_code error;
  return fs::exists(path / lock_name, error) && !take_lock(path, 0).valid();
}

std::string default_log_root() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/') {
    return std::string(state) + "/closeranks";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.local/state/closeranks" : "";
}

Result<LogFolder> make_log_folder(const std::string& root, const std::string& job, bool prune) {
  std::error_code error;
  fs::path folder = fs::absolute(root, error) / (time_stamp() + "-" + job);
  fs::create_directories(folder.parent_path(), error);
  if (error || ::mkdir(folder.c_str(), 0700) != 0) {
    const std::string why = error ? error.message() : std::strerror(errno);
    return Status(Fault::system, Move::fix_call, "cannot make the log folder " + folder.string() + ": " + why);
  }
  LogFolder result{folder.string(), take_lock(folder, O_CREAT)};
  if (prune) remove_old(folder.parent_path());
  return result;
}

}  // namespace closeranks::agent
