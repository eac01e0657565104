// The members of one group: who they are, the segments this process holds of them, and their words as the group
// machine reads them. All under the drive lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algorithm/group_machine.h"
#include "closeranks/ids.h"
#include "communicator/peer.h"
#include "transport/segment.h"

namespace closeranks::communicator {

class Members final : public algorithm::Words {
 public:
  // How error texts name members.
  struct Naming {
    std::string member_word;    // EngineOptions::member_word
    bool names_workers = true;  // a plain job's worker numbers say nothing beyond the rank
    WorkerId self_worker;
  };

  // `slots` in rank order; `own` is this member's segment, `arena` its process's, which outlives this object.
  Members(std::vector<Slot> slots, Rank self, Naming naming, transport::Segment own, const transport::OwnArena& arena);

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(slots_.size()); }
  [[nodiscard]] Rank self() const { return self_; }
  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] Slot slot(Rank rank) const { return slots_[rank.value()]; }
  [[nodiscard]] std::optional<Rank> rank_of(Slot slot) const;

  // -- peers and segments -----------------------------------------------------------------------------------------
  // nullptr while the address is not known, and for this member itself.
  [[nodiscard]] const std::shared_ptr<Peer>& peer(Rank rank) const { return members_[rank.value()].peer; }
  void set_peer(Rank rank, std::shared_ptr<Peer> peer) { members_[rank.value()].peer = std::move(peer); }
  // nullptr while it is not held. Once held it stays, also when the member is excluded (protocol rule 5), until another
  // worker takes its place.
  [[nodiscard]] const transport::Segment* segment(Rank rank) const {
    const auto& segment = members_[rank.value()].segment;
    return segment.has_value() ? &*segment : nullptr;
  }
  [[nodiscard]] const transport::Segment& own() const { return *members_[self_.value()].segment; }
  void hold(Rank rank, transport::Segment segment);
  // [offset, offset + bytes) of a member's region or arena, or nullptr when there is none: offsets are written by other
  // processes.
  [[nodiscard]] std::byte* memory(Rank rank, transport::Place place, std::uint64_t offset, std::uint64_t bytes) const;
  // As segment(), for messages. nullptr while the member has not said `connected` for an epoch that gave either of the
  // two a new worker: until then its words may still be those of the worker before.
  [[nodiscard]] const transport::Segment* segment_for_messages(Rank rank) const;
  // The group starts anew in `epoch`: `connected` is counted again. Another worker may have taken the place of some
  // (replace()), or `self_joins` and all others are new to this one.
  void start_anew(ViewNumber epoch, bool self_joins);
  // `peer` takes the place of the worker before, whose segment is dropped.
  void replace(Rank rank, std::shared_ptr<Peer> peer);
  // One fetch at a time per member; set and cleared by the engine.
  bool& fetching(Rank rank) { return members_[rank.value()].fetching; }

  // Publishes `connected` once the segments and arenas of all of `present` are held (protocol rule 6). True when it was
  // published by this call.
  bool publish_connected(const algorithm::RankSet& present);
  // All of `present` have published `connected`: entry 0 may be entered (protocol rule 6). Remembers a yes.
  [[nodiscard]] bool all_connected(const algorithm::RankSet& present);
  // Members of `present` that have not (or whose segment or arena is not held yet).
  [[nodiscard]] std::vector<Rank> not_connected(const algorithm::RankSet& present) const;

  // The word that a claim_block or publish_block is about. Precondition: the action is the machine's, so it is held.
  [[nodiscard]] std::atomic<std::uint64_t>& block_word(const algorithm::Action& action) const;

  // Wakes the sleeping threads of all other members after stores of ours; the fence is included.
  void ring() const;

  // -- texts ------------------------------------------------------------------------------------------------------
  // "slot 2 (worker 5, pid 4711)", as much of it as is known.
  [[nodiscard]] std::string name(Rank rank) const;
  // "slot 2 (...), slot 3 (...) and 5 more"; at most four are spelled out.
  [[nodiscard]] std::string names(const std::vector<Rank>& ranks) const;
  // "it is stopped (T)", "pid 77 is stopped (T) and pid 78 sleeping (S)": what the kernel says of their processes, of
  // four at most; empty: nothing is known of them.
  [[nodiscard]] std::string states(const std::vector<Rank>& ranks) const;

  // -- algorithm::Words: acquire loads ----------------------------------------------------------------------------
  [[nodiscard]] std::uint64_t entered(Rank member) const override;
  [[nodiscard]] std::uint64_t completed(Rank member) const override;
  [[nodiscard]] std::uint64_t block_word(Rank home, std::uint64_t sequence, std::uint32_t block) const override;
  [[nodiscard]] std::uint64_t signature(Rank member, std::uint64_t sequence) const override;
  [[nodiscard]] std::uint64_t decision_word(std::uint64_t sequence) const override;

 private:
  [[nodiscard]] bool held(Rank rank) const;
  struct Member {
    std::shared_ptr<Peer> peer;
    std::optional<transport::Segment> segment;
    bool fetching = false;
    // Messages wait for its `connected` of the epoch.
    mutable bool unmet = false;
  };
  std::vector<Slot> slots_;
  Rank self_;
  Naming naming_;
  const transport::OwnArena& arena_;
  std::vector<Member> members_;
  std::uint64_t connected_word_ = 1;  // of the epoch
  bool connected_ = false;
  bool all_connected_ = false;
};

}  // namespace closeranks::communicator
