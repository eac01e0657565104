#include "agent/temporary_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

namespace closeranks::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "closeranks-";
constexpr std::string_view letters = "XXXXXX";
// Another agent makes its folder before it locks it.
constexpr std::time_t fresh_seconds = 60;

FileDescriptor lock_of(const fs::path& folder) {
  FileDescriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) lock.reset();
  return lock;
}

std::vector<fs::path> places() {
  std::vector<fs::path> places;
  for (const char* name : {"TMPDIR", "TEMP", "TMP"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value == '/') places.emplace_back(value);
  }
  places.emplace_back("/tmp");
  places.emplace_back("/var/tmp");
  return places;
}

// Of jobs whose agents were killed.
void remove_old(const fs::path& place) {
  std::error_code error;
  for (fs::directory_iterator entry(place, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    struct stat facts{};
    if (!name.starts_with(prefix) || name.size() != prefix.size() + letters.size()) continue;
    if (::lstat(entry->path().c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) || facts.st_uid != ::geteuid()) continue;
    if (std::time(nullptr) - facts.st_mtime < fresh_seconds) continue;
    std::error_code ignored;
    if (const FileDescriptor lock = lock_of(entry->path()); lock.valid()) fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace

Result<TemporaryFolder> TemporaryFolder::make() {
  std::string trouble;
  for (const fs::path& place : places()) {
    std::string path = place / (std::string(prefix) + std::string(letters));
    // Of the last worker that a job may ever have.
    if (name_in(path, WorkerId(~std::uint64_t{0})).size() > worker_folder_bytes) continue;
    if (::mkdtemp(path.data()) == nullptr) {
      trouble = place.string() + ": " + std::strerror(errno);
      continue;
    }
    TemporaryFolder folder(path, lock_of(path));
    remove_old(place);
    return folder;
  }
  return Status(Fault::system, Move::fix_call,
                "no folder for sockets of the workers' processes can be made (" + trouble + ")");
}

TemporaryFolder::TemporaryFolder(std::string path, FileDescriptor lock)
    : path_(std::move(path)), lock_(std::move(lock)) {}

TemporaryFolder::~TemporaryFolder() { remove_all(); }

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}

TemporaryFolder& TemporaryFolder::operator=(TemporaryFolder&& other) noexcept {
  remove_all();
  path_ = std::exchange(other.path_, {});
  lock_ = std::move(other.lock_);
  return *this;
}

std::string TemporaryFolder::name_in(const std::string& folder, WorkerId worker) {
  return folder + "/" + std::to_string(worker.value());
}

void TemporaryFolder::remove(WorkerId worker) const {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(name_in(path_, worker), ignored);
}

void TemporaryFolder::remove_all() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  path_.clear();
  lock_.reset();
}

}  // namespace closeranks::agent
