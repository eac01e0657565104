// closeranks-sim: replays one seed of a simulator as a transcript, or runs many and says which fail.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <string>

#include "simulator/membership_simulator.h"

namespace {

using closeranks::simulator::MembershipReport;
using closeranks::simulator::MembershipRun;

int replay(std::uint64_t seed, std::uint32_t workers) {
  MembershipRun run;
  run.seed = seed;
  run.workers = workers;
  run.transcript = &std::cout;
  const MembershipReport report = closeranks::simulator::run_membership(run);
  std::cout << "seed " << seed << ": " << (report.ok() ? "every rule held" : "A RULE WAS BROKEN") << ", "
            << report.views << " views, " << report.exclusions << " exclusions, " << report.entries_completed
            << " entries completed, " << report.entries_failed << " failed"
            << (report.gave_up ? ", gave up below min_present" : "") << '\n';
  return report.ok() ? 0 : 1;
}

int run_many(std::uint64_t first, std::uint64_t last, std::uint32_t workers) {
  MembershipReport total;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    MembershipRun run;
    run.seed = seed;
    run.workers = workers;
    const MembershipReport report = closeranks::simulator::run_membership(run);
    if (!report.ok()) {
      std::cout << "seed " << seed << " fails: " << report.violations.front() << "\nreplay: closeranks-sim --seed "
                << seed << (workers != 0 ? " --workers " + std::to_string(workers) : "") << '\n';
      return 1;
    }
    total.faults += report.faults;
    total.views += report.views;
    total.exclusions += report.exclusions;
    total.coordinator_starts += report.coordinator_starts;
    total.entries_completed += report.entries_completed;
    total.entries_failed += report.entries_failed;
    total.events += report.events;
    total.simulated_us += report.simulated_us;
  }
  std::cout << "seeds " << first << ".." << last << ": every rule held; " << total.faults << " faults, " << total.views
            << " views, " << total.exclusions << " exclusions, " << total.coordinator_starts
            << " starts of a coordinator, " << total.entries_completed << " entries completed, " << total.entries_failed
            << " failed, " << total.events << " steps, " << total.simulated_us / 1'000'000 << " s simulated\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Seeded simulations of closeranks: a seed replays exactly."};
  std::uint64_t seed = 0;
  std::string seeds;
  std::uint32_t workers = 0;
  CLI::Option* one = app.add_option("--seed", seed, "replay this seed and print what happens");
  CLI::Option* many = app.add_option("--seeds", seeds, "run the seeds A..B and print a summary");
  app.add_option("--workers", workers, "number of workers instead of the seed's own");
  one->excludes(many);
  CLI11_PARSE(app, argc, argv);
  if (*one) return replay(seed, workers);
  const std::size_t dots = seeds.find("..");
  if (dots == std::string::npos) {
    std::cerr << "closeranks-sim: give --seed N or --seeds A..B\n";
    return 2;
  }
  try {
    return run_many(std::stoull(seeds.substr(0, dots)), std::stoull(seeds.substr(dots + 2)), workers);
  } catch (const std::logic_error&) {
    std::cerr << "closeranks-sim: --seeds wants two numbers, as in 1..2000, not '" << seeds << "'\n";
    return 2;
  }
}
