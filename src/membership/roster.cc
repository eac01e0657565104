// Who is who: the roster itself, and hello, welcome, goodbye, eviction of the coordinator's machine.
#include "membership/roster.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "membership/coordinator.h"

namespace closeranks::membership {

Roster::Roster(const std::vector<RosterEntry>& entries) {
  CR_ASSERT(!entries.empty());
  for (const RosterEntry& entry : entries) {
    Member member;
    member.worker = entry.worker;
    member.slot = entry.slot;
    member.host = entry.host;
    members_.push_back(std::move(member));
  }
  std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) { return a.slot < b.slot; });
  for (std::size_t index = 0; index < members_.size(); ++index) {
    CR_ASSERT(index == 0 || members_[index - 1].slot < members_[index].slot);
    const bool inserted = index_.emplace(members_[index].worker, index).second;
    CR_ASSERT(inserted);
  }
}

Member* Roster::find(WorkerId worker) {
  const auto found = index_.find(worker);
  return found == index_.end() ? nullptr : &members_[found->second];
}

const Member* Roster::find(WorkerId worker) const {
  const auto found = index_.find(worker);
  return found == index_.end() ? nullptr : &members_[found->second];
}

Member& Roster::add(const RosterEntry& entry) {
  CR_ASSERT(find(entry.worker) == nullptr);
  Member member;
  member.worker = entry.worker;
  member.slot = entry.slot;
  member.host = entry.host;
  member.in_view = false;
  const auto place = std::upper_bound(members_.begin(), members_.end(), member, [](const Member& a, const Member& b) {
    return std::pair(a.slot, a.worker) < std::pair(b.slot, b.worker);
  });
  const auto index = static_cast<std::size_t>(members_.insert(place, std::move(member)) - members_.begin());
  index_.clear();
  for (std::size_t each = 0; each < members_.size(); ++each) index_.emplace(members_[each].worker, each);
  return members_[index];
}

const Member* Roster::in_slot(Slot slot) const {
  for (const Member& member : members_) {
    if (member.slot == slot && member.life != Life::excluded) return &member;
  }
  return nullptr;
}

bool Roster::has_slot(Slot slot) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) { return member.slot == slot; });
}

std::vector<Slot> Roster::present_slots() const {
  std::vector<Slot> slots;
  for (const Member& member : members_) {
    if (is_present(member)) slots.push_back(member.slot);
  }
  return slots;
}

std::uint32_t Roster::present_count() const {
  return static_cast<std::uint32_t>(std::count_if(members_.begin(), members_.end(), is_present));
}

std::vector<Filled> Roster::filled() const {
  std::vector<Filled> filled;
  for (const Member& member : members_) {
    if (is_present(member)) filled.push_back({member.slot, member.worker});
  }
  return filled;
}

std::vector<Refill> Roster::refills() const {
  std::vector<Refill> refills;
  for (const Member& member : members_) {
    if (member.since != ViewNumber{}) refills.push_back({member.slot, member.since});
  }
  return refills;
}

