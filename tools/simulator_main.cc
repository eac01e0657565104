// closeranks-sim: replays one seed of a simulator as a transcript, or runs many and says which fails.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <string>

#include "simulator/algorithm_seed.h"
#include "simulator/membership_simulator.h"

namespace {

using closeranks::simulator::MembershipReport;
using closeranks::simulator::MembershipRun;
using closeranks::simulator::SeedOutcome;

struct Request {
  std::string what = "membership";
  std::uint32_t workers = 0;
  [[nodiscard]] std::string replay_command(std::uint64_t seed) const {
    return "closeranks-sim --what " + what + " --seed " + std::to_string(seed) +
           (workers != 0 ? " --workers " + std::to_string(workers) : "");
  }
};

int replay_membership(std::uint64_t seed, const Request& request) {
  MembershipRun run;
  run.seed = seed;
  run.workers = request.workers;
  run.transcript = &std::cout;
  const MembershipReport report = closeranks::simulator::run_membership(run);
  std::cout << "seed " << seed << ": " << (report.ok() ? "every rule held" : "A RULE WAS BROKEN") << "; "
            << report.views << " views, " << report.exclusions << " exclusions, " << report.entries_completed
            << " entries completed, " << report.entries_failed << " failed"
            << (report.gave_up ? "; gave up below min_present" : "") << '\n';
  return report.ok() ? 0 : 1;
}

int replay_algorithm(std::uint64_t seed) {
  const SeedOutcome outcome = closeranks::simulator::run_algorithm_seed(seed, &std::cout);
  std::cout << "seed " << seed << ": " << outcome.violation.value_or("every rule held") << "; " << outcome.steps
            << " steps, " << outcome.deaths << " deaths, " << outcome.blocks_taken_over << " blocks taken over\n";
  return outcome.violation ? 1 : 0;
}

int run_many(std::uint64_t first, std::uint64_t last, const Request& request) {
  std::uint64_t steps = 0;
  std::uint64_t losses = 0;
  const auto fails = [&request](std::uint64_t seed, const std::string& violation) {
    std::cout << "seed " << seed << " fails: " << violation << "\nreplay: " << request.replay_command(seed) << '\n';
    return 1;
  };
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    if (request.what == "algorithm") {
      const SeedOutcome outcome = closeranks::simulator::run_algorithm_seed(seed);
      if (outcome.violation) return fails(seed, *outcome.violation);
      steps += outcome.steps;
      losses += outcome.deaths;
    } else {
      MembershipRun run;
      run.seed = seed;
      run.workers = request.workers;
      const MembershipReport report = closeranks::simulator::run_membership(run);
      if (!report.ok()) return fails(seed, report.violations.front());
      steps += report.events;
      losses += report.exclusions;
    }
  }
  std::cout << request.what << ", seeds " << first << ".." << last << ": every rule held in " << steps << " steps and "
            << losses << " lost workers\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Seeded simulations of closeranks. A seed replays exactly."};
  std::uint64_t seed = 0;
  std::string seeds;
  Request request;
  CLI::Option* one = app.add_option("--seed", seed, "replay this seed and print what happens");
  CLI::Option* many = app.add_option("--seeds", seeds, "run the seeds A..B and print a summary");
  app.add_option("--what", request.what, "membership or algorithm")
      ->check(CLI::IsMember({"membership", "algorithm"}))
      ->capture_default_str();
  app.add_option("--workers", request.workers, "membership: so many workers instead of the seed's own number");
  one->excludes(many);
  CLI11_PARSE(app, argc, argv);
  if (one->count() != 0) {
    return request.what == "algorithm" ? replay_algorithm(seed) : replay_membership(seed, request);
  }
  const std::size_t dots = seeds.find("..");
  if (dots == std::string::npos) {
    std::cerr << "closeranks-sim: give --seed N or --seeds A..B\n";
    return 2;
  }
  try {
    return run_many(std::stoull(seeds.substr(0, dots)), std::stoull(seeds.substr(dots + 2)), request);
  } catch (const std::logic_error&) {
    std::cerr << "closeranks-sim: --seeds wants two numbers, as in 1..2000, not '" << seeds << "'\n";
    return 2;
  }
}
