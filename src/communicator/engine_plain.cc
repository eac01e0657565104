// A plain job: fixed members that find each other through the address book when a group is made.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <sstream>
#include <thread>
#include <utility>

#include "communicator/engine_core.h"

namespace closeranks::communicator {
namespace {

// What a member that was already given up on is still asked for: the others may be there, and the error names those
// that are not.
constexpr std::chrono::milliseconds last_chance{1};
// Between two looks at the address of a process that lives and does not answer.
constexpr std::chrono::milliseconds look_again_after{20};
// The others are connected within microseconds of each other.
constexpr std::chrono::milliseconds connected_after{1};

std::string address_key(GroupKey group, Slot slot) {
  std::array<char, 64> key{};
  std::snprintf(key.data(), key.size(), "closeranks/%016llx/%u", static_cast<unsigned long long>(group.value()),
                slot.value());
  return key.data();
}

std::chrono::milliseconds left_until(EngineCore::Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - EngineCore::Clock::now());
  return std::max(left, last_chance);
}

Status missing_members(const Group& group, const std::string& who, std::size_t count, const Status& last,
                       std::chrono::milliseconds timeout) {
  std::array<char, 32> waited{};
  std::snprintf(waited.data(), waited.size(), "%.1f s", static_cast<double>(timeout.count()) / 1000.0);
  Status status(Fault::timeout, Move::retry,
                who + (count == 1 ? " has" : " have") + " not joined group '" + group.options().name + "' within " +
                    waited.data() + ". Start the missing processes, or raise the group's timeout (last answer: " +
                    last.message() + ")");
  status.group = group.options().name;
  return status;
}

Status ended_meanwhile(Group& group, Rank rank) {
  Status lost(Fault::peer_lost, Move::repair_group,
              group.members().name(rank) + " is gone: it ended while group '" + group.options().name +
                  "' was being made. Start again with all members");
  lost.slot = group.members().slot(rank);
  lost.group = group.options().name;
  return lost;
}

}  // namespace

// "1 4711 endpoint token": version of this text, pid, and where its segments are served.
std::string EngineCore::own_address() const {
  return "1 " + std::to_string(::getpid()) + " " + server_->endpoint() + " " + token_;
}

Result<std::shared_ptr<Peer>> EngineCore::peer_from_address(Slot slot, const std::string& address) {
  std::istringstream text(address);
  std::uint32_t version = 0;
  Peer read;
  if (!(text >> version >> read.pid >> read.endpoint >> read.token) || version != 1) {
    return Status(Fault::refused, Move::give_up,
                  options_.member_word + " " + std::to_string(slot.value()) + " gave an address that this version of " +
                      "closeranks does not understand: use the same version in every process");
  }
  read.slot = slot;
  read.worker = WorkerId{slot.value()};
  // Under the same endpoint it is the same process; under another one its predecessor belongs to an earlier job.
  const std::lock_guard lock(lock_);
  std::shared_ptr<Peer>& known = peers_[read.worker];
  if (known != nullptr && known->endpoint == read.endpoint) return known;
  if (known != nullptr) former_peers_.push_back(known);
  known = std::make_shared<Peer>(std::move(read));
  return known;
}

// The group is not driven yet: only this thread knows it.
Status EngineCore::meet_members(Group& group, const AddressBook& book, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  Members& members = group.members();
  Status told = book.set(address_key(group.key(), options_.slot), own_address());
  if (!told.ok()) return told;
  std::vector<Rank> missing;
  Status last;
  for (std::uint32_t r = 0; r < members.size(); ++r) {
    if (Rank{r} == members.self()) continue;
    Status met = meet_member(group, Rank{r}, book, deadline);
    if (met.fault() == Fault::timeout) {
      missing.push_back(Rank{r});
      last = std::move(met);
    } else if (!met.ok()) {
      return met;
    }
  }
  if (!missing.empty()) return missing_members(group, members.names(missing), missing.size(), last, timeout);
  return await_connected(group, deadline, timeout);
}

