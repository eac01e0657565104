// Threads that wait for each other in a circle: ops of two groups called in another order, a recv from a member that is
// in a collective. None of them is to blame, and none can go on: the ops in the circle fail on all of them, and nobody
// is evicted (protocol rule 22).
//
// Pure: it gets what was read from the wait boards (transport/wait_board.h), and the time.
//
// Why it never accuses a thread that is not stuck: a record says "this thread is in wait w, and its op cannot end
// before thread t, now in wait v, has gone on", and was true when it was written (engine_waits.cc). It stays true while
// both waits last, for a blocked thread calls nothing. Waits that were found at two looks have lasted all the time
// between, so at that time all records of the circle were true at once. What is left is a thread that has never called
// the group, or not lately, and would: the time between the two looks is for that, too.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/wait_board.h"

namespace closeranks::communicator {

// The blocked threads that can be reached from one's own, each with its record.
using Waits = std::map<transport::WaitKey, transport::WaitRecord>;

struct OrderCycle {
  // From `self` to the one that waits for `self`; each waits for the next. The shortest there is.
  std::vector<transport::WaitKey> circle;
  // Waits that keep each other from ending, whatever all other threads do; those of the circle among them. Ascending.
  std::vector<transport::WaitKey> stuck;
};

// nullopt: `self` can still go on, or it waits for a circle that it is not in (that circle's own threads end it).
std::optional<OrderCycle> find_cycle(const Waits& waits, const transport::WaitKey& self);
// True when all of it is still there in `waits`, the same waits for the same.
bool still_there(const OrderCycle& cycle, const Waits& waits);

// Between two looks at a circle that is declared.
inline constexpr std::chrono::milliseconds cycle_lasts{500};

// One blocked thread's memory from look to look.
class CycleWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The circle that `self` is in, once it has been there for `cycle_lasts`.
  std::optional<OrderCycle> look(const Waits& waits, const transport::WaitKey& self, Time now);
  // Seen at the last look, declared or not.
  [[nodiscard]] const std::optional<OrderCycle>& seen() const { return seen_; }

 private:
  std::optional<OrderCycle> seen_;
  Time since_{};
};

// One thread of a circle, for people.
struct CircleMember {
  std::string name;  // "rank 0 (pid 4711)"
  std::string call;  // WaitRecord::call
};
// "rank 0 (pid 11) waits in ... for rank 1 (pid 12), which waits in ... for rank 0 (pid 11)". Long circles are cut
// short after the first few.
std::string describe_circle(const std::vector<CircleMember>& circle);
// The same circle, beginning with its lowest key: so that all of its members tell it alike.
std::vector<transport::WaitKey> from_the_lowest(const std::vector<transport::WaitKey>& circle);

}  // namespace closeranks::communicator
