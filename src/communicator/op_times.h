// What the flight recorder wants to know of an op while it is in flight. Times are of CLOCK_MONOTONIC, 0: not yet.
#pragma once

#include <chrono>
#include <cstdint>

#include "closeranks/ids.h"

namespace closeranks::communicator {

struct OpTimes {
  std::uint32_t number = 0;  // among the group's recorded ops; 0: it is not recorded
  std::uint8_t algorithm = 0;
  std::int64_t issued_ns = 0;
  std::int64_t entered_ns = 0;
  std::int64_t all_here_ns = 0;  // all others had entered
  bool somebody_missing = false;
  Rank last_arrival;  // somebody_missing: the one that was seen missing last; all_here_ns: or this member
  std::int64_t first_byte_ns = 0;
  std::int64_t last_byte_ns = 0;
  std::chrono::steady_clock::duration told_again_after{0};  // its wait, as an event
};

}  // namespace closeranks::communicator
