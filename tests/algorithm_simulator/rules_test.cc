// What each rule is for: with it the same searches find nothing (exhaustive_test.cc), without it they find this.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "simulator/algorithm_search.h"
#include "simulator/algorithm_seed.h"

namespace closeranks::simulator {
namespace {

using testing::HasSubstr;

struct RuleCase {
  std::string rule;
  AlgorithmScenario scenario;
  std::function<void(AlgorithmScenario&)> switch_off;
  std::string violation;  // a part of what the oracle says
  friend std::ostream& operator<<(std::ostream& out, const RuleCase& the_case) { return out << the_case.rule; }
};

AlgorithmScenario all_reduce(std::uint32_t members, std::uint32_t blocks, std::uint32_t entries,
                             std::uint32_t crashes) {
  AlgorithmScenario scenario;
  scenario.members = members;
  scenario.crashes = crashes;
  scenario.calls.assign(entries, ScenarioCall{OpKind::all_reduce, blocks, Rank{0}});
  return scenario;
}

// The last entry of another kind, of one part; root is rank 0.
AlgorithmScenario with_last(OpKind kind, std::uint32_t members, std::uint32_t entries, std::uint32_t crashes) {
  AlgorithmScenario scenario = all_reduce(members, 1, entries, crashes);
  scenario.calls.back().kind = kind;
  return scenario;
}

std::vector<RuleCase> rule_cases() {
  using S = AlgorithmScenario&;
  std::vector<RuleCase> cases;
  const auto add = [&cases](std::string rule, AlgorithmScenario scenario, std::function<void(S)> off,
                            std::string violation) {
    cases.push_back({std::move(rule), std::move(scenario), std::move(off), std::move(violation)});
  };
  // Protocol rule 1: the owner dies between two copies; its successor reduces an input that is the result already.
  add("final_before_copy", all_reduce(3, 1, 1, 1), [](S s) { s.rules.final_before_copy = false; }, "spoiled bytes");
  add(
      "distributed_after_copy", all_reduce(3, 1, 1, 0), [](S s) { s.rules.distributed_after_copy = false; },
      "completes entry 0 with the input of");
  // Protocol rule 2: a block that moves away from a living owner has two writers.
  add(
      "living_owners_keep_seats", all_reduce(3, 3, 1, 1), [](S s) { s.rules.living_owners_keep_seats = false; },
      "two living writers");
  add("finish_scratch_first", all_reduce(3, 3, 1, 1), [](S s) { s.rules.finish_scratch_first = false; }, "instead of");
  // Two members have seen that nobody has the block.
  add("claim_by_swap", all_reduce(2, 1, 1, 0), [](S s) { s.rules.claim_by_swap = false; }, "which it has completed");
  // The lowest member dies, and with it what was known of a block that is copied in part.
  add("words_stay", all_reduce(3, 1, 1, 1), [](S s) { s.rules.words_stay = false; }, "which it has completed");
  add(
      "wait_for_contributors", all_reduce(3, 1, 1, 0),
      [](S s) {
        s.rules.wait_for_contributors = false;
        s.rules.compare_signatures = false;  // which would stop it by accident
      },
      "instead of");
  add("wait_for_window", all_reduce(2, 0, 3, 0), [](S s) { s.rules.wait_for_window = false; }, "combines the input");
  // Protocol rule 5: the successor finds neither the dead owner's words nor its input.
  add(
      "memory_of_the_dead_stays", all_reduce(3, 1, 1, 1),
      [](S s) {
        s.surrounding.memory_of_the_dead_stays = false;
        s.rules.compare_signatures = false;
      },
      "spoiled bytes");
  // Protocol rule 6: the dead one has entered, and only one survivor holds its input.
  add(
      "connect_before_entering", all_reduce(3, 0, 1, 1),
      [](S s) {
        s.connecting = true;
        s.surrounding.connect_before_entering = false;
        s.rules.compare_signatures = false;
      },
      "combines unknown bytes");
  // Protocol rule 6, at a join: the newcomer has entered and died, and only one survivor holds its input.
  AlgorithmScenario rejoining = all_reduce(3, 0, 2, 2);
  rejoining.rejoin_at = 1;
  add(
      "connect_per_epoch", rejoining,
      [](S s) {
        s.rules.connect_per_epoch = false;
        s.rules.compare_signatures = false;
      },
      "combines unknown bytes");
  // Protocol rule 7: a member that works on after its answer makes the answer wrong.
  add("freeze_stops", all_reduce(3, 1, 2, 1), [](S s) { s.rules.freeze_stops = false; }, "of its inputs count");
  // Protocol rule 8: the suspect enters after the first survivor has looked, and goes on writing.
  add(
      "fence_before_propose", all_reduce(3, 1, 1, 1), [](S s) { s.surrounding.fence_before_propose = false; },
      "two living writers");
  // Protocol rule 11: a rooted op fails for a member that has installed the first view, and not for one that knows only
  // a later one.
  add(
      "departures_kept_for_rooted_ops", with_last(OpKind::gather, 3, 2, 1),
      [](S s) {
        s.restarts = 1;
        s.resolving.decide_once = false;
      },
      "waits for ever");
  // A taker that says distributed too early lets its source go on.
  add(
      "distributed_after_taking", with_last(OpKind::broadcast, 2, 1, 0),
      [](S s) { s.rules.distributed_after_taking = false; }, "which it has completed");
  add(
      "distributed_after_taking_reduced", with_last(OpKind::reduce_scatter, 2, 1, 0),
      [](S s) { s.rules.distributed_after_taking = false; }, "which it has completed");
  // Sources go on when they have taken their own part.
  for (const OpKind kind : {OpKind::broadcast, OpKind::all_gather, OpKind::gather, OpKind::reduce_scatter,
                            OpKind::scatter, OpKind::all_to_all}) {
    add(
        "wait_for_takers_" + std::string(name_of(kind)), with_last(kind, 2, 1, 0),
        [](S s) { s.rules.wait_for_takers = false; }, "which it has completed");
  }
  // A dead taker's part is nobody's concern.
  add(
      "drop_parts_of_the_lost", with_last(OpKind::all_gather, 3, 1, 1),
      [](S s) { s.rules.drop_parts_of_the_lost = false; }, "waits for ever");
  // Inputs of the dead are read from their memory.
  add(
      "memory_of_the_dead_stays_for_takers", with_last(OpKind::all_to_all, 3, 1, 1),
      [](S s) {
        s.surrounding.memory_of_the_dead_stays = false;
        s.rules.compare_signatures = false;
      },
      "unknown bytes");
  add(
      "wait_for_contributors_to_take", with_last(OpKind::all_gather, 2, 1, 0),
      [](S s) {
        s.rules.wait_for_contributors = false;
        s.rules.compare_signatures = false;
      },
      "instead of");
  // A member that takes nothing of two entries runs ahead, and its descriptor of the first is gone.
  AlgorithmScenario ahead = all_reduce(2, 1, 3, 0);
  ahead.calls = {{OpKind::broadcast, 1, Rank{0}}, {OpKind::broadcast, 1, Rank{0}}, {OpKind::gather, 1, Rank{0}}};
  add("wait_for_window_of_takers", ahead, [](S s) { s.rules.wait_for_window = false; }, "mismatch where there is none");
  add(
      "fence_before_propose_with_takers", with_last(OpKind::all_gather, 3, 1, 1),
      [](S s) { s.surrounding.fence_before_propose = false; }, "which it has completed");
  add(
      "freeze_stops_takers", with_last(OpKind::all_gather, 3, 1, 1), [](S s) { s.rules.freeze_stops = false; },
      "of its inputs count");
  add(
      "decide_by_swap_with_takers", with_last(OpKind::all_gather, 3, 1, 1),
      [](S s) {
        s.policy = Policy::fail;
        s.coordinated = false;
        s.rules.decide_by_swap = false;
      },
      "otherwise than member");
  // A member whose op has timed out lets its caller write into what others are still reading.
  for (const OpKind kind : {OpKind::all_gather, OpKind::reduce}) {
    add(
        "given_up_memory_stays_" + std::string(name_of(kind)), with_last(kind, 2, 1, 0),
        [](S s) {
          s.give_ups = 1;
          s.surrounding.given_up_memory_stays = false;
        },
        "instead of");
  }
  // Protocol rule 16: the second view counts an input that the first one had left out.
  add("last_op_decided_once", all_reduce(3, 1, 1, 2), [](S s) { s.rules.last_op_decided_once = false; }, "instead of");
  add(
      "decide_once_in_later_views", all_reduce(3, 1, 2, 1),
      [](S s) {
        s.restarts = 1;
        s.resolving.decide_once = false;
      },
      "which it has completed");
  add(
      "bound_by_survivors", all_reduce(3, 1, 1, 1), [](S s) { s.resolving.bound_by_survivors = false; },
      "of its inputs count");
  // Policy fail: one member has seen everything distributed, another has seen a peer die.
  add(
      "decide_by_swap", all_reduce(3, 1, 1, 1),
      [](S s) {
        s.policy = Policy::fail;
        s.coordinated = false;
        s.rules.decide_by_swap = false;
      },
      "otherwise than member");
  add(
      "compare_signatures", all_reduce(2, 1, 1, 0),
      [](S s) {
        s.odd = OddCall{Rank{1}, 0};
        s.rules.compare_signatures = false;
      },
      "made another call");
  add(
      "entered_after_data", all_reduce(2, 1, 1, 0),
      [](S s) {
        s.surrounding.entered_after_data = false;
        s.rules.compare_signatures = false;
      },
      "spoiled bytes");
  return cases;
}

class Rules : public testing::TestWithParam<RuleCase> {};

TEST_P(Rules, IsNeeded) {
  AlgorithmScenario scenario = GetParam().scenario;
  GetParam().switch_off(scenario);
  const SearchOutcome outcome = search(scenario, 3'000'000);
  ASSERT_TRUE(outcome.violation.has_value()) << "no violation in " << outcome.states << " states";
  EXPECT_THAT(*outcome.violation, HasSubstr(GetParam().violation)) << outcome.transcript;
  EXPECT_THAT(outcome.transcript, HasSubstr("violation: " + *outcome.violation));
}

// The search with the rule on, so that what the rule's test finds is the rule's doing.
TEST_P(Rules, IsEnough) {
  AlgorithmScenario scenario = GetParam().scenario;
  GetParam().switch_off(scenario);
  scenario.rules = {};
  scenario.resolving = {};
  scenario.surrounding = {};
  const SearchOutcome outcome = search(scenario, 3'000'000);
  EXPECT_FALSE(outcome.violation.has_value()) << outcome.transcript;
  EXPECT_TRUE(outcome.complete);
}

std::string name_of_case(const testing::TestParamInfo<RuleCase>& info) { return info.param.rule; }
INSTANTIATE_TEST_SUITE_P(Each, Rules, testing::ValuesIn(rule_cases()), name_of_case);

}  // namespace
}  // namespace closeranks::simulator
