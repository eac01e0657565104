// Each rule of the protocol is load-bearing: with it switched off the simulator's oracle finds a violation within a
// bounded number of seeds. (That none is found with all rules on is seeds_test.cc.)
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "simulator/membership_simulator.h"

namespace closeranks::simulator {
namespace {

struct Switch {
  std::string rule;
  void (*off)(MembershipRun&);
  std::string finds;  // beginning of what the oracle must say; empty: anything
  std::uint64_t within = 2000;
};

void PrintTo(const Switch& rule, std::ostream* out) { *out << rule.rule; }

class RuleSwitchedOff : public testing::TestWithParam<Switch> {};

TEST_P(RuleSwitchedOff, IsFoundOut) {
  for (std::uint64_t seed = 1; seed <= GetParam().within; ++seed) {
    if (seed % 250 == 0 || seed % 250 == 50) continue;  // the large jobs cost much and show nothing more
    MembershipRun run;
    run.seed = seed;
    GetParam().off(run);
    const MembershipReport report = run_membership(run);
    if (report.ok()) continue;
    RecordProperty("seed", std::to_string(seed));
    std::cout << "seed " << seed << ": " << report.violations.front() << '\n';
    if (report.violations.front().starts_with(GetParam().finds)) return;
  }
  FAIL() << "no violation within " << GetParam().within << " seeds without " << GetParam().rule;
}

const Switch switches[] = {
    {"rule6_hold_all_segments_before_entering",
     [](MembershipRun& run) { run.model.hold_all_segments_before_entering = false; }, ""},
    {"rule7_prepared_is_a_promise", [](MembershipRun& run) { run.model.keep_promise = false; }, ""},
    {"rule7_refuse_lower_numbers", [](MembershipRun& run) { run.rules.refuse_lower_numbers = false; }, ""},
    {"rule8_fence_before_propose", [](MembershipRun& run) { run.rules.fence_before_propose = false; }, "rule 8"},
    {"rule9_only_affected_groups", [](MembershipRun& run) { run.model.freeze_only_affected = false; }, "rule 9"},
    {"rule16_decide_once", [](MembershipRun& run) { run.rules.decide_once = false; }, ""},
    {"rule16_bound_by_survivors", [](MembershipRun& run) { run.rules.bound_by_survivors = false; }, "rule 16"},
    {"rule18_newcomer_brings_no_numbers", [](MembershipRun& run) { run.rules.newcomer_brings_no_numbers = false; },
     "rule 18"},
    {"rule18_join_needs_idle_groups", [](MembershipRun& run) { run.rules.join_needs_idle_groups = false; }, "rule 18"},
    {"rule19_step_and_hold_are_one", [](MembershipRun& run) { run.model.step_and_hold_are_one = false; }, ""},
    {"rule20_hold_ends_with_connection", [](MembershipRun& run) { run.rules.hold_ends_with_connection = false; },
     "no progress"},
    {"rule20_trouble_cancels_join", [](MembershipRun& run) { run.rules.trouble_cancels_join = false; }, ""},
    {"rule20_join_waits_for_all", [](MembershipRun& run) { run.rules.join_waits_for_all = false; }, "rule 20"},
    {"rule21_raise_term", [](MembershipRun& run) { run.rules.raise_term = false; }, "rule 21"},
    {"rule21_fresh_number_after_restart", [](MembershipRun& run) { run.rules.fresh_number_after_restart = false; },
     "no progress"},
    {"rule21_journal_before_sending", [](MembershipRun& run) { run.model.journal_before_sending = false; }, ""},
    {"rule21_renew_deadlines_after_stall", [](MembershipRun& run) { run.rules.renew_deadlines_after_stall = false; },
     "rule 21"},
    {"rule21_respect_min_present", [](MembershipRun& run) { run.rules.respect_min_present = false; }, "rule 21"},
    {"rule22_reports_are_hints", [](MembershipRun& run) { run.rules.reports_are_hints = false; }, "rule 22"},
    {"all_survivors_answer", [](MembershipRun& run) { run.rules.wait_for_all_survivors = false; }, ""},
};

INSTANTIATE_TEST_SUITE_P(Membership, RuleSwitchedOff, testing::ValuesIn(switches),
                         [](const auto& tested) { return tested.param.rule; });

}  // namespace
}  // namespace closeranks::simulator
