#include "agent/verdict.h"

#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "agent/slot_names.h"

namespace closeranks::agent {
namespace {

bool is_clean(int wait_status) { return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0; }

}  // namespace

std::string as_predicate(const std::string& reason, bool several) {
  if (reason.starts_with("killed by")) return (several ? "were " : "was ") + reason;
  if (reason.starts_with("exited with")) return reason;
  return (several ? "are lost" : "is lost") + (reason.empty() ? "" : ": " + reason);
}

Verdict::Verdict(std::uint32_t workers, bool shrink) : workers_(workers), shrink_(shrink) {}

void Verdict::first_sign(Slot slot, const std::string& reason) {
  Worker& worker = workers_.at(slot.value());
  if (worker.reason.empty()) worker.reason = reason;
  if (std::find(signs_.begin(), signs_.end(), slot) == signs_.end()) signs_.push_back(slot);
}

void Verdict::suspected(Slot slot, const std::string& reason) { first_sign(slot, reason); }

void Verdict::exited(Slot slot, int wait_status, const std::string& reason) {
  Worker& worker = workers_.at(slot.value());
  worker.exited = true;
  worker.wait_status = wait_status;
  if (is_clean(wait_status)) return;
  // How it ended says more than the first sign of it, except for one that was killed because of that sign.
  const bool killed_for_it = !worker.reason.empty() && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == 9;
  if (!killed_for_it) worker.reason = reason;
  first_sign(slot, reason);
}

void Verdict::excluded(Slot slot, const std::string& reason) {
  workers_.at(slot.value()).excluded = true;
  first_sign(slot, reason);
}

void Verdict::gave_up(const std::string& reason) {
  if (!gave_up_.has_value()) gave_up_ = reason;
}

void Verdict::interrupted(int signal) {
  if (signal_ == 0) signal_ = signal;
}

bool Verdict::failed(const Worker& worker) const {
  return worker.excluded || (worker.exited && !is_clean(worker.wait_status));
}

bool Verdict::all_exited() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.exited; });
}

bool Verdict::must_end() const {
  if (gave_up_.has_value()) return true;
  return !shrink_ && std::any_of(workers_.begin(), workers_.end(), [this](const Worker& w) { return failed(w); });
}

bool Verdict::settled() const {
  if (gave_up_.has_value() || signal_ != 0) return true;
  return std::all_of(workers_.begin(), workers_.end(),
                     [this](const Worker& worker) { return !failed(worker) || worker.excluded; });
}

int Verdict::exit_status() const {
  if (signal_ != 0) return 128 + signal_;
  if (!must_end() && !finished().empty() && finished() == present()) return 0;
  const auto cause = root_cause();
  if (!cause.has_value()) return 1;
  const int status = workers_[cause->value()].wait_status;
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  // One that exited 0 while others still needed it is a failure all the same.
  return WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : 1;
}

std::vector<std::string> Verdict::causes() const {
  // By reason, in the order of the first worker of each.
  std::vector<std::pair<std::string, std::vector<Slot>>> groups;
  for (const Slot slot : signs_) {
    const Worker& worker = workers_[slot.value()];
    if (!failed(worker)) continue;
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& one) { return one.first == worker.reason; });
    if (group == groups.end()) group = groups.insert(groups.end(), {worker.reason, {}});
    group->second.push_back(slot);
  }
  std::vector<std::string> sentences;
  sentences.reserve(groups.size());
  for (const auto& [reason, slots] : groups) {
    sentences.push_back(name_slots(slots) + " " + as_predicate(reason, slots.size() > 1));
  }
  return sentences;
}

std::vector<Slot> Verdict::present() const {
  std::vector<Slot> slots;
  for (std::uint32_t slot = 0; slot < workers_.size(); ++slot) {
    if (!workers_[slot].excluded) slots.emplace_back(slot);
  }
  return slots;
}

std::vector<Slot> Verdict::finished() const {
  std::vector<Slot> slots;
  for (const Slot slot : present()) {
    const Worker& worker = workers_[slot.value()];
    if (worker.exited && is_clean(worker.wait_status)) slots.push_back(slot);
  }
  return slots;
}

std::optional<Slot> Verdict::root_cause() const {
  for (const Slot slot : signs_) {
    const Worker& worker = workers_[slot.value()];
    // A suspicion alone is no failure: one that ended well after all caused nothing.
    if (failed(worker) || (gave_up_.has_value() && !worker.exited)) return slot;
  }
  return std::nullopt;
}

std::string Verdict::reason_of(Slot slot) const { return workers_.at(slot.value()).reason; }

}  // namespace closeranks::agent
