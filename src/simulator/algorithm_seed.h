// Seeded random runs of larger groups: a seed decides the scenario, who is slow, who dies when; it replays exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "simulator/algorithm_scenario.h"

namespace closeranks::simulator {

struct SeedOutcome {
  AlgorithmScenario scenario;
  std::uint64_t steps = 0;
  std::uint64_t deaths = 0;
  std::uint64_t blocks_taken_over = 0;
  std::optional<std::string> violation;
};

// Up to 16 members and a dozen entries of mixed kinds. `transcript`, when given, receives every step as one line.
SeedOutcome run_algorithm_seed(std::uint64_t seed, std::ostream* transcript = nullptr);

// The same with one rule or more switched off: `scenario`'s rules replace the seed's (all on).
SeedOutcome run_algorithm_seed_with(std::uint64_t seed, const algorithm::Rules& rules,
                                    const SurroundingRules& surrounding, const membership::Rules& resolving,
                                    std::ostream* transcript = nullptr);

}  // namespace closeranks::simulator
