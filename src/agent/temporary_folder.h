// Where the workers' python processes have their sockets for each other (multiprocessing, data loaders): one folder per
// worker in one per job. Python would make a folder of its own in the temporary directory, which stays there for ever
// when its process is killed. The users' own temporary files are none of this.
//
// A job whose agent was killed leaves its folder; the next job of the same user removes it.
#pragma once

#include <cstddef>
#include <string>

#include "base/file_descriptor.h"
#include "closeranks/ids.h"
#include "closeranks/status.h"

namespace closeranks::agent {

// The name of a unix socket has 107 bytes at most, and python's end with "/listener-" and 8 letters.
inline constexpr std::size_t worker_folder_bytes = 107 - 18;

class TemporaryFolder {
 public:
  // An empty one in $TMPDIR, $TEMP or $TMP, as python chooses, where that is short enough for names of sockets; else in
  // /tmp or /var/tmp. Mode 0700. Fault::system when it can be made nowhere.
  static Result<TemporaryFolder> make();
  // remove_all().
  ~TemporaryFolder();
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept;
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  // The worker's own; its process makes it.
  static std::string name_in(const std::string& folder, WorkerId worker);
  // The worker and its children have ended.
  void remove(WorkerId worker) const;
  void remove_all();

 private:
  TemporaryFolder(std::string path, FileDescriptor lock);
  std::string path_;
  FileDescriptor lock_;  // held as long as its agent lives
};

}  // namespace closeranks::agent
