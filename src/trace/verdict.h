// What is wrong with a job, and who did it: a pure function of its files.
//
// The first cause wins over the errors that it makes. Waits are followed to their end: the one that many wait for may
// itself be waiting (protocol rule 22). Nobody is accused without evidence: where the files do not say who it was, the
// verdict says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "closeranks/ids.h"
#include "recorder/trace.h"

namespace closeranks::trace {

enum class Kind : std::uint8_t {
  ok,               // ended in order, or runs and nobody waits for long
  killed,           // by a signal; out of memory by the kernel's own count
  exception,        // it ended by itself with an error
  stopped,          // SIGSTOP, a debugger's or a terminal's
  stuck,            // in user code, before an op that others wait in
  uninterruptible,  // in the kernel
  missing_call,     // it went on without a call that the others made
  wrong_op,         // another op, or another reduction, under the same number
  wrong_order,      // two groups used in another order
  wrong_shape,
  wrong_dtype,
  wrong_root,
  left_early,    // it ended in order while others still needed it
  nan,           // the first NaN or infinity
  data_starved,  // its data loader gives no batch
  no_culprit,    // something is wrong, and the files do not say who it was
};

std::string_view name_of(Kind kind);

struct Verdict {
  Kind kind = Kind::ok;
  // Whom it is about. Empty where nobody is to blame, or where the files cannot tell.
  std::optional<Slot> slot;
  std::optional<WorkerId> worker;
  std::string host;
  std::string group;
  std::optional<std::uint64_t> sequence;
  std::string sentence;               // one, for a person on call
  std::vector<std::string> evidence;  // one sentence each, the strongest first
};

struct VerdictOptions {
  // A wait shorter than this is no sign of anything.
  std::int64_t patience_ns = 1'000'000'000;
  // The same for a worker that has not finished any op yet: it starts up, and some take longer than others.
  std::int64_t startup_patience_ns = 30'000'000'000;
};

Verdict judge(const recorder::JobTrace& job, const VerdictOptions& options = {});

}  // namespace closeranks::trace
