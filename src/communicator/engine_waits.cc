// Callers that are blocked, circles of them, and what becomes of the ops in a circle.
#include "communicator/engine_waits.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "communicator/engine_core.h"
#include "communicator/issuers.h"

namespace closeranks::communicator {

using transport::WaitBoard;
using transport::WaitKey;
using transport::WaitVerdict;

namespace {

// Waits that are followed from one's own: a bound for boards that make no sense.
constexpr std::size_t most_waits = 4096;

}  // namespace

BlockedWait::BlockedWait(EngineCore& core, Group& group, Operation& operation, bool for_ever)
    : core_(core),
      group_(group),
      operation_(operation),
      next_look_(for_ever ? Clock::now() + told_after : Clock::time_point::max()) {}

BlockedWait::~BlockedWait() {
  if (!taken_) return;
  const std::lock_guard lock(core_.lock_);
  core_.life_->own_wait_board().release(*taken_);
  std::erase(core_.waits_, this);
}

void BlockedWait::look() {
  if (Clock::now() < next_look_) return;
  std::vector<std::shared_ptr<Operation>> ended;
  bool failed = false;
  {
    const std::lock_guard lock(core_.lock_);
    const Clock::time_point now = Clock::now();
    next_look_ = now + wait_look;
    failed = look(now);
    ended.swap(core_.finished_);
  }
  core_.settle(ended);
  if (failed) core_.look_again();
}

// True: the group has failed.
bool BlockedWait::look(Clock::time_point now) {
  const auto blocked = blocked_members();
  // What has come meanwhile is taken in first: what is told is what is left to wait for.
  if (!core_.do_all_there_is() || operation_.done()) return false;
  if (!taken_) {
    taken_ = core_.life_->own_wait_board().take(this_thread());
    if (!taken_) return false;
    key_ = {core_.options_.worker, taken_->wait, taken_->record};
    core_.waits_.push_back(this);
  }
  tell(blocked);
  const Waits waits = reachable();
  // After the boards: whoever has left the circle seen last has said why before.
  if (core_.look_for_verdicts()) return true;
  const std::optional<OrderCycle> cycle = watch_.look(waits, key_, now);
  if (!cycle) return false;
  declare(*cycle, waits);
  return true;
}

// By rank; empty for those that are not there or not connected.
std::vector<std::vector<WaitBoard::Blocked>> BlockedWait::blocked_members() const {
  Members& members = group_.members();
  std::vector<std::vector<WaitBoard::Blocked>> blocked(members.size());
  for (std::uint32_t r = 0; r < members.size(); ++r) {
    const std::shared_ptr<Peer>& peer = members.peer(Rank{r});
    if (peer && peer->life.has_value() && !peer->gone()) blocked[r] = peer->life->wait_board().blocked();
  }
  return blocked;
}

// All threads of `member` that call ops of the group, or none when one of them is not blocked.
std::vector<WaitKey> BlockedWait::awaited_threads_of(Rank member,
                                                     const std::vector<WaitBoard::Blocked>& blocked) const {
  std::vector<WaitKey> keys;
  const std::shared_ptr<Peer>& peer = group_.members().peer(member);
  for (const std::uint32_t thread : group_.callers(member)) {
    const auto found = std::find_if(blocked.begin(), blocked.end(),
                                    [thread](const WaitBoard::Blocked& one) { return one.thread == thread; });
    if (found == blocked.end() || !peer->life->wait_board().lasts(found->record, found->wait)) return {};
    keys.push_back({peer->worker, found->wait, found->record});
  }
  return keys;
}

void BlockedWait::tell(const std::vector<std::vector<WaitBoard::Blocked>>& blocked) {
  const Group::Awaited awaited = group_.awaited_by(operation_);
  // Those first that wait for somebody who is blocked: only they can be in a circle. Then by rank, so that in a circle
  // of whole groups the lowest members name each other.
  std::vector<std::vector<WaitKey>> first;
  std::vector<std::vector<WaitKey>> then;
  for (const Rank member : awaited.members) {
    const auto& threads = blocked[member.value()];
    std::vector<WaitKey> keys = awaited_threads_of(member, threads);
    if (keys.empty() && awaited.any) {
      first.clear();
      then.clear();
      break;
    }
    const bool waits_for_blocked =
        std::any_of(threads.begin(), threads.end(), [](const auto& thread) { return thread.waits_for_blocked; });
    (waits_for_blocked ? first : then).push_back(std::move(keys));
  }
  first.insert(first.end(), then.begin(), then.end());
  std::vector<WaitKey> told;
  for (const std::vector<WaitKey>& keys : first) {
    if (told.size() + keys.size() <= transport::awaited_threads) {
      told.insert(told.end(), keys.begin(), keys.end());
    } else if (awaited.any) {
      told.clear();  // all or nothing
      break;
    }
  }
  transport::WaitRecord record;
  record.any = awaited.any;
  record.group = {group_.key(), group_.epoch_word()};
  record.awaited = std::move(told);
  record.call = group_.call_text(operation_);
  core_.life_->own_wait_board().tell(*taken_, record);
}

Waits BlockedWait::reachable() const {
  Waits waits;
  std::deque<WaitKey> open{key_};
  while (!open.empty() && waits.size() < most_waits) {
    const WaitKey key = open.front();
    open.pop_front();
    if (waits.contains(key)) continue;
    const std::optional<WaitBoard> board = core_.board_of(key.worker);
    if (!board) continue;
    std::optional<transport::WaitRecord> record = board->record(key.record);
    if (!record || record->wait != key.wait) continue;
    open.insert(open.end(), record->awaited.begin(), record->awaited.end());
    waits.emplace(key, std::move(*record));
  }
  return waits;
}

bool BlockedWait::concerned_by(const WaitVerdict& verdict) const {
  const auto named = [&verdict](const WaitKey& key) {
    return std::any_of(verdict.circle.begin(), verdict.circle.end(),
                       [&key](const transport::CircleThread& thread) { return thread.key == key; });
  };
  if (named(key_)) return true;
  return watch_.seen() && std::any_of(watch_.seen()->circle.begin(), watch_.seen()->circle.end(), named);
}

void BlockedWait::declare(const OrderCycle& cycle, const Waits& waits) {
  WaitVerdict verdict;
  std::vector<CircleMember> members;
  for (const WaitKey& key : from_the_lowest(cycle.circle)) {
    const transport::WaitRecord& record = waits.at(key);
    verdict.circle.push_back({key, record.group});
    members.push_back({core_.worker_name(key.worker), record.call});
  }
  verdict.sentence = describe_circle(members);
  core_.fail_for(verdict, group_, operation_);
}

// ---- the engine's part, under the drive lock -----------------------------------------------------------------------

// Whatever can be done in any group. False: somebody else wants the lock.
bool EngineCore::do_all_there_is() {
  for (const auto& group : groups_) {
    if (!group->open()) continue;
    while (group->step()) {
      if (lock_.wanted()) return false;
    }
    group->flush();
  }
  return true;
}

// nullopt: not known, or its process is gone.
std::optional<WaitBoard> EngineCore::board_of(WorkerId worker) const {
  if (worker == options_.worker) return life_->wait_board();
  const auto found = peers_.find(worker);
  if (found == peers_.end() || !found->second->life.has_value() || found->second->gone()) return std::nullopt;
  return found->second->life->wait_board();
}

std::string EngineCore::worker_name(WorkerId worker) const {
  const auto found = peers_.find(worker);
  const bool self = worker == options_.worker;
  if (!self && found == peers_.end()) return "worker " + std::to_string(worker.value());
  const Slot slot = self ? options_.slot : found->second->slot;
  const std::uint32_t pid = self ? static_cast<std::uint32_t>(::getpid()) : found->second->pid;
  return options_.member_word + " " + std::to_string(slot.value()) + " (" +
         (coordinated() ? "worker " + std::to_string(worker.value()) + ", " : "") + "pid " + std::to_string(pid) + ")";
}

// The group in which `operation` waits fails, and every other one that the circle goes through: an op that a member has
// given up must not succeed where it is called later. Their other members find on the board that they did, and why.
void EngineCore::fail_for(const WaitVerdict& verdict, Group& waiting_in, const Operation& operation) {
  const auto other = std::find_if(verdict.circle.begin(), verdict.circle.end(),
                                  [this](const auto& thread) { return thread.key.worker != options_.worker; });
  const auto fail = [&](Group& group, const Operation* waiting) {
    Status status = group.circle_status(verdict.sentence, waiting);
    if (other != verdict.circle.end()) {
      const auto peer = peers_.find(other->key.worker);
      status.worker = other->key.worker;
      if (peer != peers_.end()) status.slot = peer->second->slot;
    }
    WaitVerdict own = verdict;
    own.group = {group.key(), group.epoch_word()};
    own.place = group.lowest_place();
    life_->own_wait_board().declare(own);
    group.fail(std::move(status));
    group.flush();
  };
  fail(waiting_in, &operation);
  for (const auto& group : groups_) {
    const transport::GroupEpoch name{group->key(), group->epoch_word()};
    const bool in_circle = std::any_of(verdict.circle.begin(), verdict.circle.end(),
                                       [&name](const auto& thread) { return thread.group == name; });
    if (in_circle && group->health().ok() && !group->alone()) fail(*group, nullptr);
  }
}

// What others have declared and concerns this process: a circle with a thread of its own in it, or a group of its own
// that has failed on a member without which it cannot go on. True when a group has failed for it. To be called before
// deaths are looked for: who has declared a circle may end at once.
bool EngineCore::look_for_verdicts() {
  std::vector<std::pair<const Peer*, WaitVerdict>> found;
  const auto read = [&found](const Peer* peer, const WaitBoard& board) {
    if (!board.has_verdicts()) return;
    for (WaitVerdict& verdict : board.verdicts()) found.emplace_back(peer, std::move(verdict));
  };
  read(nullptr, life_->wait_board());
  for (const auto& [worker, peer] : peers_) {
    if (peer->life.has_value()) read(peer.get(), peer->life->wait_board());
  }
  if (found.empty()) return false;
  bool failed = false;
  for (const BlockedWait* wait : waits_) {
    if (!wait->group().health().ok() || wait->operation().done()) continue;
    const auto mine =
        std::find_if(found.begin(), found.end(), [wait](const auto& one) { return wait->concerned_by(one.second); });
    if (mine == found.end()) continue;
    fail_for(mine->second, wait->group(), wait->operation());
    failed = true;
  }
  for (const auto& group : groups_) {
    if (!group->open() || !group->health().ok()) continue;
    std::vector<std::optional<std::uint32_t>> failed_at(group->members().size());
    const WaitVerdict* verdict = nullptr;
    for (const auto& [peer, one] : found) {
      if (peer == nullptr || one.group != transport::GroupEpoch{group->key(), group->epoch_word()}) continue;
      const std::optional<Rank> rank = group->members().rank_of(peer->slot);
      if (!rank || !group->has_present(peer->slot) || group->members().peer(*rank).get() != peer) continue;
      failed_at[rank->value()] = one.place;
      verdict = &one;
    }
    if (verdict == nullptr) continue;
    // What they had done before is taken in first.
    while (group->step()) {
    }
    const std::shared_ptr<Operation> stuck = group->stuck_without(failed_at);
    if (stuck == nullptr) continue;
    fail_for(*verdict, *group, *stuck);
    failed = true;
  }
  return failed;
}

}  // namespace closeranks::communicator
