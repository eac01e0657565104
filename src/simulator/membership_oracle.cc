#include "simulator/membership_oracle.h"

#include <algorithm>
#include <utility>

namespace closeranks::simulator {

using namespace membership;

namespace {

std::string text(WorkerId worker) { return "worker " + std::to_string(worker.value()); }

std::string text(const std::vector<Slot>& slots) {
  std::string list = "{";
  for (const Slot slot : slots) list += (list.size() > 1 ? "," : "") + std::to_string(slot.value());
  return list + "}";
}

std::string text(GroupKey group, std::uint64_t sequence) {
  return "entry " + std::to_string(sequence) + " of group " + std::to_string(group.value());
}

bool holds(const std::vector<ExcludedMember>& list, WorkerId worker) {
  return std::any_of(list.begin(), list.end(), [&](const auto& member) { return member.worker == worker; });
}

}  // namespace

MembershipOracle::MembershipOracle(Truth truth, std::vector<std::pair<WorkerId, Slot>> workers,
                                   std::uint32_t min_present)
    : truth_(std::move(truth)), workers_(std::move(workers)), min_present_(min_present) {}

void MembershipOracle::violation(std::string sentence) { violations_.push_back(std::move(sentence)); }

void MembershipOracle::ended(WorkerId worker) { grounds_.insert(worker); }
void MembershipOracle::waited_for(WorkerId worker) { grounds_.insert(worker); }
void MembershipOracle::stopped_too_long(WorkerId worker) { grounds_.insert(worker); }

void MembershipOracle::answer_arrived(WorkerId worker, ViewNumber view) { arrived_[worker] = view; }

void MembershipOracle::coordinator_acts(const Effects& effects) {
  for (const Event& event : effects.events) {
    check_late(event);
    if (event.kind == EventKind::view_proposed) awaited_ = event.view;  // also when nobody is there to be sent it
  }
  for (const auto& [host, message] : effects.to_agents) check_fence(std::get<Fence>(message));
  for (const JournalRecord& record : effects.journal) {
    if (const auto* decided = std::get_if<ViewDecided>(&record)) check_decision(*decided);
  }
  const Install* install = nullptr;
  const Propose* propose = nullptr;
  for (const auto& [worker, message] : effects.to_workers) {
    if (const auto* proposal = std::get_if<Propose>(&message)) propose = proposal;
    if (const auto* installing = std::get_if<Install>(&message)) install = installing;
    if (const auto* admit = std::get_if<Admit>(&message)) admitted_[admit->round] = admit->step;
  }
  if (install != nullptr && !install->joined.empty() && !joins_.contains(install->view)) check_join(*install);
  if (install != nullptr) check_resolutions(*install);
  if (propose != nullptr) check_proposal(*propose);
}

// Rule 21: a deadline that passed while the coordinator was stalled accuses nobody.
void MembershipOracle::check_late(const Event& event) {
  if (event.kind != EventKind::worker_suspected || event.reason.find("did not answer prepared") == std::string::npos) {
    return;
  }
  const auto arrived = arrived_.find(*event.worker);
  if (arrived != arrived_.end() && arrived->second == awaited_) {
    violation("rule 21: " + text(*event.worker) +
              " is suspected for a late answer, but the answer lay in the coordinator's socket");
  }
  grounds_.insert(*event.worker);
}

void MembershipOracle::check_fence(const Fence& fence) {
  // The answer to Started: nobody may fill a slot twice.
  if (fence.reason.find(" is filled by worker ") != std::string::npos) return;
  if (fence.reason.starts_with("it could not join in ")) return;
  if (!grounds_.contains(fence.worker)) {
    violation("rule 22: " + text(fence.worker) + " is fenced on a hint alone: " + fence.reason);
  }
}

void MembershipOracle::check_proposal(const Propose& propose) {
  if (propose.view < last_proposal_) violation("rule 21: a proposal's number is below an earlier one's");
  last_proposal_ = propose.view;
  for (const ExcludedMember& member : propose.excluding) {
    if (truth_.can_run(member.worker)) {
      violation("rule 8: a view without " + text(member.worker) + " is proposed before it is fenced");
    }
  }
}

void MembershipOracle::check_decision(const ViewDecided& decided) {
  if (decided.view <= view_) violation("rule 21: a decided view's number does not grow");
  view_ = decided.view;
  if (decided.excluded.size() < excluded_.size() ||
      !std::equal(excluded_.begin(), excluded_.end(), decided.excluded.begin())) {
    violation("rule 21: a decided view forgets or reorders earlier exclusions");
  }
  excluded_ = decided.excluded;
  for (const ExcludedMember& member : excluded_) excluded_ids_.insert(member.worker);
  if (decided.members.size() < min_present_ && !excluded_.empty()) {
    violation("rule 21: a view with fewer present workers than min_present is decided");
  }
}

// Rules 18 to 20: members change only when everybody stands at the same boundary.
void MembershipOracle::check_join(const Install& install) {
  joins_[install.view] = admitted_[install.view];
  for (const Filled& member : install.members) {
    if (truth_.frozen_for(member.worker, install.view)) continue;
    violation("rule 20: the join of view (" + std::to_string(install.view.term) + ", " +
              std::to_string(install.view.n) + ") is decided, but " + text(member.worker) +
              " is not frozen at its boundary");
    return;
  }
}

void MembershipOracle::passed(WorkerId worker, std::uint64_t step, ViewNumber view) {
  check_running(worker, "began step " + std::to_string(step));
  for (const auto& [join, first] : joins_) {
    if (step >= first && view < join) {
      violation("rule 19: " + text(worker) + " begins step " + std::to_string(step) + " in view (" +
                std::to_string(view.term) + ", " + std::to_string(view.n) + "), but others joined before step " +
                std::to_string(first));
    }
  }
}

void MembershipOracle::epoch_started(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t base,
                                     std::optional<std::uint64_t> completed) {
  auto& known = bases_[{group, epoch}];
  for (const auto& [other, its_base] : known) {
    // A base that only dead workers have gone on from may be decided again.
    if (its_base == base || !truth_.can_run(other)) continue;
    violation("rule 18: group " + std::to_string(group.value()) + " goes on at entry " + std::to_string(base) +
              " for " + text(worker) + " and at " + std::to_string(its_base) + " for " + text(other));
  }
  known.emplace_back(worker, base);
  if (completed && *completed != base) {
    violation("rule 18: group " + std::to_string(group.value()) + " goes on at entry " + std::to_string(base) +
              ", but " + text(worker) + " has completed " + std::to_string(*completed));
  }
}

// Rule 16, first half: an input counts in the entries that some survivor had entered, and in no other. Survivors enter
// nothing between their answers and this decision (rule 7).
void MembershipOracle::check_resolutions(const Install& install) {
  for (const GroupResolution& resolution : install.groups) {
    for (const Departure& departure : resolution.departures) {
      if (bounds_.contains({resolution.group, departure.worker})) continue;
      std::uint64_t largest = 0;
      std::uint64_t largest_alive = 0;
      for (const auto& [worker, slot] : workers_) {
        if (holds(install.excluded, worker)) continue;
        const std::uint64_t entered = truth_.entered(worker, resolution.group);
        largest = std::max(largest, entered);
        if (truth_.can_run(worker)) largest_alive = std::max(largest_alive, entered);
      }
      const std::uint64_t shared = std::min(truth_.entered(departure.worker, resolution.group), largest_alive);
      if (shared > resolution.base && departure.last_op < shared) {
        violation("rule 16: the input of " + text(departure.worker) + " does not count in " +
                  text(resolution.group, shared - 1) + ", which a survivor has entered");
      }
      if (departure.last_op > largest) {
        violation("rule 16: the input of " + text(departure.worker) + " counts in " +
                  text(resolution.group, departure.last_op - 1) + ", which no survivor has entered");
      }
    }
  }
}

void MembershipOracle::froze(WorkerId worker, GroupKey group, const std::vector<Slot>& members,
                             const std::vector<ExcludedMember>& excluding) {
  const bool affected = std::any_of(excluding.begin(), excluding.end(), [&](const auto& member) {
    return std::find(members.begin(), members.end(), member.slot) != members.end();
  });
  if (!affected) {
    violation("rule 9: " + text(worker) + " froze group " + std::to_string(group.value()) +
              ", which has no excluded member");
  }
}

void MembershipOracle::installed(WorkerId worker, ViewNumber view) {
  if (view <= installed_[worker]) violation("rule 7: " + text(worker) + " went back to an older view");
  installed_[worker] = view;
}

// Rule 16, second half: every survivor has the same bound for a departure, for ever. A bound that only dead workers
// held may have been decided again.
void MembershipOracle::departed(WorkerId worker, GroupKey group, const std::vector<Departure>& departures) {
  for (const Departure& departure : departures) {
    std::vector<Bound>& bounds = bounds_[{group, departure.worker}];
    Bound* own = nullptr;
    for (Bound& bound : bounds) {
      if (bound.last_op == departure.last_op) {
        own = &bound;
        continue;
      }
      for (const WorkerId holder : bound.holders) {
        if (!truth_.can_run(holder) && holder != worker) continue;
        violation("rule 16: " + text(departure.worker) + " counts in " + std::to_string(bound.last_op) +
                  " entries of group " + std::to_string(group.value()) + " for " + text(holder) + " and in " +
                  std::to_string(departure.last_op) + " for " + text(worker));
        return;
      }
    }
    if (own == nullptr) own = &bounds.emplace_back(Bound{departure.last_op, {}});
    if (std::find(own->holders.begin(), own->holders.end(), worker) == own->holders.end()) {
      own->holders.push_back(worker);
    }
  }
}

void MembershipOracle::check_running(WorkerId worker, const std::string& deed) {
  if (excluded(worker)) violation("rule 8: " + text(worker) + " " + deed + " after a view without it was decided");
}

void MembershipOracle::entered(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t sequence,
                               std::uint64_t step) {
  check_running(worker, "entered " + text(group, sequence));
  const auto [known, first] = steps_.emplace(Entry(group, epoch, sequence), std::pair(step, worker));
  if (known->second.first != step && truth_.can_run(known->second.second)) {
    violation("rule 18: " + text(group, sequence) + " belongs to step " + std::to_string(step) + " for " +
              text(worker) + " and to step " + std::to_string(known->second.first) + " for " +
              text(known->second.second));
  }
}

void MembershipOracle::completed(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t sequence,
                                 const std::vector<Slot>& contributors) {
  check_running(worker, "completed " + text(group, sequence));
  record(worker, group, epoch, sequence, Outcome{std::nullopt, contributors, {worker}});
}

void MembershipOracle::failed(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t sequence, Slot culprit) {
  check_running(worker, "failed " + text(group, sequence));
  record(worker, group, epoch, sequence, Outcome{culprit, {}, {worker}});
}

// Two successes always agree, also with workers that died since. That an entry failed is a fact only as long as some
// worker that has seen it fail is alive.
void MembershipOracle::record(WorkerId worker, GroupKey group, ViewNumber epoch, std::uint64_t sequence,
                              Outcome outcome) {
  std::vector<Outcome>& outcomes = outcomes_[{group, epoch, sequence}];
  for (Outcome& known : outcomes) {
    if (same(known, outcome)) {
      known.holders.push_back(worker);
      return;
    }
    const bool both_succeeded = !known.culprit && !outcome.culprit;
    const bool alive = std::any_of(known.holders.begin(), known.holders.end(), truth_.can_run);
    if (!both_succeeded && !alive) continue;
    const auto told = [](const Outcome& other) {
      return other.culprit ? "failed because of slot " + std::to_string(other.culprit->value())
                           : "succeeded with contributors " + text(other.contributors);
    };
    violation("rule 10: " + text(group, sequence) + " " + told(known) + " at " + text(known.holders.front()) + " and " +
              told(outcome) + " at " + text(worker));
    return;
  }
  outcomes.push_back(std::move(outcome));
}

}  // namespace closeranks::simulator
