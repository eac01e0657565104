// Thousands of simulated jobs, each with one fault: the verdict never accuses another slot. CLOSERANKS_SOAK=1 runs
// 100,000 instead of 2,000; CLOSERANKS_SEED=N one, and prints all that its files say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "trace_simulator.h"

namespace closeranks::trace {
namespace {

std::uint64_t seeds_to_run() { return std::getenv("CLOSERANKS_SOAK") != nullptr ? 100'000 : 2'000; }

struct Tally {
  std::uint64_t runs = 0;
  std::uint64_t found = 0;       // the right slot
  std::uint64_t right_kind = 0;  // and one of the right kinds
  std::uint64_t wrong_slot = 0;
};

std::string explain(std::uint64_t seed, const SimulatedTrace& trace, const Verdict& verdict) {
  return "seed " + std::to_string(seed) + " (" + trace.story + "): " + std::string(name_of(verdict.kind)) + ": " +
         verdict.sentence + "\nreplay: CLOSERANKS_SEED=" + std::to_string(seed) + " test_trace --gtest_filter=Seeds.*";
}

TEST(Seeds, NobodyIsAccusedWrongly) {
  const char* one = std::getenv("CLOSERANKS_SEED");
  const std::uint64_t first = one != nullptr ? std::stoull(one) : 1;
  const std::uint64_t last = one != nullptr ? first : seeds_to_run();
  std::map<SimulatedFault, Tally> whole;
  std::map<SimulatedFault, Tally> damaged;
  std::uint64_t wrong = 0;
  std::uint64_t shown = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    const SimulatedTrace trace = simulate_trace(seed);
    const Verdict verdict = judge(trace.job);
    if (one != nullptr) {
      print(std::cout, trace.job);
      std::cout << explain(seed, trace, verdict) << "\n";
      for (const std::string& line : verdict.evidence) std::cout << "  - " << line << "\n";
    }
    Tally& tally = (trace.all_files ? whole : damaged)[trace.fault];
    ++tally.runs;
    const bool right_kind = trace.kinds.contains(verdict.kind);
    const bool right_slot =
        verdict.slot.has_value() ? trace.culprits.contains(*verdict.slot) : trace.fault == SimulatedFault::none;
    tally.found += right_slot ? 1 : 0;
    tally.right_kind += right_slot && right_kind ? 1 : 0;
    if (verdict.slot.has_value() && !right_slot) {
      ++tally.wrong_slot;
      ++wrong;
      std::cout << "wrong: " << explain(seed, trace, verdict) << "\n";
    } else if (std::getenv("CLOSERANKS_SHOW") != nullptr && trace.all_files && !(right_slot && right_kind) &&
               ++shown < 20) {
      std::cout << explain(seed, trace, verdict) << "\n";
    }
  }
  if (one != nullptr) {
    EXPECT_EQ(wrong, 0U);
    return;
  }
  EXPECT_LE(wrong * 1000, seeds_to_run());
  // The runs must have been worth something: with all files there, the cause is nearly always found. Where two sides
  // are equally large and have no past, it cannot be.
  for (const auto& [fault, tally] : whole) {
    EXPECT_GT(tally.runs, 10U) << name_of(fault);
    const std::uint64_t least = fault == SimulatedFault::wrong_order ? 65 : 90;
    EXPECT_GE(tally.right_kind * 100, tally.runs * least) << name_of(fault);
  }
  for (const auto& [name, tallies] : {std::pair("whole", &whole), std::pair("damaged", &damaged)}) {
    for (const auto& [fault, tally] : *tallies) {
      std::printf("%-8s %-16s %6lu runs, right slot %5.1f %%, right kind %5.1f %%, wrong slot %lu\n", name,
                  std::string(name_of(fault)).c_str(), tally.runs, 100.0 * double(tally.found) / double(tally.runs),
                  100.0 * double(tally.right_kind) / double(tally.runs), tally.wrong_slot);
    }
  }
}

}  // namespace
}  // namespace closeranks::trace
