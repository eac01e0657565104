#include "simulator/membership_scenario.h"

#include <algorithm>
#include <numeric>

namespace closeranks::simulator {
namespace {

using std::chrono::milliseconds;

std::uint32_t draw_workers(std::uint64_t seed, Random& random) {
  if (seed % 500 == 250) return 1000;
  if (seed % 250 == 50) return 200;
  if (random.chance(65)) return static_cast<std::uint32_t>(random.between(2, 6));
  if (random.chance(85)) return static_cast<std::uint32_t>(random.between(7, 16));
  return static_cast<std::uint32_t>(random.between(17, 48));
}

Time up_to(Random& random, Time bound) { return Time(random.below(static_cast<std::uint64_t>(bound.count()) + 1)); }

std::vector<std::uint32_t> draw_members(std::uint32_t workers, Random& random) {
  std::vector<std::uint32_t> members(workers);
  std::iota(members.begin(), members.end(), 0);
  for (std::uint32_t index = workers; index > 1; --index) {
    std::swap(members[index - 1], members[random.below(index)]);
  }
  members.resize(random.between(std::min(workers, 2U), workers));
  std::sort(members.begin(), members.end());
  return members;
}

PlannedFault draw_fault(const MembershipScenario& scenario, Random& random) {
  struct Weight {
    FaultKind kind;
    std::uint32_t weight;
  };
  static constexpr Weight weights[] = {{FaultKind::kill, 24},
                                       {FaultKind::kill_when_ahead, 10},
                                       {FaultKind::stop, 10},
                                       {FaultKind::exit_zero, 6},
                                       {FaultKind::goodbye, 4},
                                       {FaultKind::false_suspicion, 6},
                                       {FaultKind::idle_suspicion, 6},
                                       {FaultKind::break_link, 22},
                                       {FaultKind::agent_outage, 8},
                                       {FaultKind::coordinator_crash, 10},
                                       {FaultKind::coordinator_stall, 6},
                                       {FaultKind::slow_freeze, 12}};
  std::uint32_t total = 0;
  for (const Weight& weight : weights) total += weight.weight;
  auto drawn = static_cast<std::uint32_t>(random.below(total));
  PlannedFault fault;
  for (const Weight& weight : weights) {
    fault.kind = weight.kind;
    if (drawn < weight.weight) break;
    drawn -= weight.weight;
  }
  fault.at = up_to(random, scenario.faults_end);
  fault.worker = static_cast<std::uint32_t>(random.below(scenario.workers));
  fault.other = static_cast<std::uint32_t>(random.below(scenario.workers));
  switch (fault.kind) {
    case FaultKind::stop:  // half of them shorter than the agent's patience
      fault.duration = random.chance(50) ? up_to(random, milliseconds(50)) : milliseconds(500);
      break;
    case FaultKind::coordinator_stall:
      fault.duration = Time(random.between(100'000, 400'000));
      break;
    case FaultKind::slow_freeze:  // half of them past the deadline
      fault.duration = Time(random.between(50'000, 350'000));
      break;
    default:
      fault.duration = Time(random.between(1'000, 120'000));
  }
  return fault;
}

// Half of all jobs are sessions: they have steps, and what dies is replaced.
void draw_session(MembershipScenario& scenario, std::uint64_t seed) {
  Random random(seed ^ 0x5e5510ULL);
  if (!random.chance(60)) return;
  scenario.steps = random.between(3, 30);
  scenario.starts_per_slot = static_cast<std::uint32_t>(random.between(1, 4));
  scenario.start_delay = Time(random.chance(70) ? 20'000 : 120'000);
  scenario.transfer_fails_percent = random.chance(20) ? static_cast<std::uint32_t>(random.between(1, 30)) : 0;
  for (PlannedGroup& group : scenario.groups) group.entries = random.between(1, 5);
  scenario.groups.back().loose = random.chance(12);
  scenario.faults_end = std::chrono::milliseconds(random.between(60, 600));
  for (PlannedFault& fault : scenario.faults) fault.at = up_to(random, scenario.faults_end);
  // Somebody dies early, so that there is somebody to replace.
  if (random.chance(80)) {
    PlannedFault fault;
    fault.at = up_to(random, scenario.faults_end / 4);
    fault.worker = static_cast<std::uint32_t>(random.below(scenario.workers));
    scenario.faults.push_back(fault);
  }
  for (const FaultKind kind : {FaultKind::drain, FaultKind::resize}) {
    if (!random.chance(12)) continue;
    PlannedFault fault;
    fault.kind = kind;
    fault.at = up_to(random, scenario.faults_end);
    fault.worker = static_cast<std::uint32_t>(random.below(scenario.workers));
    fault.other = static_cast<std::uint32_t>(random.between(1, scenario.workers));
    scenario.faults.push_back(fault);
  }
}

}  // namespace

MembershipScenario draw_membership_scenario(std::uint64_t seed, std::uint32_t workers) {
  Random random(seed);
  MembershipScenario scenario;
  scenario.workers = workers != 0 ? workers : draw_workers(seed, random);
  const bool large = scenario.workers > 64;
  scenario.hosts = static_cast<std::uint32_t>(random.between(1, std::min(3U, scenario.workers)));
  scenario.min_present =
      random.chance(85) ? 1 : static_cast<std::uint32_t>(random.between(1, std::max(1U, scenario.workers / 2)));
  scenario.link_delay = Time(random.chance(80) ? 2'000 : 15'000);
  scenario.step = Time(large ? 8'000 : random.between(300, 3'000));
  scenario.faults_end = milliseconds(large ? 120 : random.between(30, 400));

  for (std::uint32_t worker = 0; worker < scenario.workers; ++worker) {
    scenario.started_at.push_back(up_to(random, milliseconds(random.chance(10) ? 300 : 30)));
  }
  const std::uint64_t groups = large ? 2 : random.between(1, 4);
  for (std::uint64_t index = 0; index < groups; ++index) {
    PlannedGroup group;
    if (index == 0) {
      group.members.resize(scenario.workers);
      std::iota(group.members.begin(), group.members.end(), 0);
    } else {
      group.members = draw_members(scenario.workers, random);
    }
    group.entries = large ? random.between(2, 6) : random.between(3, 80);
    for (std::size_t member = 0; member < group.members.size(); ++member) {
      group.made_at.push_back(up_to(random, milliseconds(random.chance(15) ? 250 : 20)));
    }
    scenario.groups.push_back(std::move(group));
  }

  const std::uint64_t faults = random.between(0, random.chance(70) ? 5 : 14);
  for (std::uint64_t index = 0; index < faults; ++index) scenario.faults.push_back(draw_fault(scenario, random));
  if (large) {  // a handful of deaths at once among a thousand
    for (int extra = 0; extra < 4; ++extra) {
      PlannedFault fault = draw_fault(scenario, random);
      fault.kind = FaultKind::kill;
      scenario.faults.push_back(fault);
    }
  }
  const auto one_in_three = [&random](std::uint32_t most) {
    return random.chance(33) ? static_cast<std::uint32_t>(random.between(1, most)) : 0U;
  };
  scenario.kill_in_change_percent = one_in_three(large ? 1 : 20);
  scenario.break_in_change_percent = one_in_three(20);
  scenario.crash_in_change_percent = one_in_three(50);
  scenario.exit_when_done_percent = random.chance(30) ? static_cast<std::uint32_t>(random.between(10, 100)) : 0;
  if (!large) draw_session(scenario, seed);
  return scenario;
}

}  // namespace closeranks::simulator
