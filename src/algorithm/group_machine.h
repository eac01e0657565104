// The shared-memory recipe of one group, as a pure machine: it reads the members' words through an interface and says
// what to do next, one store or one bounded range of bytes at a time. The engine does it; the simulator cuts between
// any two actions, and in the middle of each write. No I/O, no clock, no allocation in steady state. Not thread-safe:
// the engine calls it under its drive lock.
//
// Words of each member, in its segment (src/transport/segment.h), written by that member alone:
//   entered    count of entries entered           release-stored after data and descriptor
//   completed  count of entries completed in order
//   connected  connected_word(epoch) when this member holds the segments of all present members of that epoch
//   descriptor ring of `window` slots: signature, region offsets, inline payload
//   scratch    one block
//   region     staged (or registered) tensor memory. Style share: owners of other members write results into it
// and written by others too:
//   block words [window][max_blocks]: (sequence, state, holder). Style share: all words of an entry lie with its lowest
//              contributor, whose segment every member holds that has entered; a block is claimed there by
//              compare-and-swap, and then written by its owner alone. Style take: each member's word lies with itself
//   decisions  [window], with rank 0
// An entry is small (inline: every member reduces all payloads for himself) or done in one of plan.h's two styles:
// shared out in blocks, each with one owner who writes it to all (block_owner.cc), or taken by each member for itself
// (taker.cc). Whoever runs claims blocks: where members share cores, an entry is over when the last has entered and
// whoever has a core then has worked through it, and nobody needs a turn for blocks of his own. Inputs stay as they are
// until their member has completed the entry; then they are the caller's again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "algorithm/plan.h"
#include "algorithm/roster.h"
#include "algorithm/rules.h"
#include "closeranks/ids.h"
#include "closeranks/op.h"
#include "closeranks/status.h"
#include "membership/group_status.h"

