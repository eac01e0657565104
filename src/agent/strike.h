// Kills a worker in the middle of an all-reduce, from outside, and proves by the op's own words that it was there: for
// the demo and for tests of repair. Nothing of the job helps or knows.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "closeranks/ids.h"
#include "closeranks/status.h"

namespace closeranks::agent {

struct StrikeOptions {
  std::string events_file;                    // of the job: who runs in which slot, and who is excluded
  Slot slot;                                  // of the victim
  std::chrono::milliseconds timeout{30'000};  // for the moment to come
};

// What the words said. An entry is struck when the victim has entered it and has a block of it in work: the survivors
// cannot finish it as if nothing had been.
struct Strike {
  bool hit = false;               // still so once the victim was dead
  std::int64_t kill_unix_ns = 0;  // right before the call
  std::uint32_t pid = 0;
  std::string group;
  std::uint64_t sequence = 0;
  std::string op;
  std::uint64_t entered = 0;    // the victim's entry word: sequence + 1, or more
  std::uint64_t completed = 0;  // the victim's, after its death: at most sequence for a hit
  std::uint32_t blocks = 0;
  std::uint32_t own_blocks = 0;  // that the victim had claimed, and so below
  std::uint32_t own_blocks_distributed_before = 0;
  std::uint32_t own_blocks_distributed_after = 0;
};

// Watches the victim's segment of the group with the most entries until it is inside an all-reduce that is cut into
// blocks, and kills it there with SIGKILL. Fault::peer_lost: there is no such worker, or it ended by itself;
// Fault::timeout: it was never seen inside one; Fault::system: not permitted to look.
Result<Strike> strike(const StrikeOptions& options);

// One JSON object, no newline.
std::string to_json(const Strike& strike, Slot slot);

}  // namespace closeranks::agent
