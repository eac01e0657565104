// The shared-memory recipe ("owner writes") of one group, as a pure machine: it reads the members' words through an
// interface and says what to do next, one store or one bounded range of bytes at a time. The engine does it; the
// simulator cuts between any two actions, and in the middle of each write. No I/O, no clock, no allocation in steady
// state. Not thread-safe: the engine calls it under its drive lock.
//
// Words, per member, each written by that member alone (its segment, src/transport/segment.h):
//   entered    count of entries entered           release-stored after data and descriptor
//   completed  count of entries completed in order
//   connected  1 when this member holds the segments of all members
//   descriptor ring of `window` slots: signature, region offsets, inline payload
//   block words [window][max_blocks]: (sequence, state, holder) of the blocks this member owns
//   scratch    one block
//   region     staged (or registered) tensor memory; owners of other members write results into it
// An entry is small (inline: every member reduces all payloads for himself) or cut into blocks, each with one owner.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "algorithm/plan.h"
#include "closeranks/ids.h"
#include "closeranks/op.h"
#include "closeranks/status.h"
#include "membership/group_status.h"

namespace closeranks::algorithm {

enum class BlockState : std::uint8_t { open = 0, final = 1, distributed = 2 };

// A block's word: 40 bits of sequence, 8 of state, 16 of holder rank (whose scratch has the final value).
// It names its entry, so it is never reset: a word of another sequence means open.
struct BlockWord {
  std::uint64_t sequence = 0;
  BlockState state = BlockState::open;
  std::uint32_t holder = 0;
  [[nodiscard]] std::uint64_t pack() const;
  static BlockWord unpack(std::uint64_t word);
};

// The decision of an entry under policy `fail`: success or failure, first wins (compare-and-swap in rank 0's segment).
enum class Decision : std::uint8_t { undecided = 0, success = 1, failed = 2 };
struct DecisionWord {
  std::uint64_t sequence = 0;
  Decision decision = Decision::undecided;
  std::uint32_t culprit = 0;  // rank, when failed
  [[nodiscard]] std::uint64_t pack() const;
  static DecisionWord unpack(std::uint64_t word);
};

// Reads of the members' words. Real: acquire loads from mapped segments; simulated: simulated memory.
// A member whose segment is not held reads as 0 everywhere.
class Words {
 public:
  virtual ~Words() = default;
  virtual std::uint64_t entered(Rank member) const = 0;
  virtual std::uint64_t completed(Rank member) const = 0;
  virtual std::uint64_t block_word(Rank owner, std::uint64_t sequence, std::uint32_t block) const = 0;
  virtual std::uint64_t signature(Rank member, std::uint64_t sequence) const = 0;  // of its descriptor
  virtual std::uint64_t decision_word(std::uint64_t sequence) const = 0;
};

// What the machine wants done next. Exactly one store, or one range of bytes in one destination.
struct Action {
  enum class Kind : std::uint8_t {
    none,             // nothing to do until a word changes
    reduce_block,     // contributors' regions (slot order) -> own scratch, divided by their number for AVG
    publish_block,    // store `word` into own block word
    copy_block,       // source -> member `destination`'s region
    combine_inline,   // contributors' inline payloads -> the caller's output (entry is inline)
    decide,           // compare-and-swap the decision word to `decision` (policy fail)
    complete,         // entry is over for this member: copy out, then tell the caller
    publish_completed // store own `completed` = sequence + 1
  };
  Kind kind = Kind::none;
  std::uint64_t sequence = 0;
  std::uint32_t block = 0;
  BlockWord word;
  Decision decision = Decision::undecided;
  Rank destination;
  // copy_block: from the scratch of `source` (through_scratch), or from its region, or zeros (vacant source)
  Rank source;
  bool from_scratch = false;
  bool zeros = false;
  // complete: how it ended
  Fault outcome = Fault::none;
  Rank culprit;
};

// One entry as the machine knows it. `plan` is a pure function of the call and the group (plan.h).
struct Entry {
  std::uint64_t sequence = 0;
  EntryPlan plan;
  std::uint64_t signature = 0;
};

struct MachineOptions {
  std::uint32_t members = 1;
  Rank self;
  std::vector<Slot> slots;  // of the members, rank order
  Policy policy = Policy::fail;
  bool lowest_member_is_root = false;
  std::uint32_t window = 16;  // entries in flight per member
};

// Set of ranks, in rank order. Groups of up to 1,024 members on one host.
using RankSet = std::vector<bool>;

class GroupMachine {
 public:
  explicit GroupMachine(MachineOptions options);

  // -- entering -------------------------------------------------------------------------------------------------
  // True when entry number `next_sequence()` may be entered: not frozen, window free on all present members.
  [[nodiscard]] bool may_enter(const Words& words) const;
  [[nodiscard]] std::uint64_t next_sequence() const;
  // The engine has written data and descriptor; it calls this, then release-stores entered = sequence + 1.
  // Precondition: may_enter().
  void enter(Entry entry);

  // -- running --------------------------------------------------------------------------------------------------
  // The next action; the engine performs it, then calls done(). Precondition of next(): the last action is done.
  // Frozen: always none.
  Action next(const Words& words);
  void done(const Action& action);
  // Members this worker waits for now (have not entered its lowest open entry, or own its undistributed blocks).
  [[nodiscard]] std::vector<Rank> waiting_for(const Words& words) const;
  // Policy fail: member `culprit` is gone. The lowest open entry is decided failed unless it succeeded; later ones fail.
  void peer_lost(Rank culprit);
  // Every open and later entry fails locally (timeout, shutdown, mismatch). Others learn by their own means.
  void fail_all(Fault outcome, Rank culprit);

  // -- contributors ---------------------------------------------------------------------------------------------
  // Members whose input counts in `sequence`: present ones, and excluded ones with last_op > sequence.
  [[nodiscard]] RankSet contributors(std::uint64_t sequence) const;
  [[nodiscard]] const RankSet& present() const;
  // Effective root of an entry's plan (lowest contributor for lowest_member_is_root).
  [[nodiscard]] Rank effective_root(const EntryPlan& plan, std::uint64_t sequence) const;

  // -- view change (policy repair) ------------------------------------------------------------------------------
  // Stops everything; fills entered, completed, view, departures, failed. The caller adds name, members, observed.
  membership::GroupStatus freeze();
  // Applies the decision: departures, failed ranges, new owners; then unfreezes. Departures already known are skipped.
  void install(const membership::GroupResolution& resolution);
  [[nodiscard]] bool frozen() const;

  [[nodiscard]] std::uint64_t entered() const;
  [[nodiscard]] std::uint64_t completed() const;

 private:
  // ... the implementer's
};

}  // namespace closeranks::algorithm
