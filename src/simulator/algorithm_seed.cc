#include "simulator/algorithm_seed.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "simulator/algorithm_world.h"

namespace closeranks::simulator {

namespace {

// Splitmix64: the same numbers everywhere, unlike the standard library's distributions.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  std::uint32_t below(std::uint64_t bound) { return static_cast<std::uint32_t>(next() % bound); }
  bool one_in(std::uint32_t bound) { return below(bound) == 0; }

 private:
  std::uint64_t state_;
};

AlgorithmScenario draw_scenario(Dice& dice) {
  AlgorithmScenario scenario;
  scenario.members = dice.one_in(8) ? 9 + dice.below(8) : 2 + dice.below(5);
  scenario.policy = dice.one_in(4) ? Policy::fail : Policy::repair;
  scenario.coordinated = scenario.policy == Policy::repair || dice.one_in(3);
  scenario.lowest_member_is_root = dice.one_in(3);
  scenario.window = 2 + dice.below(4);
  scenario.regions = 1 + dice.below(scenario.window);
  scenario.crashes = dice.below(std::min(scenario.members, 5U));
  scenario.restarts = dice.below(3);
  scenario.cut_entering = dice.one_in(2);
  scenario.connecting = dice.one_in(3);
  scenario.give_ups = dice.one_in(10) ? 1 : 0;
  const std::uint32_t entries = 1 + dice.below(12);
  for (std::uint32_t entry = 0; entry < entries; ++entry) {
    ScenarioCall call;
    call.kind = static_cast<OpKind>(dice.below(9));
    const bool inlined = call.kind == OpKind::barrier || (call.kind != OpKind::all_to_all && dice.one_in(4));
    const bool shared = call.kind == OpKind::all_reduce || call.kind == OpKind::reduce;
    // More blocks than members, sometimes: the rows of a member's share have heirs of their own.
    const std::uint32_t most_blocks = dice.one_in(4) ? 3 * scenario.members : scenario.members;
    call.parts = inlined ? 0 : 1 + dice.below(scenario.members > 8 || !shared ? 2 : most_blocks);
    call.root = Rank{dice.below(scenario.members)};
    scenario.calls.push_back(call);
  }
  if (dice.one_in(12)) {
    scenario.odd = OddCall{Rank{dice.below(scenario.members)}, dice.below(entries)};
  }
  if (scenario.policy == Policy::repair && dice.one_in(5)) {
    scenario.policy = Policy::exact;
    scenario.entries_per_step = 1 + dice.below(4);
  }
  if (scenario.coordinated && dice.one_in(2)) {
    scenario.rejoin_at = dice.below(entries);
  }
  return scenario;
}

// Who is slow, and how eager fate and the coordinator are. Redrawn now and then: a member that stood still goes on.
struct Weather {
  std::array<std::uint32_t, AlgorithmScenario::max_members> speed{};
  std::uint32_t view_speed = 1;
  std::uint32_t misfortune = 1;

  void change(Dice& dice, bool calm) {
    constexpr std::array<std::uint32_t, 6> speeds = {1, 10, 100, 100, 100, 1000};
    for (std::uint32_t& member : speed) {
      member = speeds[dice.below(speeds.size())];
    }
    view_speed = speeds[dice.below(speeds.size())];
    misfortune = calm ? 0 : 1 + dice.below(10);
  }

  // Whoever dies in the middle of a block leaves the most to others: rare, were it left to chance.
  [[nodiscard]] std::uint32_t weight(const Step& step, const AlgorithmWorld& world) const {
    switch (step.kind) {
      case Step::Kind::act:
      case Step::Kind::connect:
      case Step::Kind::enter:
        return 10 * speed[step.member];
      case Step::Kind::freeze:
      case Step::Kind::install:
      case Step::Kind::lose:
        return speed[step.member] + view_speed;
      case Step::Kind::propose:
      case Step::Kind::join:
      case Step::Kind::fence:
        return view_speed;
      case Step::Kind::pass:
        return 1;
      case Step::Kind::crash:
      case Step::Kind::suspect:
        return world.at_a_block(step.member) ? 10000 * misfortune : (misfortune + 4) / 5;
      case Step::Kind::give_up:
      case Step::Kind::restart:
        return misfortune;
    }
    return 1;
  }
};

Step pick(Dice& dice, const Weather& weather, const AlgorithmWorld& world, const std::vector<Step>& steps) {
  std::uint64_t total = 0;
  for (const Step& step : steps) {
    total += weather.weight(step, world);
  }
  std::uint64_t drawn = total == 0 ? 0 : dice.next() % total;
  for (const Step& step : steps) {
    const std::uint32_t weight = weather.weight(step, world);
    if (drawn < weight) {
      return step;
    }
    drawn -= weight;
  }
  return steps.front();
}

SeedOutcome run(AlgorithmScenario scenario, Dice& dice, std::ostream* transcript) {
  SeedOutcome outcome;
  outcome.scenario = scenario;
  if (transcript != nullptr) {
    *transcript << describe(scenario) << "\n";
  }
  AlgorithmWorld world(std::make_shared<const AlgorithmSetting>(std::move(scenario)));
  Weather weather;
  std::vector<Step> steps;
  while (!world.violation()) {
    if (outcome.steps % 64 == 0) {
      weather.change(dice, dice.one_in(3));
    }
    steps.clear();
    world.list_steps(steps);
    if (std::all_of(steps.begin(), steps.end(), [](const Step& step) { return step.optional(); })) {
      world.check_finished();
      break;
    }
    const Step step = pick(dice, weather, world, steps);
    std::string line;
    world.apply(step, transcript != nullptr ? &line : nullptr);
    ++outcome.steps;
    outcome.deaths += step.kind == Step::Kind::crash || step.kind == Step::Kind::fence ? 1 : 0;
    if (transcript != nullptr) {
      *transcript << "  " << line << "\n";
    }
  }
  outcome.blocks_taken_over = world.blocks_taken_over();
  outcome.violation = world.violation();
  if (transcript != nullptr) {
    *transcript << (outcome.violation ? "  violation: " + *outcome.violation : std::string("  all promises kept"))
                << "\n";
  }
  return outcome;
}

}  // namespace

SeedOutcome run_algorithm_seed(std::uint64_t seed, std::ostream* transcript) {
  return run_algorithm_seed_with(seed, {}, {}, {}, transcript);
}

SeedOutcome run_algorithm_seed_with(std::uint64_t seed, const algorithm::Rules& rules,
                                    const SurroundingRules& surrounding, const membership::Rules& resolving,
                                    std::ostream* transcript) {
  Dice dice(seed);
  AlgorithmScenario scenario = draw_scenario(dice);
  scenario.rules = rules;
  scenario.surrounding = surrounding;
  scenario.resolving = resolving;
  return run(std::move(scenario), dice, transcript);
}

}  // namespace closeranks::simulator
