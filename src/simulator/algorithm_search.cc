#include "simulator/algorithm_search.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include "simulator/state_set.h"

namespace closeranks::simulator {

namespace {

struct Branch {
  AlgorithmWorld world;
  std::vector<Step> steps;
  std::size_t tried = 0;
};

std::string replay(const std::shared_ptr<const AlgorithmSetting>& setting, const std::vector<Step>& steps) {
  std::ostringstream text;
  text << describe(setting->scenario) << "\n";
  AlgorithmWorld world(setting);
  for (const Step& step : steps) {
    std::string line;
    world.apply(step, &line);
    text << "  " << line << "\n";
  }
  return text.str();
}

}  // namespace

SearchOutcome search(const AlgorithmScenario& scenario, std::uint64_t most_states) {
  const auto setting = std::make_shared<const AlgorithmSetting>(scenario);
  SearchOutcome outcome;
  StateSet seen;
  std::vector<Branch> path;  // depth first
  const auto visit = [&](AlgorithmWorld&& world) {
    if (!world.violation() && !seen.insert(world.hash())) {
      return;
    }
    Branch branch{std::move(world), {}, 0};
    branch.world.list_steps(branch.steps);
    ++outcome.states;
    if (std::all_of(branch.steps.begin(), branch.steps.end(), [](const Step& step) { return step.optional(); })) {
      ++outcome.endings;
      branch.world.check_finished();
    }
    if (branch.world.violation()) {
      outcome.violation = branch.world.violation();
    } else {
      path.push_back(std::move(branch));
    }
  };
  visit(AlgorithmWorld(setting));
  while (!path.empty() && !outcome.violation) {
    Branch& branch = path.back();
    if (branch.tried == branch.steps.size()) {
      path.pop_back();
      continue;
    }
    if (outcome.states >= most_states) {
      outcome.complete = false;
      break;
    }
    const Step step = branch.steps[branch.tried++];
    // The last way out of a state needs no copy of it.
    AlgorithmWorld next = branch.tried == branch.steps.size() ? std::move(branch.world) : branch.world;
    next.apply(step);
    visit(std::move(next));
  }
  if (outcome.violation) {
    for (const Branch& branch : path) {
      outcome.steps.push_back(branch.steps[branch.tried - 1]);
    }
    outcome.transcript = replay(setting, outcome.steps) + "  violation: " + *outcome.violation + "\n";
  }
  return outcome;
}

}  // namespace closeranks::simulator
