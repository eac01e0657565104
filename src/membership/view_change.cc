// Propose, prepared, resolve, install of the coordinator's machine.
#include <algorithm>
#include <map>

#include "base/assert.h"
#include "membership/coordinator.h"
#include "membership/worker.h"

namespace closeranks::membership {
namespace {

// What the event log and the others' errors say of an excluded worker.
std::string reason_of(const Member& member) {
  if (member.for_good) return member.leave_because.empty() ? "left the job" : "left the job: " + member.leave_because;
  if (member.waited_for && member.end.known && member.end.by_itself && member.end.wait_status == 0) {
    return member.end.reason + " while others waited for it";
  }
  if (member.end.by_itself && !member.end.reason.empty()) return member.end.reason;
  return member.suspected_because;
}

bool contains(const std::vector<ExcludedMember>& list, WorkerId worker) {
  return std::any_of(list.begin(), list.end(), [&](const ExcludedMember& member) { return member.worker == worker; });
}

}  // namespace

// Everything that may be due after an input: late answers, a proposal that excludes more, the install.
void Coordinator::advance(Time now) {
  suspect_the_late(now);
  std::vector<Member*> leaving;
  bool fence_pending = false;
  bool more = false;
  for (Member& member : roster_.members()) {
    if (!member.in_view) continue;
    const bool suspected = member.life == Life::suspected;
    fence_pending = fence_pending || suspected;
    if (!member.must_go && !(suspected && !config_.rules.fence_before_propose)) continue;
    if (member.life == Life::excluded) continue;
    leaving.push_back(&member);
    more = more || !change_ || !contains(change_->excluding, member.worker);
  }
  // Workers suspected at the same time go in one view: their proofs are milliseconds away, and without them they would
  // have to answer anyway.
  const bool due = unresolved_ && config_.rules.fresh_number_after_restart && !change_;
  if (round_ && config_.rules.trouble_cancels_join && (fence_pending || !leaving.empty() || due)) {
    cancel_round(trouble_of_round(), now);
  }
  if (fence_pending && config_.rules.fence_before_propose) return;
  if ((more || due) && !everybody_left()) {
    if (give_up_if_too_few(leaving)) return;
    propose(leaving, now);
  }
  if (change_ && everybody_answered()) install();
  const bool quiet = !change_ && leaving.empty() && !unresolved_;
  if (!ended_ && (quiet || (round_ && !config_.rules.trouble_cancels_join))) advance_round(now);
}

// True: nothing may be proposed. A worker whose status is not known yet may turn out to have finished in order, so the
// job is not given up before.
bool Coordinator::give_up_if_too_few(const std::vector<Member*>& leaving) {
  if (!config_.rules.respect_min_present || leaving.empty()) return false;
  const auto left = static_cast<std::uint32_t>(roster_.present_count() - leaving.size());
  if (left >= config_.min_present) return false;
  const Member* cause = nullptr;
  for (const Member* member : leaving) {
    if (!member->end.known && member->end.by_itself && !member->waited_for) return true;
    if (cause == nullptr) cause = member;
  }
  end(EventKind::gave_up, cause,
      text_of(*cause) + ": " + reason_of(*cause) + "; " + std::to_string(left) +
          (left == 1 ? " present worker would be left" : " present workers would be left") +
          ", fewer than the minimum of " + std::to_string(config_.min_present),
      {});
  return true;
}

void Coordinator::propose(const std::vector<Member*>& leaving, Time now) {
  Change change;
  change.number = {term_, ++last_n_};
  change.deadline = now + config_.prepared_deadline;
  // Not every worker may have what the journal says: name everybody, whoever has a decision tells it.
  if (restarted_ || !config_.rules.decide_once) change.excluding = excluded_;
  for (const Member* member : leaving) {
    change.excluding.push_back({member->worker, member->slot, change.number, reason_of(*member)});
  }
  change_ = std::move(change);
  std::string names;
  for (const Member* member : leaving) names += (names.empty() ? "without " : ", ") + text_of(*member);
  emit(EventKind::view_proposed, nullptr, names.empty() ? "after a restart of the coordinator" : names);
  effects_.events.back().view = change_->number;
  for (const Member& member : roster_.members()) {
    if (must_answer(member) && member.connected) send_proposal(member.worker);
  }
}

void Coordinator::send_proposal(WorkerId worker) { send(worker, Propose{change_->number, change_->excluding}); }

// A worker that was never welcomed has no groups; one that is gone or has left answers nothing.
bool Coordinator::must_answer(const Member& member) const {
  if (!member.registered || !member.in_view || (change_ && contains(change_->excluding, member.worker))) return false;
  return member.life == Life::running || member.life == Life::suspected;
}

void Coordinator::on_prepared(const Prepared& prepared, const Member& member) {
  if (superseded_by(prepared.view)) return;
  if (round_ && prepared.view == round_->number && round_->stage == Round::Stage::admitted && takes_part(member)) {
    round_->answers.emplace(member.worker, prepared.statuses);
    return;
  }
  if (!change_ || prepared.view != change_->number) return;  // an old number
  if (member.life != Life::running) return;                  // late, and suspected for it: a fence is on its way
  change_->answers.emplace(member.worker, prepared.statuses);
}

void Coordinator::suspect_the_late(Time now) {
  if (!change_ || now < change_->deadline) return;
  change_->deadline = now + config_.prepared_deadline;
  for (Member& member : roster_.members()) {
    if (!must_answer(member) || member.life != Life::running || change_->answers.contains(member.worker)) continue;
    suspect(member,
            "it did not answer prepared for view " + text_of(change_->number) + " within " +
                std::to_string(config_.prepared_deadline.count()) + " ms" +
                (member.connected ? "" : " (its control connection is broken)"),
            now);
  }
}

bool Coordinator::everybody_answered() const {
  if (!config_.rules.wait_for_all_survivors && !change_->answers.empty()) return true;
  return std::all_of(roster_.members().begin(), roster_.members().end(), [this](const Member& member) {
    return !must_answer(member) || change_->answers.contains(member.worker);
  });
}

std::vector<GroupResolution> Coordinator::resolve() const {
  std::map<GroupKey, std::vector<GroupStatus>> statuses;
  for (const auto& [worker, answer] : change_->answers) {
    for (const GroupStatus& status : answer) statuses[status.group].push_back(status);
  }
  std::vector<GroupResolution> resolutions;
  for (const auto& [group, of_group] : statuses) {
    resolutions.push_back(
        resolve_group(of_group, change_->number, change_->excluding, config_.rules, roster_.refills()));
  }
  for (GroupResolution& resolution : resolutions) {
    const auto known = epochs_.find(resolution.group);
    if (known != epochs_.end() && known->second.view == resolution.epoch) resolution.base = known->second.base.base;
  }
  return resolutions;
}

// Somebody may have missed the last join: it is told of every group that grew with it. Members that have it already
// find nothing new in that (resolution_for).
void Coordinator::add_missed_epochs(std::vector<GroupResolution>& resolutions) const {
  for (const auto& [group, epoch] : epochs_) {
    const bool listed = std::any_of(resolutions.begin(), resolutions.end(),
                                    [&](const GroupResolution& other) { return other.group == group; });
    if (listed) continue;
    GroupResolution resolution;
    resolution.group = group;
    resolution.view = view_;
    resolution.departures = departures_of_new_group(excluded_, epoch.base.members, roster_.filled());
    resolution.epoch = epoch.view;
    resolution.base = epoch.base.base;
    resolutions.push_back(std::move(resolution));
  }
}

void Coordinator::install() {
  Install install;
  install.view = change_->number;
  install.groups = resolve();
  view_ = change_->number;
  for (const ExcludedMember& member : change_->excluding) {
    if (contains(excluded_, member.worker)) continue;
    excluded_.push_back(member);
    Member* excluded = roster_.find(member.worker);
    CR_ASSERT(excluded != nullptr);
    excluded->life = Life::excluded;
    excluded->fence_deadline.reset();
    emit(EventKind::worker_excluded, excluded, member.reason, excluded->suspected_because);
    if (excluded->connected) evict(member.worker, member.reason);
  }
  install.excluded = excluded_;
  if (restarted_) add_missed_epochs(install.groups);
  install.members = roster_.filled();
  effects_.journal.emplace_back(ViewDecided{view_, excluded_, install.members});
  emit(EventKind::view_installed, nullptr,
       std::to_string(install.groups.size()) + (install.groups.size() == 1 ? " group" : " groups") + " resolved");
  effects_.events.back().present = roster_.present_slots();
  for (const Member& member : roster_.members()) {
    if (must_answer(member) && member.connected) send(member.worker, install);
  }
  last_install_ = std::move(install);
  change_.reset();
  cancelled_.clear();
  unresolved_ = restarted_ = false;
  give_up_without_shrink();
}

// Without shrink the first loss ends the job, once it is known that it was one. Not of a session, whose groups go on by
// their policy and whose workers are replaced.
void Coordinator::give_up_without_shrink() {
  if (config_.shrink || session_started_ || ended_) return;
  for (const Member& member : roster_.members()) {
    if (member.life != Life::excluded || !member.in_view || member.for_good) continue;
    const bool orderly = member.end.known && member.end.by_itself && member.end.wait_status == 0 && !member.waited_for;
    const bool unknown = !member.end.known && member.end.by_itself && !member.waited_for;
    if (orderly || unknown) continue;
    end(EventKind::gave_up, &member,
        text_of(member) + ": " + reason_of(member) + "; the job runs without shrinking, so it ends", {});
    return;
  }
}

std::string text_of(ViewNumber view) { return "(" + std::to_string(view.term) + ", " + std::to_string(view.n) + ")"; }

std::string text_of(const Member& member) {
  return "slot " + std::to_string(member.slot.value()) + " (worker " + std::to_string(member.worker.value()) + ")";
}

}  // namespace closeranks::membership
