// Who calls the ops of a group in a process, and how many collectives it has called: told to the other members in one
// line of its segment, by one relaxed store per call. A member that waits in an op of the group finds there who would
// have to call it in a process that has not: the threads that called lately, or, where nobody has called yet, the one
// that made the group. (Which threads are blocked, the wait board tells: engine_waits.h.) A thread that has ended is
// named until others have called: where threads come and go, nobody knows who calls next.
#pragma once

#include <cstdint>
#include <vector>

#include "transport/segment_layout.h"

namespace closeranks::communicator {

// The calling thread as the line and the wait board name it: its thread id. An op that is called by a callback, when
// another one is done, says nothing about the thread that happens to run it: then the callback's name, which no board
// has.
inline constexpr std::uint32_t a_callback = 0xffffffff;
std::uint32_t calling_thread();
std::uint32_t this_thread();

// The calling thread runs callbacks of finished ops.
class InCallbacks {
 public:
  InCallbacks();
  ~InCallbacks();
  InCallbacks(const InCallbacks&) = delete;
  InCallbacks& operator=(const InCallbacks&) = delete;
};

// This member's own line. Under the drive lock; made by the thread that makes the group.
class Issuers {
 public:
  explicit Issuers(transport::IssuerLine& line);

  // An op of the group is called by this thread. Returns its place: the number of collectives called before it.
  std::uint32_t note(bool collective) {
    const std::uint32_t place = collectives_;
    collectives_ += collective ? 1 : 0;
    last_thread_ = calling_thread();
    store();
    return place;
  }
  [[nodiscard]] std::uint32_t collectives() const { return collectives_; }
  // The group begins a new epoch, in which all members count anew. `queued` collectives are called already.
  void start_anew(std::uint32_t queued);

 private:
  void store() {
    line_.words[calls_++ % transport::issuer_words].store(std::uint64_t{last_thread_} << 32 | collectives_,
                                                          std::memory_order_relaxed);
  }
  transport::IssuerLine& line_;
  std::uint32_t last_thread_;
  std::uint32_t calls_ = 0;
  std::uint32_t collectives_ = 0;
};

// What another member's line says.
struct IssuedBy {
  std::uint32_t collectives = 0;
  std::vector<std::uint32_t> threads;  // each once
};
IssuedBy read_issuers(const transport::IssuerLine& line);
// True when a member that has called `collectives` of them has called the one at `place` (the counts may wrap around).
inline bool has_called(std::uint32_t collectives, std::uint32_t place) {
  return static_cast<std::int32_t>(collectives - place) > 0;
}

}  // namespace closeranks::communicator