namespace closeranks::algorithm {

// The value of `connected` in an epoch of the group: only grows, 0 before the first time.
std::uint64_t connected_word(ViewNumber epoch);

enum class BlockState : std::uint8_t { open = 0, claimed = 1, final = 2, distributed = 3 };

// A block's word: 40 bits of sequence, 8 of state, 16 of holder rank: who has claimed the block, or in whose scratch
// its final value is. The block is its holder's, or its holder's heir's (Seats::heir).
// It names its entry, so it is never reset: a word of an earlier sequence means open. A taker's goes from open to
// distributed: it is published after the last byte has been read and written.
struct BlockWord {
  std::uint64_t sequence = 0;
  BlockState state = BlockState::open;
  std::uint32_t holder = 0;
  [[nodiscard]] std::uint64_t pack() const;
  static BlockWord unpack(std::uint64_t word);
  // Whether a compare-and-swap from `word` may still claim the block in `sequence`.
  static bool unclaimed(std::uint64_t word, std::uint64_t sequence);
};

// The decision of an entry under policy `fail`: success or failure, first wins (compare-and-swap in rank 0's segment).
enum class Decision : std::uint8_t { undecided = 0, success = 1, failed = 2 };
struct DecisionWord {
  std::uint64_t sequence = 0;
  Decision decision = Decision::undecided;
  std::uint32_t culprit = 0;  // rank, when failed
  [[nodiscard]] std::uint64_t pack() const;
  static DecisionWord unpack(std::uint64_t word);
  // Whether a compare-and-swap from `word` may still decide `sequence`. False: it is decided (a word of a later
  // sequence says success, for nobody enters past a failed entry).
  static bool undecided(std::uint64_t word, std::uint64_t sequence);
};

// Reads of the members' words. Real: acquire loads from mapped segments; simulated: simulated memory.
// A member whose segment is not held reads as 0 everywhere.
class Words {
 public:
  virtual ~Words() = default;
  virtual std::uint64_t entered(Rank member) const = 0;
  virtual std::uint64_t completed(Rank member) const = 0;
  virtual std::uint64_t block_word(Rank home, std::uint64_t sequence, std::uint32_t block) const = 0;
  virtual std::uint64_t signature(Rank member, std::uint64_t sequence) const = 0;  // of its descriptor
  virtual std::uint64_t decision_word(std::uint64_t sequence) const = 0;
};

// What the machine wants done next. Exactly one store, or one range of bytes in one destination.
struct Action {
  enum class Kind : std::uint8_t {
    none,            // nothing to do until a word changes
    claim_block,     // while BlockWord::unclaimed(): compare-and-swap the block's word to word()
    reduce_block,    // contributors' regions (rank order) -> own scratch, divided by their number for AVG
    publish_block,   // release-store word() into the block's word, then a full fence: no later byte may pass it
    copy_block,      // scratch of `source` -> member `destination`'s region; non-temporal stores end with an sfence
    take_block,      // a range of one input unit of `source`, or zeros -> own output; sfence as above
    take_reduced,    // a range of one input unit of every contributor, reduced (rank order) -> own output; sfence too
    combine_inline,  // contributors' inline payloads -> own output (asked for only where there are bytes to put there)
    decide,          // while DecisionWord::undecided(): compare-and-swap {sequence, decision, culprit} (policy fail)
    complete,        // entry is over for this member: copy out if outcome is none, then tell the caller
    publish_completed  // release-store own `completed` = sequence + 1
  };
  Kind kind = Kind::none;
  BlockState state = BlockState::open;  // claim_block, publish_block: the word's, as is `holder`
  // decide: what to write, with the culprit. complete: how it ended, and who is to blame (peer_lost, mismatch).
  Decision decision = Decision::undecided;
  Fault outcome = Fault::none;
  bool zeros = false;  // take_block: `source` does not contribute, nothing of it is read
  std::uint32_t block = 0;
  std::uint64_t sequence = 0;
  // take_block, take_reduced: bytes [offset, offset + bytes) of a unit, at most take_bytes: of unit `input_unit` of the
  // inputs -> of unit `output_unit` of the output. Lengths are the plan's: real pairs of an all_to_all may be shorter.
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t input_unit = 0;
  std::uint32_t output_unit = 0;
  // reduce_block, copy_block: the range is block_plan()'s. claim_block, publish_block: `destination` has the word.
  Rank destination;
  Rank source;
  std::uint32_t holder = 0;
  Rank culprit;
  [[nodiscard]] BlockWord word() const { return {sequence, state, holder}; }
};
// Made at every look, often several times: a larger one is cleared by an instruction that is slow to begin.
static_assert(sizeof(Action) <= 64);

// One entry as the machine knows it. `plan` is a pure function of the call and the group (plan.h).
struct Entry {
  std::uint64_t sequence = 0;
  EntryPlan plan;
  std::uint64_t signature = 0;
  // First entry of the step this one belongs to (policy exact): the same on every member.
  std::uint64_t step_start = 0;
};

struct MachineOptions {
  std::uint32_t members = 1;
  Rank self;
  std::vector<Slot> slots;  // of the members, rank order
  Policy policy = Policy::fail;
  bool lowest_member_is_root = false;
  std::uint32_t window = 16;  // entries in flight per member
  Rules rules;                // all on, except in the tests that show what each is for
};

// Why a group can do no more entries: entry `from` and every later one end with `outcome`.
struct Failure {
  Fault outcome = Fault::none;
  Rank culprit;
  std::uint64_t from = 0;
};

// Copyable, so that a simulator can branch.
class GroupMachine {
 public:
  explicit GroupMachine(MachineOptions options);

  // -- entering -------------------------------------------------------------------------------------------------
  // True when entry number `next_sequence()` may be entered: not frozen, not failed, and every present member has
  // completed entry next_sequence() - window, whose ring slots the new entry takes.
  [[nodiscard]] bool may_enter(const Words& words) const;
  [[nodiscard]] std::uint64_t next_sequence() const { return entered_; }
  // The engine has written data and descriptor; it calls this, then release-stores entered = sequence + 1.
  // Precondition: may_enter(), entry.sequence == next_sequence().
  void enter(const Entry& entry) { enter(entry.sequence, entry.plan, entry.signature, entry.step_start); }
  // The same: an Entry that is put together for the call would be read again before its stores are through.
  void enter(std::uint64_t sequence, const EntryPlan& plan, std::uint64_t signature, std::uint64_t step_start);

