// What the threads of a process wait for, told to its peers: the wait board, a part of the life memory (life.h). A
// thread that has been blocked in an op for a while writes a record: what it called, and which blocked threads of other
// processes would have to go on before its op can end. Whoever follows these records from process to process back to
// where he began has found threads that wait for each other in a circle (communicator/order_cycle.h).
//
// A board also keeps the process's last verdicts: circles that made a group of its fail. They stay readable when the
// process is gone, as long as its life is mapped.
//
// Readers trust nothing: a record may be torn (its writer is at it, or died at it), and any word may hold anything. The
// layout is in docs/segment.md.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"

namespace closeranks::transport {

// Threads of one process that can be blocked and seen to be; further ones are not seen, so nothing is said of them.
inline constexpr std::uint32_t wait_records = 8;
// Blocked threads a record names. In a circle of whole groups each wait names the lowest members, who find it.
inline constexpr std::uint32_t awaited_threads = 16;
inline constexpr std::uint32_t wait_verdicts = 8;
// Threads of a circle that a verdict names; those of a longer one know it by a thread that both name.
inline constexpr std::uint32_t circle_threads = 16;
inline constexpr std::size_t call_text_bytes = 256;
inline constexpr std::size_t sentence_bytes = 1024;

// One blocked thread, in one wait.
struct WaitKey {
  WorkerId worker;
  std::uint64_t wait = 0;    // number of the wait on its worker's board, from 1; never used again
  std::uint32_t record = 0;  // where on the board
  friend constexpr auto operator<=>(const WaitKey&, const WaitKey&) = default;
};

// An op's group in one of its epochs: algorithm::connected_word() of that.
struct GroupEpoch {
  GroupKey group;
  std::uint64_t epoch = 0;
  friend constexpr auto operator<=>(const GroupEpoch&, const GroupEpoch&) = default;
};

// What a blocked thread says of its wait.
struct WaitRecord {
  std::uint64_t wait = 0;
  std::uint32_t thread = 0;  // thread id, in the process's own pid namespace
  // False: the op ends only when every awaited worker has gone on, each by any of the threads named of it. So the wait
  // lasts as long as all the threads named of one worker are blocked. True (a recv from any source): it ends when any
  // of the threads named goes on.
  bool any = false;
  GroupEpoch group;
  std::vector<WaitKey> awaited;  // at most awaited_threads
  std::string call;              // "all_reduce of 4 float32, sum #17 of group 'tp'"
};

// One thread of a circle, and the group of the op that it waits in.
struct CircleThread {
  WaitKey key;
  GroupEpoch group;
  friend constexpr auto operator<=>(const CircleThread&, const CircleThread&) = default;
};

// A circle that a process has found or learnt of, and a group of its own that failed for it.
struct WaitVerdict {
  GroupEpoch group;
  std::uint32_t place = 0;           // of the lowest op that failed (Operation::place)
  std::vector<CircleThread> circle;  // at most circle_threads
  std::string sentence;              // who waits in which op for whom; cut to fit
};

// ---- layout --------------------------------------------------------------------------------------------------------
// Words only, each atomic: a reader may copy while the owner writes. `sequence` is odd meanwhile, and differs
// afterwards.

struct WaitKeyWords {
  std::atomic<std::uint64_t> worker{0};
  std::atomic<std::uint64_t> wait{0};
  std::atomic<std::uint64_t> record{0};
};

struct GroupEpochWords {
  std::atomic<std::uint64_t> group{0};
  std::atomic<std::uint64_t> epoch{0};
};

struct CircleThreadWords {
  WaitKeyWords key;
  GroupEpochWords group;
};

struct alignas(64) WaitRecordWords {
  std::atomic<std::uint64_t> sequence{0};
  std::atomic<std::uint64_t> wait{0};  // 0: free
  std::atomic<std::uint64_t> thread{0};
  std::atomic<std::uint32_t> any{0};
  std::atomic<std::uint32_t> awaited_count{0};
  GroupEpochWords group;
  std::array<WaitKeyWords, awaited_threads> awaited{};
  std::array<std::atomic<std::uint64_t>, call_text_bytes / 8> call{};  // zero-terminated text
};
static_assert(sizeof(WaitRecordWords) == 704);

struct alignas(64) WaitVerdictWords {
  std::atomic<std::uint64_t> sequence{0};  // 0: none yet
  GroupEpochWords group;
  std::atomic<std::uint32_t> place{0};
  std::atomic<std::uint32_t> circle_count{0};
  std::array<CircleThreadWords, circle_threads> circle{};
  std::array<std::atomic<std::uint64_t>, sentence_bytes / 8> sentence{};  // zero-terminated text
};
static_assert(sizeof(WaitVerdictWords) == 1728);

struct WaitBoardWords {
  std::array<WaitRecordWords, wait_records> records;
  std::array<WaitVerdictWords, wait_verdicts> verdicts;
};
static_assert(sizeof(WaitBoardWords) == 19456);

// ---- reading -------------------------------------------------------------------------------------------------------

// Any process's board. A view of the words: copyable, does not own them. Any thread.
class WaitBoard {
 public:
  WaitBoard() = default;
  explicit WaitBoard(const WaitBoardWords* words) : words_(words) {}

