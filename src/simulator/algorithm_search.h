// Exhaustive search of a small scenario: every interleaving of every member's steps, with every death at every step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "simulator/algorithm_scenario.h"
#include "simulator/algorithm_world.h"

namespace closeranks::simulator {

struct SearchOutcome {
  std::uint64_t states = 0;   // different ones visited
  std::uint64_t endings = 0;  // states in which nothing is left to do
  bool complete = true;       // false: stopped at the limit of states
  std::optional<std::string> violation;
  std::vector<Step> steps;  // that lead to the violation
  std::string transcript;   // the same, a line each
};

// Stops at the first violation, or after `most_states`.
SearchOutcome search(const AlgorithmScenario& scenario, std::uint64_t most_states);

}  // namespace closeranks::simulator
