// Thousands of seeded runs in which every rule must hold. CLOSERANKS_SOAK=1 runs 50,000 instead of 2,000.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>

#include "simulator/membership_simulator.h"

namespace closeranks::simulator {
namespace {

std::uint64_t seeds_to_run() { return std::getenv("CLOSERANKS_SOAK") != nullptr ? 50'000 : 2'000; }

TEST(Seeds, EveryRuleHolds) {
  MembershipReport total;
  std::uint64_t gave_up = 0;
  for (std::uint64_t seed = 1; seed <= seeds_to_run(); ++seed) {
    MembershipRun run;
    run.seed = seed;
    const MembershipReport report = run_membership(run);
    ASSERT_TRUE(report.ok()) << "seed " << seed << ": " << report.violations.front()
                             << "\nreplay: closeranks-sim --seed " << seed;
    total.exclusions += report.exclusions;
    total.joins += report.joins;
    total.joins_cancelled += report.joins_cancelled;
    total.coordinator_starts += report.coordinator_starts;
    total.entries_completed += report.entries_completed;
    total.entries_failed += report.entries_failed;
    total.workers = std::max(total.workers, report.workers);
    gave_up += report.gave_up ? 1 : 0;
  }
  // The runs must have been worth something.
  EXPECT_EQ(total.workers, 1000U);
  EXPECT_GT(total.exclusions, seeds_to_run());
  EXPECT_GT(total.joins, seeds_to_run() / 2);
  EXPECT_GT(total.joins_cancelled, seeds_to_run() / 2);
  EXPECT_GT(total.coordinator_starts, seeds_to_run() + seeds_to_run() / 10);
  EXPECT_GT(total.entries_completed, 100 * seeds_to_run());
  EXPECT_GT(total.entries_failed, seeds_to_run() / 4);
  EXPECT_GT(gave_up, 0U);
}

TEST(Seeds, ReplayExactly) {
  const auto transcript_of = [](std::uint64_t seed) {
    std::ostringstream transcript;
    MembershipRun run;
    run.seed = seed;
    run.transcript = &transcript;
    (void)run_membership(run);
    return transcript.str();
  };
  for (const std::uint64_t seed : {3, 17, 110, 444}) {
    const std::string first = transcript_of(seed);
    EXPECT_GT(first.size(), 1000U);
    EXPECT_EQ(first, transcript_of(seed)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace closeranks::simulator