  // nullopt: free, torn, or not what a process of ours would write.
  [[nodiscard]] std::optional<WaitRecord> record(std::uint32_t record) const;

  // A blocked thread, and whether its record names any other: cheaper than the record.
  struct Blocked {
    std::uint32_t thread = 0;
    std::uint32_t record = 0;
    std::uint64_t wait = 0;
    bool waits_for_blocked = false;
  };
  // The threads that are blocked, each in its innermost wait (one that runs a callback in a wait may wait once more).
  [[nodiscard]] std::vector<Blocked> blocked() const;
  // True as long as that wait goes on. What its thread stored before the wait is visible afterwards.
  [[nodiscard]] bool lasts(std::uint32_t record, std::uint64_t wait) const;

  // Those there are, in no order.
  [[nodiscard]] std::vector<WaitVerdict> verdicts() const;
  // One load each: false as long as nothing was ever declared.
  [[nodiscard]] bool has_verdicts() const;

 private:
  const WaitBoardWords* words_ = nullptr;
};

// ---- writing -------------------------------------------------------------------------------------------------------

// This process's own board. Not thread-safe: used under the engine's drive lock.
class OwnWaitBoard {
 public:
  OwnWaitBoard() = default;
  // `words` are zeroed, and of nobody else's writing.
  explicit OwnWaitBoard(WaitBoardWords* words) : words_(words) {}

  // Begins a wait of `thread` and returns its record and number: blocked, waiting for nobody yet. nullopt: all records
  // are in use. Precondition: thread != 0.
  struct Taken {
    std::uint32_t record = 0;
    std::uint64_t wait = 0;
  };
  std::optional<Taken> take(std::uint32_t thread);
  // What that wait is about, again and again while it lasts: all of `what` but its wait and thread. Lists and text are
  // cut to fit.
  void tell(const Taken& taken, const WaitRecord& what);
  // The wait is over. To be called before its thread does anything else.
  void release(const Taken& taken);
  // Replaces the oldest verdict. To be called before the waits that it ends are released.
  void declare(const WaitVerdict& verdict);

 private:
  WaitBoardWords* words_ = nullptr;
  // What the board holds; peers could write into the words themselves.
  std::array<std::uint64_t, wait_records> taken_{};  // wait of each record; 0: free
  std::array<std::uint64_t, wait_records> record_sequences_{};
  std::array<std::uint64_t, wait_verdicts> verdict_sequences_{};
  std::uint64_t waits_ = 0;
  std::uint32_t declared_ = 0;
};

}  // namespace closeranks::transport
