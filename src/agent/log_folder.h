// The folder of a job's log files: one per job, under the user's state folder unless told otherwise.
#pragma once

#include <cstddef>
#include <string>

#include "base/file_descriptor.h"
#include "closeranks/status.h"

namespace closeranks::agent {

// Jobs kept under the default folder; older ones are removed when a job starts, running ones never.
inline constexpr std::size_t kept_jobs = 10;

struct LogFolder {
  std::string path;
  FileDescriptor lock;  // held while the job runs
};

// "20261130-114200-9f86d081": a folder's name that make_log_folder gives, and where the job's id begins in it.
bool is_job_folder(const std::string& name);
inline constexpr std::size_t job_id_at = 16;
// Its agent lives.
bool is_running(const std::string& folder);

// $XDG_STATE_HOME/closeranks, else ~/.local/state/closeranks; empty when neither is set.
std::string default_log_root();

// Makes `root`/TIME-JOB (0700) and, with `prune`, removes the oldest finished jobs beyond `kept_jobs`. Fault::system
// when it cannot be made. Precondition: `job` is a plain file name.
Result<LogFolder> make_log_folder(const std::string& root, const std::string& job, bool prune);

}  // namespace closeranks::agent