void Coordinator::on_hello(const Hello& hello, Member& member, Time now) {
  if (superseded_by(hello.installed) || superseded_by(hello.prepared)) return;
  if (hello.self.slot != member.slot) {
    evict(member.worker, "worker " + std::to_string(member.worker.value()) + " says it fills slot " +
                             std::to_string(hello.self.slot.value()) + ", but it was started for slot " +
                             std::to_string(member.slot.value()));
    return;
  }
  member.connected = true;
  member.told_to_leave = member.told_finished = false;
  if (member.life != Life::running) return;  // about to be fenced, or has left: nothing to tell it
  if (!member.registered || member.address != hello.self) {
    if (!member.registered) emit(EventKind::worker_registered, &member, "said hello for the first time");
    member.registered = true;
    member.waited_for = false;  // it was for a sign of life; from here on its peers can see for themselves
    member.address = hello.self;
    effects_.journal.emplace_back(WorkerRegistered{hello.self});
    if (member.in_view) {
      unannounced_.push_back(hello.self);
      if (!announce_at_) announce_at_ = now + config_.announce_interval;
    }
  }
  welcome(member);
  // The hold it had is void, and so is what may still come of its old connection (protocol rule 20).
  if (round_ && takes_part(member) && config_.rules.trouble_cancels_join) {
    cancel_round(text_of(member) + " has a new connection to the coordinator", now);
  } else if (!cancelled_.empty()) {
    send(member.worker, Cancel{*cancelled_.rbegin(), "it was cancelled before this connection"});
  }
  if (cancelled_.contains(hello.prepared) && hello.prepared != *cancelled_.rbegin()) {
    send(member.worker, Cancel{hello.prepared, "it was cancelled before this connection"});
  }
  if (member.in_view) {
    bring_up_to_date(hello, member);
  } else if (hello.prepared != ViewNumber{} && !cancelled_.contains(hello.prepared)) {
    // Of an earlier coordinator. The journal does not have it in the view, so that round was never decided.
    send(member.worker, Cancel{hello.prepared, "the coordinator of that round is gone"});
  }
  ask_to_leave(member);
}

// The view in force may have passed this worker by: its connection broke with the install on the way, or the
// coordinator that sent the install is no more.
void Coordinator::bring_up_to_date(const Hello& hello, const Member& member) {
  const bool joined = hello.installed != ViewNumber{};
  const bool behind = joined && hello.installed < view_;
  const bool cancelled = cancelled_.contains(hello.prepared);
  if (behind && last_install_ && last_install_->view == view_ && hello.prepared == view_) {
    send(member.worker, *last_install_);
  } else if ((behind || (hello.prepared != ViewNumber{} && !cancelled)) && !change_) {
    // It is frozen for a number nobody will install, or lacks a decision this coordinator does not have in full.
    unresolved_ = restarted_ = true;
  }
  if (change_) send_proposal(member.worker);
}

void Coordinator::welcome(const Member& member) {
  Welcome welcome{term_, view_, {}, excluded_, !member.in_view, roster_.filled()};
  for (const Member& other : roster_.members()) {
    if (other.registered && is_present(other) && other.worker != member.worker) {
      welcome.workers.push_back(other.address);
    }
  }
  send(member.worker, std::move(welcome));
}

void Coordinator::announce(Time now) {
  if (!announce_at_ || now < *announce_at_) return;
  announce_at_.reset();
  for (const Member& member : roster_.members()) {
    if (member.connected && member.life == Life::running) {
      send(member.worker, Welcome{term_, view_, unannounced_, excluded_, !member.in_view, {}});
    }
  }
  unannounced_.clear();
}

// Terms only grow with the starts of coordinators (protocol rule 21).
bool Coordinator::superseded_by(ViewNumber known) {
  if (known.term <= term_) return false;
  end(EventKind::superseded, nullptr,
      "a worker knows view " + text_of(known) + " of a newer coordinator; this one has term " + std::to_string(term_) +
          " and must stop",
      {});
  return true;
}

void Coordinator::evict(WorkerId worker, const std::string& reason) {
  send(worker, Evicted{term_, view_, worker, reason});
}

std::string Coordinator::exclusion_reason(WorkerId worker) const {
  for (const ExcludedMember& member : excluded_) {
    if (member.worker == worker) return member.reason;
  }
  const Member* member = roster_.find(worker);
  if (member == nullptr) return {};
  return member->suspected_because.empty() ? member->end.reason : member->suspected_because;
}

void Coordinator::on_goodbye(const Goodbye& goodbye, Member& member) {
  if (member.life != Life::running) return;
  member.life = Life::left;
  if (goodbye.for_good && member.in_view) {
    member.for_good = member.must_go = true;
    emit(EventKind::worker_left, &member,
         member.leave_because.empty() ? "left the job" : "left the job: " + member.leave_because);
    return;
  }
  emit(EventKind::worker_left, &member, "said goodbye");
}

}  // namespace closeranks::membership
