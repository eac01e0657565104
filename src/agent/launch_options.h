// What `closeranks run` was asked to do: the command line as a value, checked. Parsing it is command_line.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadlines.h"
#include "closeranks/ids.h"
#include "recorder/ring_writer.h"

namespace closeranks::agent {

// Standard streams of some workers, as torchrun writes them: "3" (both, all workers) or "0:1,2:3" (by local rank);
// 1 is stdout, 2 is stderr.
struct StreamChoice {
  std::uint8_t all = 0;                                 // bits for workers not named
  std::vector<std::uint8_t> by_slot;                    // bits + 0x80 when named, indexed by slot
  [[nodiscard]] bool has(Slot slot, int stream) const;  // stream: 1 or 2
};

struct LaunchOptions {
  std::uint32_t workers = 1;
  std::string run_id;  // --rdzv-id; empty: the job's own id
  std::string role = "default";
  std::uint16_t master_port = 0;   // 0: a free one
  std::uint32_t max_restarts = 0;  // told to the workers; this runtime restarts nobody
  std::string log_dir;             // empty: a folder per job under the user's state folder
  StreamChoice redirects;          // these streams go to the log files only
  std::vector<Slot> shown;         // --local-ranks-filter: only these are shown; empty: all
  bool module = false;             // -m
  bool no_python = false;
  bool shrink = false;
  std::uint32_t min_present = 1;
  std::string events_file;  // empty: only the job's own events.jsonl
  bool dry_run = false;
  std::string trace_dir;  // of the flight recorder's files; empty: in the job's log folder
  std::uint64_t trace_bytes = recorder::default_ring_bytes;  // of each
  bool check_nan = false;
  bool record_stacks = false;
  std::uint32_t max_replacements = 3;  // per slot, see ReplacementLimits::most
  std::uint32_t spares = 1;            // processes that wait without a slot, once the script is in a Session
  // How long all others may wait for one worker that makes no progress; none: adapts to the job's own history, from
  // deadlines::hang downwards.
  std::optional<std::chrono::milliseconds> hang_timeout;
  std::chrono::milliseconds grace = deadlines::drain_grace;  // from SIGTERM to the agent to SIGTERM to the workers
  std::chrono::milliseconds stop_timeout = deadlines::stop;
  std::chrono::milliseconds orphan_timeout = deadlines::orphan;
  std::vector<std::string> script;  // the script (module, program) and its arguments; not empty
};

}  // namespace closeranks::agent
