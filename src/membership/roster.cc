// Who is who: the roster itself, and hello, welcome, goodbye, eviction of the coordinator's machine.
#include "membership/roster.h"

#include <algorithm>

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

std::vector<Slot> Roster::present_slots() const {
  std::vector<Slot> slots;
  for (const Member& member : members_) {
    if (member.life != Life::excluded) slots.push_back(member.slot);
  }
  return slots;
}

std::uint32_t Roster::present_count() const {
  return static_cast<std::uint32_t>(std::count_if(members_.begin(), members_.end(),
                                                  [](const Member& member) { return member.life != Life::excluded; }));
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
  if (member.life != Life::running) return;  // about to be fenced, or has left: nothing to tell it
  if (!member.registered || member.address != hello.self) {
    if (!member.registered) emit(EventKind::worker_registered, &member, "said hello for the first time");
    member.registered = true;
    member.waited_for = false;  // it was for a sign of life; from here on its peers can see for themselves
    member.address = hello.self;
    effects_.journal.emplace_back(WorkerRegistered{hello.self});
    unannounced_.push_back(hello.self);
    if (!announce_at_) announce_at_ = now + config_.announce_interval;
  }
  welcome(member);
  bring_up_to_date(hello, member);
}

// The view in force may have passed this worker by: its connection broke with the install on the way, or the
// coordinator that sent the install is no more.
void Coordinator::bring_up_to_date(const Hello& hello, const Member& member) {
  const bool joined = hello.installed != ViewNumber{};
  const bool behind = joined && hello.installed < view_;
  if (behind && last_install_ && last_install_->view == view_ && hello.prepared == view_) {
    send(member.worker, *last_install_);
  } else if ((behind || hello.prepared != ViewNumber{}) && !change_) {
    // It is frozen for a number nobody will install, or lacks a decision this coordinator does not have in full.
    unresolved_ = restarted_ = true;
  }
  if (change_) send_proposal(member.worker);
}

void Coordinator::welcome(const Member& member) {
  Welcome welcome{term_, view_, {}, excluded_};
  for (const Member& other : roster_.members()) {
    if (other.registered && other.life != Life::excluded && other.worker != member.worker) {
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
      send(member.worker, Welcome{term_, view_, unannounced_, excluded_});
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
  return {};
}

void Coordinator::on_goodbye(Member& member) {
  if (member.life != Life::running) return;
  member.life = Life::left;
  emit(EventKind::worker_left, &member, "said goodbye");
}

}  // namespace closeranks::membership