  // -- running --------------------------------------------------------------------------------------------------
  // The next action; the engine performs it, then calls done(). Precondition of next(): the last action is done.
  // Frozen: always none. Entries complete in order. A failed group completes its open entries with its failure and
  // publishes nothing more.
  Action next(const Words& words);
  void done(const Action& action);
  // Members this worker waits for now, in rank order, itself never: those that have not entered its lowest open entry;
  // or, when all have, those that own undistributed blocks of it or have not taken their part; with no open entry,
  // those that keep the next one from being entered.
  [[nodiscard]] std::vector<Rank> waiting_for(const Words& words) const;
  // Policy fail: member `culprit` is gone. The lowest open entry is decided failed unless it succeeded; later ones
  // fail. The group fails with the culprit of the member that decided first. Ignored by a failed group.
  void peer_lost(Rank culprit);
  // Every open and later entry fails locally (timeout, shutdown). Others learn by their own means.
  // Ignored by a failed group. After this, and after peer_lost() and a mismatch, others may still write into this
  // member's regions for a while: they must not be used again.
  void fail_all(Fault outcome, Rank culprit);
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }
  // A failure that no entry has met yet (a slot vacant already when the group was made) is forgotten by `repair`.
  // Precondition: no open entry. Collective: every member calls it between the same two entries.
  void set_policy(Policy policy);
  [[nodiscard]] Policy policy() const { return policy_; }

  // -- contributors ---------------------------------------------------------------------------------------------
  // Members whose input counts in `sequence`: present ones, and excluded ones with last_op > sequence. Final once the
  // entry has been processed anywhere: the set of an entry that all contributors entered does not change any more.
  [[nodiscard]] RankSet contributors(std::uint64_t sequence) const;
  [[nodiscard]] bool contributes(Rank member, std::uint64_t sequence) const {
    return roster_->contributes(member, sequence);
  }
  [[nodiscard]] const RankSet& present() const { return roster_->present(); }
  // Effective root of an entry's plan (lowest contributor for lowest_member_is_root).
  [[nodiscard]] Rank effective_root(const EntryPlan& plan, std::uint64_t sequence) const;

  // -- view change (policies repair and exact)
  // ------------------------------------------------------------------------------ Stops everything; fills group view,
  // entered, completed, departures, failed, members, policy. The caller adds group, name and observed. May be called
  // again while frozen (a later view replaces this one).
  membership::GroupStatus freeze();
  // Applies the decision: departures, new owners; then unfreezes. Departures already known are skipped.
  // Policy fail: a new departure is a peer lost.
  // A resolution of a higher epoch than epoch(): a member has joined, and the group starts anew at entry `base`, with
  // a roster and seats as if it had just been made without the departures. Precondition: no open entry. The engine then
  // stores own entered = completed = base, before it says `connected` for the epoch.
  void install(const membership::GroupResolution& resolution);
  // What it was frozen for has been given up, before anything was decided.
  void thaw() { frozen_ = false; }
  [[nodiscard]] bool frozen() const { return frozen_; }

  [[nodiscard]] ViewNumber epoch() const { return epoch_; }
  // First entry of the epoch: it may be entered when all present members have said connected_word(epoch()).
  [[nodiscard]] std::uint64_t base() const { return base_; }
  // No entry is open, and none has met a failure: the state a member may join in.
  [[nodiscard]] bool idle() const { return completed_ == entered_ && !failure_met_; }

  [[nodiscard]] std::uint64_t entered() const { return entered_; }
  [[nodiscard]] std::uint64_t completed() const { return completed_; }
  // Blocks of dead owners this member has finished so far (for the event log).
  [[nodiscard]] std::uint64_t blocks_taken_over() const { return blocks_taken_over_; }

  // For simulators: it has a block in work, which others would have to take over.
  [[nodiscard]] bool at_a_block() const { return work_.stage != Stage::idle; }
  // For simulators: appends everything that decides what this machine will do.
  void append_state(std::vector<std::uint64_t>& state) const;

 private:
  enum class Readiness : std::uint8_t { waiting, ready, mismatched };

  // How far this member has come with what it takes from one source after the other.
  struct Taking {
    std::uint32_t sources = 0;  // done, counted from the own rank upwards
    std::uint64_t bytes = 0;    // done of the next one
    bool announced = false;     // distributed is published
  };

