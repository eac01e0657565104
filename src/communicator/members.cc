#include "communicator/members.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::communicator {

Members::Members(std::vector<Slot> slots, Rank self, Naming naming, transport::Segment own,
                 const transport::OwnArena& arena)
    : slots_(std::move(slots)), self_(self), naming_(std::move(naming)), arena_(arena), members_(slots_.size()) {
  hold(self_, std::move(own));
}

std::optional<Rank> Members::rank_of(Slot slot) const {
  const auto found = std::find(slots_.begin(), slots_.end(), slot);
  if (found == slots_.end()) return std::nullopt;
  return Rank{static_cast<std::uint32_t>(found - slots_.begin())};
}

void Members::hold(Rank rank, transport::Segment segment) {
  CR_ASSERT(!members_[rank.value()].segment.has_value());
  members_[rank.value()].segment.emplace(std::move(segment));
}

bool Members::held(Rank rank) const {
  const Member& member = members_[rank.value()];
  return member.segment.has_value() && (rank == self_ || (member.peer && member.peer->arena.has_value()));
}

std::byte* Members::memory(Rank rank, transport::Place place, std::uint64_t offset, std::uint64_t bytes) const {
  const Member& member = members_[rank.value()];
  switch (place) {
    case transport::Place::none:
      return nullptr;
    case transport::Place::region:
      return member.segment.has_value() ? member.segment->region_range(offset, bytes) : nullptr;
    case transport::Place::arena:
      if (rank == self_) return arena_.range(offset, bytes);
      return member.peer && member.peer->arena.has_value() ? member.peer->arena->range(offset, bytes) : nullptr;
  }
  return nullptr;  // another process wrote it
}

const transport::Segment* Members::segment_for_messages(Rank rank) const {
  const Member& member = members_[rank.value()];
  if (!member.segment.has_value()) return nullptr;
  if (member.unmet) {
    if (member.segment->connected().load(std::memory_order_acquire) < connected_word_) return nullptr;
    member.unmet = false;
  }
  return &*member.segment;
}

void Members::start_anew(ViewNumber epoch, bool self_joins) {
  connected_word_ = algorithm::connected_word(epoch);
  connected_ = all_connected_ = false;
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (self_joins && Rank{r} != self_) members_[r].unmet = true;
  }
}

void Members::replace(Rank rank, std::shared_ptr<Peer> peer) {
  members_[rank.value()] = Member{std::move(peer), std::nullopt, false, true};
}

bool Members::publish_connected(const algorithm::RankSet& present) {
  if (connected_) return false;
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (present[r] && !held(Rank{r})) return false;
  }
  connected_ = true;
  own().connected().store(connected_word_, std::memory_order_release);
  return true;
}

bool Members::all_connected(const algorithm::RankSet& present) {
  all_connected_ = all_connected_ || not_connected(present).empty();
  return all_connected_;
}

std::vector<Rank> Members::not_connected(const algorithm::RankSet& present) const {
  std::vector<Rank> missing;
  for (std::uint32_t r = 0; r < size(); ++r) {
    if (!present[r]) continue;
    const bool connected =
        held(Rank{r}) && segment(Rank{r})->connected().load(std::memory_order_acquire) >= connected_word_;
    if (!connected) missing.push_back(Rank{r});
  }
  return missing;
}

void Members::ring() const {
  transport::Doorbell::fence();
  for (const Member& member : members_) {
    if (member.peer && member.peer->life.has_value()) member.peer->life->doorbell().ring_fenced();
  }
}

std::string Members::name(Rank rank) const {
  std::string text = naming_.member_word + " " + std::to_string(slot(rank).value());
  const std::shared_ptr<Peer>& known = peer(rank);
  std::string facts;
  if (naming_.names_workers && (known || rank == self_)) {
    facts = "worker " + std::to_string((known ? known->worker : naming_.self_worker).value());
  }
  const std::uint32_t pid = rank == self_ ? static_cast<std::uint32_t>(::getpid()) : known ? known->pid : 0;
  if (pid != 0) facts += (facts.empty() ? "pid " : ", pid ") + std::to_string(pid);
  return facts.empty() ? text : text + " (" + facts + ")";
}

std::string Members::names(const std::vector<Rank>& ranks) const {
  constexpr std::size_t spelled_out = 4;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < spelled_out; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += name(ranks[i]);
  }
  if (ranks.size() > spelled_out) text += " and " + std::to_string(ranks.size() - spelled_out) + " more";
  return text;
}

std::string Members::states(const std::vector<Rank>& ranks) const {
  constexpr std::size_t spelled_out = 4;
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size() && parts.size() < spelled_out; ++i) {
    const std::shared_ptr<Peer>& peer = this->peer(ranks[i]);
    const std::string state = peer ? peer->state_text() : "";
    if (state.empty()) continue;
    const std::string who = ranks.size() == 1 ? "it" : "pid " + std::to_string(peer->pid);
    parts.push_back(who + (parts.empty() ? " is " : " ") + state);
  }
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += parts[i];
  }
  return text;
}

std::uint64_t Members::entered(Rank member) const {
  const transport::Segment* held = segment(member);
  return held == nullptr ? 0 : held->entered().load(std::memory_order_acquire);
}

std::uint64_t Members::completed(Rank member) const {
  const transport::Segment* held = segment(member);
  return held == nullptr ? 0 : held->completed().load(std::memory_order_acquire);
}

std::atomic<std::uint64_t>& Members::block_word(const algorithm::Action& action) const {
  const transport::Segment* held = segment(action.destination);
  CR_ASSERT(held != nullptr);
  return held->block_word(action.sequence, action.block);
}

std::uint64_t Members::block_word(Rank home, std::uint64_t sequence, std::uint32_t block) const {
  const transport::Segment* held = segment(home);
  return held == nullptr ? 0 : held->block_word(sequence, block).load(std::memory_order_acquire);
}

std::uint64_t Members::signature(Rank member, std::uint64_t sequence) const {
  const transport::Segment* held = segment(member);
  // Written before `entered`, which the reader has acquired.
  return held == nullptr ? 0 : held->descriptor_slot(sequence).signature.load(std::memory_order_relaxed);
}

std::uint64_t Members::decision_word(std::uint64_t sequence) const {
  const transport::Segment* held = segment(Rank{0});
  return held == nullptr ? 0 : held->decision(sequence).load(std::memory_order_acquire);
}

}  // namespace closeranks::communicator
