// How workers ended, and which of their ends is a first cause: not one that the job went on after, and not one that an
// earlier failure made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trace/job_index.h"

namespace closeranks::trace {

struct Death {
  enum class How : std::uint8_t { signal, exception, status, gone, fenced_stopped, fenced_kernel, fenced_hung };

  Slot slot;
  const recorder::WorkerTrace* worker = nullptr;  // null: it left no file
  std::optional<WorkerId> id;
  std::int64_t at_ns = 0;  // of the first sign
  How how = How::gone;
  int signal = 0;
  int status = 0;
  bool out_of_memory = false;
  std::string detail;  // the exception's last line, the agent's sentence, how a peer saw it
  std::string stack;
  std::vector<std::string> evidence;
  bool consequence = false;  // of a failure that came before

  // SIGTERM, SIGINT, SIGHUP, or nobody saw what: somebody may have ended it because the job was stuck.
  [[nodiscard]] bool was_asked() const;
};

// The end itself speaks against the worker: a signal does, or a whole file in which no op failed before. Any other may
// be a consequence whose cause is not in the files.
bool speaks_for_itself(const Death& death);

// Ends that the job did not go on after, by time; consequences among them.
std::vector<Death> find_deaths(const JobIndex& index);

// Ends that it did go on after, one sentence each.
std::vector<std::string> repaired_deaths(const JobIndex& index);

// Slots whose last worker died, and that the job went on without.
std::vector<Slot> vacant_slots(const JobIndex& index);

// Of an `ended` event's detail, "exit status 3"; 0 for any other text.
int exit_status(const std::string& detail);

// The text of an exception that a lost peer or a failed op makes, in our words or another backend's.
bool is_about_peers(const std::string& text);

}  // namespace closeranks::trace