  struct OpenEntry {
    Entry entry;
    Readiness readiness = Readiness::waiting;
    std::uint32_t entered_cursor = 0;      // members below it have entered
    std::uint32_t distributed_cursor = 0;  // blocks below it are distributed
    std::uint32_t own_cursor =
        0;          // style share: blocks at places of claim_order() below it are others', done or in work
    Taking taking;  // style take
    Rank culprit;   // mismatched: one of the minority

    // In place: a new object that is copied here costs a tenth of a small op.
    void begin(std::uint64_t sequence, const EntryPlan& plan, std::uint64_t signature, std::uint64_t step_start) {
      entry.sequence = sequence;
      entry.plan = plan;
      entry.signature = signature;
      entry.step_start = step_start;
      readiness = Readiness::waiting;
      entered_cursor = distributed_cursor = own_cursor = 0;
      taking = {};
      culprit = {};
    }
  };

  enum class Stage : std::uint8_t { idle, reduce, publish_final, copy, publish_distributed };

  // The one block this member is at.
  struct Work {
    Stage stage = Stage::idle;
    std::uint64_t sequence = 0;
    std::uint32_t block = 0;
    std::uint32_t copied = 0;  // destinations done, counted from the own rank upwards
    bool all_destinations = false;
    Rank source;
    Rank destination;
  };

  OpenEntry& open(std::uint64_t sequence) { return ring_[sequence % options_->window]; }
  const OpenEntry& open(std::uint64_t sequence) const { return ring_[sequence % options_->window]; }
  Action action(Action::Kind kind, std::uint64_t sequence) const;

  // completion.cc
  Action finish_lowest(const Words& words);
  Action complete(Fault outcome, Rank culprit) const;
  [[nodiscard]] std::optional<Rank> missing(const Entry& entry) const;
  Action fail_from_lowest(Fault outcome, Rank culprit);
  Readiness readiness(OpenEntry& open, const Words& words);
  bool all_distributed(OpenEntry& open, const Words& words) const;
  // Who has yet to say that the block is distributed; nobody: it is, or its only taker is gone.
  [[nodiscard]] std::optional<Rank> awaited(const Entry& entry, std::uint32_t block, const Words& words) const;
  Action next_block(const Words& words);

  // view_change.cc
  void start_anew(const membership::GroupResolution& resolution);

  // taker.cc
  [[nodiscard]] TakePlan taking_of(const Entry& entry, Rank taker) const;
  [[nodiscard]] std::optional<Rank> awaited_taker(const Entry& entry, Rank taker, const Words& words) const;
  [[nodiscard]] bool all_taken(const OpenEntry& open) const;
  Action take(const OpenEntry& open) const;
  void taken(const Action& action);

  // block_owner.cc
  Action own_block(OpenEntry& open, const Words& words);
  [[nodiscard]] Rank home_of_words(std::uint64_t sequence) const;
  void begin(const OpenEntry& open, std::uint32_t block, const BlockWord& found);
  Action work_action();
  std::optional<Rank> next_destination();
  [[nodiscard]] Stage stage_after(Stage stage) const;
  void work_done(const Action& action);

  std::shared_ptr<const MachineOptions> options_;
  std::shared_ptr<const Roster> roster_;  // replaced at install only
  Policy policy_;
  ViewNumber view_;
  ViewNumber epoch_;
  std::uint64_t base_ = 0;
  std::vector<OpenEntry> ring_;  // [window], entry q in slot q % window; open ones: [completed_, entered_)
  std::uint64_t entered_ = 0;
  std::uint64_t completed_ = 0;
  bool completed_unpublished_ = false;
  bool combined_ = false;  // the lowest open entry's inline payloads
  bool frozen_ = false;
  std::optional<Rank> lost_;  // policy fail: a lost peer whose consequence is not decided yet
  std::optional<Failure> failure_;
  bool failure_met_ = false;  // an entry has ended with it
  Work work_;
  std::uint64_t own_from_ = 0;  // in entries below it this member has nothing left to own or take
  std::uint64_t blocks_taken_over_ = 0;
  mutable std::uint64_t completed_by_all_ = 0;  // every present member had completed this many, when last looked
};

}  // namespace closeranks::algorithm
