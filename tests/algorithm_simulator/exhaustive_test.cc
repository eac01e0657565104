// Every interleaving of small groups, every kind of op, a death at every step: no promise may break.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "simulator/algorithm_search.h"

namespace closeranks::simulator {
namespace {

// One search.
struct Case {
  std::string name;
  AlgorithmScenario scenario;
  friend std::ostream& operator<<(std::ostream& out, const Case& the_case) {
    return out << describe(the_case.scenario);
  }
};

AlgorithmScenario scenario_of(std::uint32_t members, std::vector<ScenarioCall> calls, std::uint32_t crashes,
                              std::uint32_t restarts = 0) {
  AlgorithmScenario scenario;
  scenario.members = members;
  scenario.calls = std::move(calls);
  scenario.crashes = crashes;
  scenario.restarts = restarts;
  return scenario;
}

bool soak() { return std::getenv("CLOSERANKS_SOAK") != nullptr; }

constexpr OpKind kinds[] = {OpKind::all_reduce, OpKind::reduce,         OpKind::broadcast, OpKind::all_gather,
                            OpKind::gather,     OpKind::reduce_scatter, OpKind::scatter,   OpKind::all_to_all};

// Small enough for a descriptor. Pairs of an all_to_all never are; its table is an all_gather.
bool has_small(OpKind kind) { return kind != OpKind::all_to_all; }

// Every member moves bytes from every other: many more interleavings.
bool is_wide(OpKind kind) {
  return kind == OpKind::all_gather || kind == OpKind::reduce_scatter || kind == OpKind::all_to_all;
}

// Rank 0 is the root, or rank 1, so that a root dies first and last.
std::vector<Case> cases_of_each_kind() {
  std::vector<Case> cases;
  for (const OpKind kind : kinds) {
    const std::string name(name_of(kind));
    const ScenarioCall one{kind, 1, Rank{0}};
    const ScenarioCall two{kind, 2, Rank{0}};
    const ScenarioCall small{kind, 0, Rank{0}};
    const ScenarioCall other_root{kind, 1, Rank{1}};
    const bool wide = is_wide(kind);
    cases.push_back({name + "_one_death", scenario_of(3, {two}, 1, 1)});
    cases.push_back({name + "_two_deaths", scenario_of(3, {wide ? one : two}, 2, 1)});
    cases.push_back({name + "_two_in_flight", scenario_of(2, {two, two}, 1, 1)});
    cases.push_back({name + "_three_in_flight", scenario_of(2, {one, two, one}, 1)});
    cases.push_back({name + "_pipelined", scenario_of(3, {one, other_root}, 1)});
    Case four{name + "_four_members", scenario_of(4, {one}, wide ? 1 : 2)};
    four.scenario.cut_taking = !wide;
    if (kind != OpKind::all_gather && kind != OpKind::all_to_all) {
      cases.push_back(four);
    }
    // One tensor for all calls: its bytes are the next input as soon as the op has returned.
    Case same_tensor{name + "_same_tensor", scenario_of(3, {one, one}, 1)};
    same_tensor.scenario.regions = 1;
    cases.push_back(same_tensor);
    Case cut{name + "_cut_entering", scenario_of(2, {two}, 1)};
    cut.scenario.cut_entering = true;
    cases.push_back(cut);
    Case gives_up{name + "_gives_up", scenario_of(3, {one, one}, 0)};
    gives_up.scenario.give_ups = 1;
    gives_up.scenario.cut_taking = !wide;
    cases.push_back(gives_up);
    for (const bool coordinated : {false, true}) {
      Case fail{name + (coordinated ? "_fail_by_view" : "_fail"),
                scenario_of(3, wide ? std::vector{one} : std::vector{one, one}, 2)};
      fail.scenario.policy = Policy::fail;
      fail.scenario.coordinated = coordinated;
      fail.scenario.cut_taking = false;
      cases.push_back(fail);
    }
    Case odd{name + "_mismatch", scenario_of(3, {one, one}, 1)};
    odd.scenario.odd = OddCall{Rank{2}, wide ? 0U : 1U};
    cases.push_back(odd);
    if (has_small(kind)) {
      Case small_odd{name + "_mismatch_inline", scenario_of(3, {small, one}, 1)};
      small_odd.scenario.odd = OddCall{Rank{2}, 0};
      cases.push_back(small_odd);
      cases.push_back({name + "_inline_two_deaths", scenario_of(3, {small, small}, 2)});
      cases.push_back({name + "_inline_before_blocks", scenario_of(3, {small, one}, 1)});
      for (const bool coordinated : {false, true}) {
        Case fail{name + "_inline" + (coordinated ? "_fail_by_view" : "_fail"),
                  scenario_of(3, {small, small, small}, coordinated ? 1 : 2)};
        fail.scenario.policy = Policy::fail;
        fail.scenario.coordinated = coordinated;
        cases.push_back(fail);
      }
    }
    if (soak()) {
      cases.push_back({name + "_soak_two_entries", scenario_of(3, {one, two}, wide ? 1 : 2, wide ? 0 : 1)});
      Case large{name + "_soak_four_members", scenario_of(4, {one}, 2, 1)};
      large.scenario.cut_taking = false;
      cases.push_back(large);
      cases.push_back({name + "_soak_three_in_flight", scenario_of(2, {two, two, two}, 1, 1)});
    }
  }
  return cases;
}

// Kinds in flight together: shared out and taken ones, roots that die between the entries of two survivors.
std::vector<Case> mixed_cases() {
  const auto one = [](OpKind kind, std::uint32_t root = 0) { return ScenarioCall{kind, 1, Rank{root}}; };
  const ScenarioCall barrier{OpKind::barrier, 0, Rank{0}};
  const ScenarioCall table{OpKind::all_gather, 0, Rank{0}};  // of an all_to_all
  const ScenarioCall reduce = one(OpKind::all_reduce);
  std::vector<Case> cases = {
      {"barrier_two_deaths", scenario_of(3, {barrier, barrier}, 2, 1)},
      {"barrier_then_all_reduce", scenario_of(3, {barrier, reduce}, 1)},
      {"gather_between_all_reduces", scenario_of(3, {reduce, one(OpKind::gather)}, 2)},
      {"gather_then_all_reduce", scenario_of(3, {one(OpKind::gather), reduce}, 1, 1)},
      {"gather_then_scatter", scenario_of(3, {one(OpKind::gather), one(OpKind::scatter, 1)}, 1)},
      {"broadcast_then_all_reduce", scenario_of(3, {one(OpKind::broadcast), reduce}, 2)},
      {"all_gather_then_all_reduce", scenario_of(3, {one(OpKind::all_gather), reduce}, 1)},
      {"all_reduce_then_all_gather", scenario_of(3, {reduce, one(OpKind::all_gather)}, 1)},
      {"reduce_scatter_then_all_gather", scenario_of(2, {one(OpKind::reduce_scatter), one(OpKind::all_gather)}, 1, 1)},
      {"reduce_then_broadcast", scenario_of(3, {one(OpKind::reduce), one(OpKind::broadcast)}, 1, 1)},
      {"broadcast_then_reduce", scenario_of(3, {one(OpKind::broadcast, 1), one(OpKind::reduce, 2)}, 2)},
      {"scatter_then_reduce", scenario_of(3, {one(OpKind::scatter), one(OpKind::reduce)}, 1)},
      {"all_to_all_after_its_table", scenario_of(3, {table, one(OpKind::all_to_all)}, 1)},
      {"all_to_all_of_two_after_its_table", scenario_of(2, {table, {OpKind::all_to_all, 2, Rank{0}}}, 1, 1)},
      {"all_reduce_of_three_blocks", scenario_of(3, {{OpKind::all_reduce, 3, Rank{0}}}, 1, 1)},
      {"all_reduce_of_three_blocks_and_two_members", scenario_of(2, {{OpKind::all_reduce, 3, Rank{0}}}, 1, 1)},
      {"reduce_of_three_blocks", scenario_of(3, {{OpKind::reduce, 3, Rank{1}}}, 1, 1)},
  };
  for (const OpKind kind : kinds) {
    Case connecting{"connecting_then_" + std::string(name_of(kind)),
                    scenario_of(3, {one(kind)}, is_wide(kind) ? 1 : 2)};
    connecting.scenario.connecting = true;
    cases.push_back(connecting);
  }
  for (const std::uint32_t parts : {0U, 1U}) {
    const ScenarioCall broadcast{OpKind::broadcast, parts, Rank{0}};
    Case lowest{parts == 0 ? "broadcast_inline_from_the_lowest" : "broadcast_from_the_lowest",
                scenario_of(3, {broadcast, broadcast}, 2)};
    lowest.scenario.lowest_member_is_root = true;
    cases.push_back(lowest);
  }
  return cases;
}

// A newcomer in a dead member's place before the last entry; deaths before, during and after.
std::vector<Case> rejoining_cases() {
  std::vector<Case> cases;
  const auto add = [&cases](std::string name, AlgorithmScenario scenario, std::uint64_t rejoin_at) {
    scenario.rejoin_at = rejoin_at;
    cases.push_back({"rejoin_" + std::move(name), std::move(scenario)});
  };
  const ScenarioCall small{OpKind::all_reduce, 0, Rank{0}};
  const ScenarioCall one{OpKind::all_reduce, 1, Rank{0}};
  const ScenarioCall two{OpKind::all_reduce, 2, Rank{0}};
  add("one_death", scenario_of(3, {small, two}, 1, 1), 1);
  add("two_deaths", scenario_of(3, {small, one}, 2), 1);
  add("two_deaths_inline", scenario_of(3, {small, small}, 2, 1), 1);
  add("of_two", scenario_of(2, {one, two, one}, 1, 1), 1);
  add("at_the_start", scenario_of(3, {one}, 2), 0);
  for (const OpKind kind : kinds) {
    const std::string name(name_of(kind));
    const ScenarioCall call{kind, 1, Rank{0}};
    AlgorithmScenario after = scenario_of(3, {small, call}, is_wide(kind) && !soak() ? 1 : 2);
    after.cut_taking = !is_wide(kind);
    add(name, after, 1);
    // The memory of the dead member is needed before the newcomer has its place, and not after.
    add(name + "_around", scenario_of(2, {call, call}, 1, 1), 1);
    if (is_wide(kind)) {
      add(name + "_two_deaths", scenario_of(2, {small, call}, 2), 1);
    }
  }
  AlgorithmScenario fail = scenario_of(3, {small, one}, 2);
  fail.policy = Policy::fail;
  add("fail", fail, 1);
  AlgorithmScenario connecting = scenario_of(3, {small, small}, 2);
  connecting.connecting = true;
  add("connecting", connecting, 1);
  return cases;
}

std::vector<Case> exact_cases() {
  std::vector<Case> cases;
  const ScenarioCall small{OpKind::all_reduce, 0, Rank{0}};
  const ScenarioCall one{OpKind::all_reduce, 1, Rank{0}};
  const auto add = [&cases](std::string name, AlgorithmScenario scenario) {
    scenario.policy = Policy::exact;
    cases.push_back({"exact_" + std::move(name), std::move(scenario)});
  };
  add("one_step", scenario_of(3, {one, one}, 1, 1));
  add("two_steps", scenario_of(3, {small, small, small}, 2, 1));
  add("two_deaths", scenario_of(3, {small, one}, 2));
  for (const OpKind kind : kinds) {
    const ScenarioCall call{kind, 1, Rank{0}};
    add(std::string(name_of(kind)), scenario_of(is_wide(kind) ? 2 : 3, {call, call}, 1, 1));
    AlgorithmScenario step = scenario_of(3, {small, call}, 1);
    step.cut_taking = !is_wide(kind);
    add(std::string(name_of(kind)) + "_in_a_step", step);
  }
  AlgorithmScenario rejoin = scenario_of(3, {small, small, small}, 2);
  rejoin.rejoin_at = 1;
  add("rejoin", rejoin);
  return cases;
}

class Exhaustive : public testing::TestWithParam<Case> {};

TEST_P(Exhaustive, KeepsEveryPromise) {
  const SearchOutcome outcome = search(GetParam().scenario, soak() ? 40'000'000 : 4'000'000);
  EXPECT_FALSE(outcome.violation.has_value()) << outcome.transcript;
  EXPECT_TRUE(outcome.complete) << "stopped after " << outcome.states << " states";
  EXPECT_GT(outcome.endings, 0U);
  RecordProperty("states", std::to_string(outcome.states));
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Kinds, Exhaustive, testing::ValuesIn(cases_of_each_kind()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Rejoining, Exhaustive, testing::ValuesIn(rejoining_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Exact, Exhaustive, testing::ValuesIn(exact_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Mixed, Exhaustive, testing::ValuesIn(mixed_cases()), name_of_case);

}  // namespace
}  // namespace closeranks::simulator