// Nobody returns before all hold all segments: a member that has nothing to do could leave at once, and those that are
// still on their way to it would find it gone.
Status EngineCore::await_connected(Group& group, Clock::time_point deadline, std::chrono::milliseconds timeout) {
  Members& members = group.members();
  const algorithm::RankSet everybody(members.size(), true);
  members.publish_connected(everybody);
  for (;;) {
    const std::vector<Rank> missing = members.not_connected(everybody);
    if (missing.empty()) return {};
    for (const Rank rank : missing) {
      // Looked at once more after its life: what it had stored before it ended is visible then.
      if (!members.peer(rank)->gone()) continue;
      const std::vector<Rank> still = members.not_connected(everybody);
      if (std::find(still.begin(), still.end(), rank) != still.end()) return ended_meanwhile(group, rank);
    }
    if (Clock::now() >= deadline) {
      return missing_members(group, members.names(missing), missing.size(),
                             Status(Fault::timeout, Move::retry,
                                    "not every member's memory is held there yet; " + members.states(missing)),
                             timeout);
    }
    std::this_thread::sleep_for(connected_after);
  }
}

// Fault::timeout: it has not come. An address that nobody answers at may be an old one of a process that is just making
// its engine anew (the book keeps what was set before): as long as that process lives, a new one is waited for.
Status EngineCore::meet_member(Group& group, Rank rank, const AddressBook& book, Clock::time_point deadline) {
  Members& members = group.members();
  for (;;) {
    const Result<std::string> address = book.get(address_key(group.key(), members.slot(rank)), left_until(deadline));
    // Whatever the book says of a key that is not there in time, it means that the member has not come.
    if (!address.ok()) return {Fault::timeout, Move::retry, address.status().message()};
    const Result<std::shared_ptr<Peer>> found = peer_from_address(members.slot(rank), address.value());
    if (!found.ok()) return found.status();
    const std::shared_ptr<Peer>& peer = found.value();
    members.set_peer(rank, peer);
    Status attached = attach_life(peer, deadline);
    if (attached.ok()) attached = attach_arena(peer, deadline);
    if (attached.ok()) attached = attach_segment(group, rank, *peer, deadline);
    if (attached.fault() != Fault::peer_lost) return attached;
    const bool lives = ::kill(static_cast<pid_t>(peer->pid), 0) == 0 || errno != ESRCH;
    if (!lives || Clock::now() >= deadline) {
      return ended_meanwhile(group, rank);
    }
    std::this_thread::sleep_for(look_again_after);
  }
}

Status EngineCore::attach_life(const std::shared_ptr<Peer>& peer, Clock::time_point deadline) {
  {
    const std::lock_guard lock(lock_);
    if (peer->life.has_value()) return {};
  }
  auto descriptor =
      transport::fetch_segment(peer->endpoint, peer->token, transport::SegmentKey::life(), left_until(deadline));
  if (!descriptor.ok()) return descriptor.status();
  auto life = transport::PeerLife::attach(std::move(descriptor.value()), {options_.job, peer->worker, peer->slot},
                                          options_.slot.value());
  if (!life.ok()) return life.status();
  const std::lock_guard lock(lock_);
  if (!peer->life.has_value()) peer->life.emplace(std::move(life.value()));
  return {};
}

Status EngineCore::attach_arena(const std::shared_ptr<Peer>& peer, Clock::time_point deadline) {
  {
    const std::lock_guard lock(lock_);
    if (peer->arena.has_value()) return {};
  }
  auto descriptor =
      transport::fetch_segment(peer->endpoint, peer->token, transport::SegmentKey::arena(), left_until(deadline));
  if (!descriptor.ok()) return descriptor.status();
  auto arena = transport::PeerArena::attach(std::move(descriptor.value()), {options_.job, peer->worker, peer->slot});
  if (!arena.ok()) return arena.status();
  const std::lock_guard lock(lock_);
  if (!peer->arena.has_value()) peer->arena.emplace(std::move(arena.value()));
  return {};
}

Status EngineCore::attach_segment(Group& group, Rank rank, const Peer& peer, Clock::time_point deadline) {
  auto descriptor =
      transport::fetch_segment(peer.endpoint, peer.token, transport::SegmentKey::of(group.key()), left_until(deadline));
  if (!descriptor.ok()) return descriptor.status();
  auto segment = transport::Segment::attach(std::move(descriptor.value()),
                                            {options_.job, group.key(), "", peer.worker, peer.slot, rank},
                                            segment_shape(group.members().size()));
  if (!segment.ok()) return segment.status();
  group.members().hold(rank, std::move(segment.value()));
  return {};
}

}  // namespace closeranks::communicator
