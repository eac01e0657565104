// The command line of `closeranks run`: torchrun's flags in both spellings, and ours.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agent/launch_options.h"
#include "closeranks/status.h"

namespace closeranks::agent {

struct ParsedRun {
  LaunchOptions options;
  // Not empty: print this and exit 0 instead of running (--help).
  std::string help;
};

// `arguments`: what follows `closeranks run`. Everything from the first positional (or after `--`) on is the script and
// its arguments, whatever it looks like. Flags not given are taken from torchrun's PET_... variables where torchrun has
// one. Fault::invalid_argument with one sentence, naming the nearest flag for one that does not exist.
Result<ParsedRun> parse_run(std::span<const std::string> arguments);

// The candidate with the fewest edits to `word`; empty when none is near enough to be what was meant.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// The number that `text` is, all of it.
std::optional<std::uint32_t> whole_number(const std::string& text);

// "auto", "cpu", "gpu" or a number from 1 to 1024.
Result<std::uint32_t> worker_count(const std::string& text);

// torchrun's notation of streams, see StreamChoice.
Result<StreamChoice> parse_streams(const std::string& flag, const std::string& text);

}  // namespace closeranks::agent
