#include "agent/verdict.h"

#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "base/slot_names.h"

namespace closeranks::agent {
namespace {

// Replacements may fail for days; the first sentences tell what is wrong.
constexpr std::size_t most_causes = 16;

bool is_clean(int wait_status) { return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0; }

}  // namespace

std::string as_predicate(const std::string& reason, bool several) {
  if (reason.starts_with("killed by")) return (several ? "were " : "was ") + reason;
  if (reason.starts_with("exited with")) return reason;
  return (several ? "are lost" : "is lost") + (reason.empty() ? "" : ": " + reason);
}

Verdict::Verdict(std::uint32_t workers, bool shrink) : shrink_(shrink) {
  for (std::uint32_t slot = 0; slot < workers; ++slot) workers_[WorkerId(slot)].slot = Slot(slot);
}

void Verdict::started(WorkerId worker, Slot slot) {
  Worker& newcomer = workers_[worker];
  newcomer.slot = slot;
  newcomer.replacement = true;
  newcomer.joined = false;
}

void Verdict::joined(WorkerId worker) { workers_.at(worker).joined = true; }

void Verdict::first_sign(WorkerId worker, const std::string& reason) {
  Worker& lost = workers_.at(worker);
  if (lost.reason.empty()) lost.reason = reason;
  if (std::find(signs_.begin(), signs_.end(), worker) == signs_.end()) signs_.push_back(worker);
}

void Verdict::suspected(WorkerId worker, const std::string& reason) { first_sign(worker, reason); }

void Verdict::exited(WorkerId id, int wait_status, const std::string& reason, bool fenced) {
  Worker& worker = workers_.at(id);
  worker.exited = true;
  worker.wait_status = wait_status;
  if (is_clean(wait_status)) return;
  // How it ended says more than the first sign of it, except for one that was killed because of that sign.
  const bool killed_for_it = fenced && !worker.reason.empty() && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == 9;
  if (!killed_for_it) worker.reason = reason;
  first_sign(id, reason);
}

void Verdict::excluded(WorkerId id, const std::string& reason) {
  Worker& worker = workers_.at(id);
  worker.excluded = true;
  if (!worker.left_for_good) first_sign(id, reason);
}

void Verdict::left_for_good(WorkerId worker) { workers_.at(worker).left_for_good = true; }

void Verdict::gave_up(const std::string& reason) {
  if (!gave_up_.has_value()) gave_up_ = reason;
}

void Verdict::interrupted(int signal) {
  if (signal_ == 0) signal_ = signal;
}

bool Verdict::failed(const Worker& worker) const {
  return (worker.excluded && !worker.left_for_good) || (worker.exited && !is_clean(worker.wait_status));
}

bool Verdict::all_exited() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& entry) { return entry.second.exited || !entry.second.joined; });
}

bool Verdict::must_end() const {
  if (gave_up_.has_value()) return true;
  return !shrink_ && std::any_of(workers_.begin(), workers_.end(),
                                 [this](const auto& entry) { return entry.second.joined && failed(entry.second); });
}

bool Verdict::settled() const {
  if (gave_up_.has_value() || signal_ != 0) return true;
  return std::all_of(workers_.begin(), workers_.end(), [this](const auto& entry) {
    const Worker& worker = entry.second;
    return !worker.joined || !failed(worker) || worker.excluded;
  });
}

bool Verdict::finishing() const { return !finished().empty(); }

int Verdict::exit_status() const {
  if (signal_ != 0) return 128 + signal_;
  if (!must_end() && !finished().empty() && finished() == present()) return 0;
  const auto cause = root_cause();
  if (!cause.has_value()) return 1;
  const int status = workers_.at(*cause).wait_status;
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  // One that exited 0 while others still needed it is a failure all the same.
  return WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : 1;
}

// "slots 0 and 3", "worker 5 in slot 2", "slot 1, and worker 4 in slot 1".
std::string Verdict::name_all(const std::vector<WorkerId>& workers) const {
  std::vector<Slot> slots;
  std::string replacements;
  for (const WorkerId id : workers) {
    const Worker& worker = workers_.at(id);
    if (!worker.replacement) {
      slots.push_back(worker.slot);
      continue;
    }
    replacements += (replacements.empty() ? "worker " : ", worker ") + std::to_string(id.value()) + " in slot " +
                    std::to_string(worker.slot.value());
  }
  if (slots.empty()) return replacements;
  return name_slots(slots) + (replacements.empty() ? "" : ", and " + replacements);
}

std::vector<std::string> Verdict::causes() const {
  // By reason, in the order of the first worker of each.
  std::vector<std::pair<std::string, std::vector<WorkerId>>> groups;
  for (const WorkerId id : signs_) {
    const Worker& worker = workers_.at(id);
    if (!failed(worker)) continue;
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& one) { return one.first == worker.reason; });
    if (group == groups.end()) group = groups.insert(groups.end(), {worker.reason, {}});
    group->second.push_back(id);
  }
  std::vector<std::string> sentences;
  for (const auto& [reason, workers] : groups) {
    if (sentences.size() == most_causes) {
      sentences.push_back(std::to_string(groups.size() - most_causes) + " more ways; the events have them all");
      break;
    }
    sentences.push_back(name_all(workers) + " " + as_predicate(reason, workers.size() > 1));
  }
  return sentences;
}

std::vector<Slot> Verdict::present() const {
  std::vector<Slot> slots;
  for (const auto& [id, worker] : workers_) {
    if (worker.joined && !worker.excluded) slots.push_back(worker.slot);
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

std::vector<Slot> Verdict::finished() const {
  std::vector<Slot> slots;
  for (const auto& [id, worker] : workers_) {
    const bool in_view = worker.joined && !worker.excluded;
    if (in_view && worker.exited && is_clean(worker.wait_status)) slots.push_back(worker.slot);
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

std::optional<WorkerId> Verdict::root_cause() const {
  for (const WorkerId id : signs_) {
    const Worker& worker = workers_.at(id);
    if (!worker.joined) continue;
    // A suspicion alone is no failure: one that ended well after all caused nothing.
    if (failed(worker) || (gave_up_.has_value() && !worker.exited)) return id;
  }
  return std::nullopt;
}

std::string Verdict::reason_of(WorkerId worker) const { return workers_.at(worker).reason; }

}  // namespace closeranks::agent
