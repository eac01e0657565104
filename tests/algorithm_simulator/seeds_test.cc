// Seeded runs of larger groups. A failing seed is printed with its transcript; closeranks-sim replays it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "simulator/algorithm_seed.h"

namespace closeranks::simulator {
namespace {

TEST(AlgorithmSeeds, KeepEveryPromise) {
  const std::uint64_t seeds = std::getenv("CLOSERANKS_SOAK") != nullptr ? 200'000 : 10'000;
  std::uint64_t deaths = 0;
  std::uint64_t blocks_taken_over = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const SeedOutcome outcome = run_algorithm_seed(seed);
    deaths += outcome.deaths;
    blocks_taken_over += outcome.blocks_taken_over;
    if (outcome.violation) {
      std::ostringstream transcript;
      run_algorithm_seed(seed, &transcript);
      FAIL() << "seed " << seed << ": " << transcript.str();
    }
  }
  // Runs in which nothing happens prove nothing.
  EXPECT_GT(deaths, seeds / 2);
  EXPECT_GT(blocks_taken_over, seeds / 5);
}

TEST(AlgorithmSeeds, ReplayExactly) {
  for (const std::uint64_t seed : {3U, 7U, 11U}) {
    std::ostringstream first;
    std::ostringstream second;
    run_algorithm_seed(seed, &first);
    run_algorithm_seed(seed, &second);
    EXPECT_EQ(first.str(), second.str());
    EXPECT_NE(first.str().find("all promises kept"), std::string::npos);
  }
}

TEST(AlgorithmSeeds, FindABrokenRule) {
  algorithm::Rules rules;
  rules.final_before_copy = false;
  std::uint64_t found = 0;
  for (std::uint64_t seed = 0; seed < 1'000; ++seed) {
    found += run_algorithm_seed_with(seed, rules, {}, {}).violation ? 1 : 0;
  }
  EXPECT_GT(found, 0U);
}

}  // namespace
}  // namespace closeranks::simulator
