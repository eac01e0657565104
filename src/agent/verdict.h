// What becomes of the job as a whole: collects what is known of its workers, and tells whether it has to end, with
// which exit status, and why. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"

namespace closeranks::agent {

class Verdict {
 public:
  // Worker i fills slot i at the start.
  Verdict(std::uint32_t workers, bool shrink);

  // A replacement was started for the slot. Until it has joined, what becomes of it is nothing to the job.
  void started(WorkerId worker, Slot slot);
  void joined(WorkerId worker);
  // A first sign that the worker is lost. The earliest one is the root cause: what follows it (the others' errors that
  // name it) are consequences.
  void suspected(WorkerId worker, const std::string& reason);
  // The worker was reaped; `wait_status` as from waitpid. `fenced`: it may have been killed because of its first sign,
  // which then says more than the kill.
  void exited(WorkerId worker, int wait_status, const std::string& reason, bool fenced = true);
  // It is not in the view in force any more.
  void excluded(WorkerId worker, const std::string& reason);
  // It left on purpose, for good: its exclusion is no failure.
  void left_for_good(WorkerId worker);
  // Newcomers can be let in: whether the job survives a loss is the coordinator's to say (gave_up), --shrink or not.
  void goes_on() { shrink_ = true; }
  // The coordinator ends the job (fewer than --min-present, or a loss without --shrink).
  void gave_up(const std::string& reason);
  // The user or the system ended it; the first signal counts.
  void interrupted(int signal);

  // All that have ever been in a view; newcomers that were not are ended with the job.
  [[nodiscard]] bool all_exited() const;
  // A worker was lost and the job cannot go on without it.
  [[nodiscard]] bool must_end() const;
  // Every worker that failed is excluded: nothing is left for the coordinator to decide.
  [[nodiscard]] bool settled() const;
  // Some worker of the view has ended with status 0: the others are about to.
  [[nodiscard]] bool finishing() const;
  // It has been in a view.
  [[nodiscard]] bool has_joined(WorkerId worker) const { return workers_.at(worker).joined; }
  [[nodiscard]] bool is_excluded(WorkerId worker) const { return workers_.at(worker).excluded; }
  // Precondition of the following: all_exited().
  // 0: every worker of the last view exited 0. Else that of the root cause, 128+n for a signal.
  [[nodiscard]] int exit_status() const;
  // "slot 2 was killed by signal 9 (SIGKILL)": the root cause first; every worker that did not exit 0, or was excluded.
  // Workers that ended alike share a sentence: "slots 0, 1 and 3 exited with status 1". A replacement is named:
  // "worker 5 in slot 2".
  [[nodiscard]] std::vector<std::string> causes() const;
  [[nodiscard]] std::vector<Slot> present() const;
  [[nodiscard]] std::vector<Slot> finished() const;  // of the last view, exited 0

  // Known before the end, for messages.
  [[nodiscard]] std::optional<WorkerId> root_cause() const;
  [[nodiscard]] std::string reason_of(WorkerId worker) const;

 private:
  struct Worker {
    Slot slot;
    bool replacement = false;
    bool joined = true;
    bool exited = false;
    int wait_status = 0;
    bool excluded = false;
    bool left_for_good = false;
    std::string reason;
  };
  void first_sign(WorkerId worker, const std::string& reason);
  [[nodiscard]] bool failed(const Worker& worker) const;
  [[nodiscard]] std::string name_all(const std::vector<WorkerId>& workers) const;

  std::map<WorkerId, Worker> workers_;
  bool shrink_;
  std::vector<WorkerId> signs_;  // in the order of their first sign
  std::optional<std::string> gave_up_;
  int signal_ = 0;
};

// "was killed by signal 9 (SIGKILL)", "exited with status 1", "is lost: stopped for 5.0 s"; of several: "were", "are".
std::string as_predicate(const std::string& reason, bool several = false);

}  // namespace closeranks::agent
