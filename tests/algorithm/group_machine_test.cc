// The machine alone, against words a test writes. Interleavings are the simulator's business (algorithm_simulator).
#include "algorithm/group_machine.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

namespace closeranks::algorithm {
namespace {

class FakeWords : public Words {
 public:
  std::uint64_t entered(Rank member) const override { return entered_words.at(member.value()); }
  std::uint64_t completed(Rank member) const override { return completed_words.at(member.value()); }
  std::uint64_t block_word(Rank home, std::uint64_t sequence, std::uint32_t block) const override {
    const auto found = block_words.find({home.value(), sequence, block});
    return found == block_words.end() ? 0 : found->second;
  }
  std::uint64_t signature(Rank member, std::uint64_t sequence) const override {
    const auto found = signatures.find({member.value(), sequence});
    return found == signatures.end() ? 1 : found->second;
  }
  std::uint64_t decision_word(std::uint64_t sequence) const override {
    const auto found = decisions.find(sequence % 4);
    return found == decisions.end() ? 0 : found->second;
  }

  std::vector<std::uint64_t> entered_words = std::vector<std::uint64_t>(8, 0);
  std::vector<std::uint64_t> completed_words = std::vector<std::uint64_t>(8, 0);
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint32_t>, std::uint64_t> block_words;
  std::map<std::tuple<std::uint32_t, std::uint64_t>, std::uint64_t> signatures;
  std::map<std::uint64_t, std::uint64_t> decisions;  // [window]
};

using Kind = Action::Kind;

class GroupMachineTest : public testing::Test {
 protected:
  GroupMachine make(std::uint32_t members, std::uint32_t self, Policy policy = Policy::repair, bool lowest = false) {
    MachineOptions options;
    options.members = members;
    options.self = Rank{self};
    for (std::uint32_t member = 0; member < members; ++member) {
      options.slots.push_back(Slot{10 + member});
    }
    options.policy = policy;
    options.lowest_member_is_root = lowest;
    options.window = 4;
    members_ = members;
    return GroupMachine(std::move(options));
  }

  void enter(GroupMachine& machine, OpKind kind, std::uint64_t unit_bytes, Rank root = Rank{0}) {
    ASSERT_TRUE(machine.may_enter(words_));
    const std::uint64_t sequence = machine.next_sequence();
    machine.enter({sequence, make_plan(kind, DType::float32, ReduceOp::sum, root, unit_bytes, members_), 1});
  }

  // Performs what the machine wants on `words_`, as member `self`, until it wants nothing; returns it all.
  std::vector<Action> run(GroupMachine& machine, std::uint32_t self) {
    std::vector<Action> actions;
    for (Action action = machine.next(words_); action.kind != Kind::none; action = machine.next(words_)) {
      if (action.kind == Kind::publish_block || action.kind == Kind::claim_block) {
        words_.block_words[{action.destination.value(), action.sequence, action.block}] = action.word().pack();
      } else if (action.kind == Kind::publish_completed) {
        words_.completed_words[self] = action.sequence + 1;
      } else if (action.kind == Kind::decide &&
                 DecisionWord::undecided(words_.decision_word(action.sequence), action.sequence)) {
        words_.decisions[action.sequence % 4] =
            DecisionWord{action.sequence, action.decision, action.culprit.value()}.pack();
      }
      machine.done(action);
      actions.push_back(action);
    }
    return actions;
  }

  static std::vector<Kind> kinds(const std::vector<Action>& actions) {
    std::vector<Kind> result;
    for (const Action& action : actions) {
      result.push_back(action.kind);
    }
    return result;
  }

  // A word of member `holder` with `home`.
  void publish(std::uint32_t holder, std::uint64_t sequence, std::uint32_t block, BlockState state,
               std::uint32_t home = 0) {
    words_.block_words[{home, sequence, block}] = BlockWord{sequence, state, holder}.pack();
  }

  void everyone_entered(std::uint64_t count) {
    std::fill(words_.entered_words.begin(), words_.entered_words.end(), count);
  }

  static membership::GroupResolution excluding(std::vector<std::pair<std::uint32_t, std::uint64_t>> departures) {
    membership::GroupResolution resolution;
    resolution.view = {1, 1};
    for (const auto& [rank, last_op] : departures) {
      resolution.departures.push_back({WorkerId{rank}, Slot{10 + rank}, {1, 1}, last_op});
    }
    return resolution;
  }

  FakeWords words_;
  std::uint32_t members_ = 0;
};

TEST_F(GroupMachineTest, AnInlineEntryNeedsOneWait) {
  GroupMachine machine = make(3, 0);
  enter(machine, OpKind::all_reduce, 8);
  EXPECT_TRUE(run(machine, 0).empty());
  EXPECT_EQ(machine.waiting_for(words_), (std::vector{Rank{1}, Rank{2}}));
  everyone_entered(1);
  EXPECT_EQ(kinds(run(machine, 0)), (std::vector{Kind::combine_inline, Kind::complete, Kind::publish_completed}));
  EXPECT_EQ(machine.completed(), 1U);
}

TEST_F(GroupMachineTest, ABarrierCombinesNothing) {
  GroupMachine machine = make(2, 1);
  enter(machine, OpKind::barrier, 0);
  everyone_entered(1);
  EXPECT_EQ(kinds(run(machine, 1)), (std::vector{Kind::complete, Kind::publish_completed}));
}

TEST_F(GroupMachineTest, AnOwnerTakesItsBlockThroughInOrder) {
  GroupMachine machine = make(3, 1);
  enter(machine, OpKind::all_reduce, 3 * min_block_bytes);
  everyone_entered(1);
  publish(0, 0, 0, BlockState::claimed);
  publish(2, 0, 2, BlockState::claimed);
  const std::vector<Action> actions = run(machine, 1);
  EXPECT_EQ(kinds(actions), (std::vector{Kind::claim_block, Kind::reduce_block, Kind::publish_block, Kind::copy_block,
                                         Kind::copy_block, Kind::copy_block, Kind::publish_block}));
  EXPECT_EQ(actions[0].block, 1U);
  EXPECT_EQ(actions[0].destination, Rank{0}) << "words lie with the lowest contributor";
  EXPECT_EQ(actions[2].state, BlockState::final);
  EXPECT_EQ(actions[6].state, BlockState::distributed);
  EXPECT_EQ(actions[3].destination, Rank{1});  // itself first
  EXPECT_EQ(actions[4].destination, Rank{2});
  EXPECT_EQ(actions[5].destination, Rank{0});
  EXPECT_EQ(machine.waiting_for(words_), (std::vector{Rank{0}, Rank{2}}));
  publish(0, 0, 0, BlockState::distributed);
  publish(2, 0, 2, BlockState::final);
  EXPECT_TRUE(run(machine, 1).empty());
  EXPECT_EQ(machine.waiting_for(words_), (std::vector{Rank{2}}));
  publish(2, 0, 2, BlockState::distributed);
  EXPECT_EQ(kinds(run(machine, 1)), (std::vector{Kind::complete, Kind::publish_completed}));
}

TEST_F(GroupMachineTest, WhoeverRunsTakesWhatNobodyHasBegun) {
  GroupMachine machine = make(3, 1);
  enter(machine, OpKind::all_reduce, 3 * min_block_bytes);
  everyone_entered(1);
  Action claiming = machine.next(words_);
  EXPECT_EQ(claiming.kind, Kind::claim_block);
  publish(2, 0, 1, BlockState::claimed);  // was first
  machine.done(claiming);
  EXPECT_TRUE(machine.waiting_for(words_) == std::vector{Rank{2}}) << "nobody else has anything in work";
  const std::vector<Action> actions = run(machine, 1);
  ASSERT_EQ(actions.size(), 14U);
  EXPECT_EQ(actions[0].block, 2U);
  EXPECT_EQ(actions[7].block, 0U);
  EXPECT_EQ(machine.blocks_taken_over(), 0U);
  publish(2, 0, 1, BlockState::distributed);
  EXPECT_EQ(kinds(run(machine, 1)), (std::vector{Kind::complete, Kind::publish_completed}));
}

TEST_F(GroupMachineTest, WordsStayWithTheDead) {
  GroupMachine machine = make(3, 1);
  enter(machine, OpKind::all_reduce, 3 * min_block_bytes);
  everyone_entered(1);
  machine.freeze();
  machine.install(excluding({{0, 1}}));
  EXPECT_EQ(machine.next(words_).destination, Rank{0}) << "it had entered";
  publish(2, 0, 0, BlockState::distributed);
  publish(2, 0, 1, BlockState::distributed);
  publish(2, 0, 2, BlockState::distributed);
  EXPECT_EQ(kinds(run(machine, 1)), (std::vector{Kind::complete, Kind::publish_completed}));
  enter(machine, OpKind::all_reduce, 3 * min_block_bytes);
  everyone_entered(2);
  EXPECT_EQ(machine.next(words_).destination, Rank{1}) << "it has not entered this one";
}

TEST_F(GroupMachineTest, TheWindowWaitsForTheSlowest) {
  GroupMachine machine = make(2, 0);
  everyone_entered(4);
  for (int entry = 0; entry < 4; ++entry) {
    enter(machine, OpKind::barrier, 0);
  }
  EXPECT_FALSE(machine.may_enter(words_));
  (void)run(machine, 0);
  EXPECT_EQ(machine.completed(), 4U);
  EXPECT_FALSE(machine.may_enter(words_));  // rank 1 may still read entry 0's descriptor
  EXPECT_EQ(machine.waiting_for(words_), (std::vector{Rank{1}}));
  words_.completed_words[1] = 1;
  EXPECT_TRUE(machine.may_enter(words_));
  machine.install(excluding({{1, 4}}));  // or it leaves
  words_.completed_words[1] = 0;
  EXPECT_TRUE(machine.may_enter(words_));
}

TEST_F(GroupMachineTest, AnotherCallIsAMismatchThatNamesTheMinority) {
  GroupMachine machine = make(4, 0);
  enter(machine, OpKind::all_reduce, 1 << 16);
  enter(machine, OpKind::barrier, 0);
  everyone_entered(2);
  words_.signatures[{2, 0}] = 99;
  const std::vector<Action> actions = run(machine, 0);
  ASSERT_EQ(kinds(actions), (std::vector{Kind::complete, Kind::complete}));
  EXPECT_EQ(actions[0].outcome, Fault::mismatch);
  EXPECT_EQ(actions[0].culprit, Rank{2});
  EXPECT_EQ(actions[1].outcome, Fault::mismatch);
  ASSERT_TRUE(machine.failure().has_value());
  EXPECT_EQ(machine.failure()->from, 0U);
  EXPECT_FALSE(machine.may_enter(words_));
}

TEST_F(GroupMachineTest, AMinorityFindsItselfToBlame) {
  GroupMachine machine = make(3, 2);
  enter(machine, OpKind::all_reduce, 8);
  everyone_entered(1);
  words_.signatures[{0, 0}] = 7;
  words_.signatures[{1, 0}] = 7;
  EXPECT_EQ(run(machine, 2)[0].culprit, Rank{2});
}

TEST_F(GroupMachineTest, ANewOwnerCopiesWhatIsFinalAndReducesWhatIsOpen) {
  GroupMachine machine = make(2, 1);
  enter(machine, OpKind::all_reduce, 2 * min_block_bytes);
  enter(machine, OpKind::all_reduce, 2 * min_block_bytes);
  everyone_entered(2);
  publish(0, 0, 0, BlockState::final);
  publish(0, 1, 0, BlockState::claimed);
  (void)run(machine, 1);
  const membership::GroupStatus status = machine.freeze();
  EXPECT_EQ(status.entered, 2U);
  EXPECT_EQ(status.completed, 0U);
  EXPECT_TRUE(run(machine, 1).empty());
  EXPECT_FALSE(machine.may_enter(words_));
  machine.install(excluding({{0, 2}}));
  const std::vector<Action> actions = run(machine, 1);
  ASSERT_GE(actions.size(), 2U);
  EXPECT_EQ(actions[0].kind, Kind::copy_block);  // from the dead one's scratch, to itself only
  EXPECT_EQ(actions[0].source, Rank{0});
  EXPECT_EQ(actions[1].state, BlockState::distributed);
  EXPECT_EQ(actions[2].kind, Kind::complete);
  EXPECT_EQ(actions[4].kind, Kind::reduce_block);
  EXPECT_EQ(actions[4].sequence, 1U);
  EXPECT_EQ(machine.contributors(1), (RankSet{true, true}));  // its last gradient counts
  EXPECT_EQ(machine.contributors(2), (RankSet{false, true}));
  EXPECT_EQ(machine.completed(), 2U);
  EXPECT_EQ(machine.blocks_taken_over(), 2U);
}

TEST_F(GroupMachineTest, AReduceWritesToItsRootAlone) {
  GroupMachine machine = make(3, 1);
  enter(machine, OpKind::reduce, 3 * min_block_bytes, Rank{2});
  everyone_entered(1);
  publish(0, 0, 0, BlockState::claimed);
  publish(2, 0, 2, BlockState::claimed);
  const std::vector<Action> actions = run(machine, 1);
  EXPECT_EQ(kinds(actions), (std::vector{Kind::claim_block, Kind::reduce_block, Kind::publish_block, Kind::copy_block,
                                         Kind::publish_block}));
  EXPECT_EQ(actions[3].destination, Rank{2});
  EXPECT_EQ(machine.waiting_for(words_), (std::vector{Rank{0}, Rank{2}})) << "its input is read until all is reduced";
}

TEST_F(GroupMachineTest, AReduceWhoseRootDiedAfterItEnteredSucceedsForNobody) {
  GroupMachine machine = make(2, 0);
  enter(machine, OpKind::reduce, 2 * min_block_bytes, Rank{1});
  everyone_entered(1);
  machine.freeze();
  machine.install(excluding({{1, 1}}));
  const std::vector<Action> actions = run(machine, 0);
  ASSERT_EQ(kinds(actions), (std::vector{Kind::claim_block, Kind::publish_block, Kind::claim_block, Kind::publish_block,
                                         Kind::complete, Kind::publish_completed}));
  EXPECT_EQ(actions[1].state, BlockState::distributed) << "nothing is reduced for nobody";
  EXPECT_EQ(actions[4].outcome, Fault::none);
}

TEST_F(GroupMachineTest, ATakerReadsEachSourceInBoundedRanges) {
  GroupMachine machine = make(3, 1);
  const std::uint64_t unit = take_bytes + 64;
  enter(machine, OpKind::all_gather, unit);
  EXPECT_TRUE(run(machine, 1).empty()) << "the others have not entered";
  everyone_entered(1);
  const std::vector<Action> actions = run(machine, 1);
  ASSERT_EQ(actions.size(), 7U);
  for (std::uint32_t k = 0; k < 6; ++k) {
    const Action& action = actions[k];
    EXPECT_EQ(action.kind, Kind::take_block);
    EXPECT_EQ(action.source, Rank{(1 + k / 2) % 3}) << "its own first, then upwards";
    EXPECT_EQ(action.output_unit, action.source.value());
    EXPECT_EQ(action.input_unit, 0U);
    EXPECT_EQ(action.offset, k % 2 == 0 ? 0 : take_bytes);
    EXPECT_EQ(action.bytes, k % 2 == 0 ? take_bytes : 64);
    EXPECT_FALSE(action.zeros);
  }
  EXPECT_EQ(actions[6].kind, Kind::publish_block);
  EXPECT_EQ(actions[6].block, 1U);
  EXPECT_EQ(actions[6].state, BlockState::distributed);
  EXPECT_EQ(machine.waiting_for(words_), (std::vector{Rank{0}, Rank{2}}));
  publish(2, 0, 2, BlockState::distributed, 2);
  EXPECT_EQ(machine.waiting_for(words_), (std::vector{Rank{0}}));
  EXPECT_TRUE(run(machine, 1).empty()) << "its input is not the caller's again before rank 0 has read it";
  publish(0, 0, 0, BlockState::distributed);
  EXPECT_EQ(kinds(run(machine, 1)), (std::vector{Kind::complete, Kind::publish_completed}));
}

TEST_F(GroupMachineTest, ATakerOfAReductionReadsItsUnitOfAll) {
  GroupMachine machine = make(3, 2);
  enter(machine, OpKind::reduce_scatter, max_block_bytes + 4);
  everyone_entered(1);
  const std::vector<Action> actions = run(machine, 2);
  ASSERT_EQ(kinds(actions), (std::vector{Kind::take_reduced, Kind::take_reduced, Kind::publish_block}));
  EXPECT_EQ(actions[0].input_unit, 2U);
  EXPECT_EQ(actions[0].output_unit, 0U);
  EXPECT_EQ(actions[0].bytes, max_block_bytes);
  EXPECT_EQ(actions[1].offset, max_block_bytes);
  EXPECT_EQ(actions[1].bytes, 4U);
}

TEST_F(GroupMachineTest, RootsTakeNothingOrEverything) {
  GroupMachine root = make(2, 0);
  enter(root, OpKind::broadcast, 1 << 20);
  enter(root, OpKind::gather, 1 << 20);
  everyone_entered(2);
  EXPECT_EQ(root.waiting_for(words_), (std::vector{Rank{1}}));
  const std::vector<Action> gathering = run(root, 0);
  ASSERT_FALSE(gathering.empty());
  EXPECT_EQ(gathering[0].sequence, 1U) << "nothing to do in the broadcast";
  publish(1, 0, 1, BlockState::distributed, 1);
  EXPECT_EQ(kinds(run(root, 0)),
            (std::vector{Kind::complete, Kind::publish_completed, Kind::complete, Kind::publish_completed}))
      << "rank 1 takes nothing of a gather and is not waited for";

  words_ = FakeWords();
  GroupMachine other = make(2, 1);
  enter(other, OpKind::scatter, 1 << 18);
  everyone_entered(1);
  const std::vector<Action> scattered = run(other, 1);
  ASSERT_EQ(kinds(scattered), (std::vector{Kind::take_block, Kind::publish_block}));
  EXPECT_EQ(scattered[0].source, Rank{0});
  EXPECT_EQ(scattered[0].input_unit, 1U);
  EXPECT_EQ(scattered[0].output_unit, 0U);
}

TEST_F(GroupMachineTest, ATakerGoesOnWhereItWasAfterAnInstall) {
  GroupMachine machine = make(3, 0);
  enter(machine, OpKind::all_to_all, take_bytes);
  everyone_entered(1);
  Action first = machine.next(words_);
  machine.done(first);
  EXPECT_EQ(first.source, Rank{0});
  EXPECT_EQ(first.input_unit, 0U);
  machine.freeze();
  EXPECT_EQ(machine.next(words_).kind, Kind::none);
  machine.install(excluding({{1, 1}, {2, 1}}));  // both had entered: their input counts, their parts do not
  const std::vector<Action> rest = run(machine, 0);
  ASSERT_EQ(kinds(rest), (std::vector{Kind::take_block, Kind::take_block, Kind::publish_block, Kind::complete,
                                      Kind::publish_completed}));
  EXPECT_EQ(rest[0].source, Rank{1});
  EXPECT_FALSE(rest[0].zeros);
  EXPECT_EQ(rest[1].source, Rank{2});
}

TEST_F(GroupMachineTest, APairWithoutBytesIsTakenAtOnce) {
  GroupMachine machine = make(2, 0);
  enter(machine, OpKind::all_to_all, 0);
  everyone_entered(1);
  EXPECT_EQ(kinds(run(machine, 0)), (std::vector{Kind::publish_block}));
}

TEST_F(GroupMachineTest, AVacantSourceGivesZeros) {
  for (const OpKind kind : {OpKind::all_gather, OpKind::gather, OpKind::all_to_all}) {
    words_ = FakeWords();
    GroupMachine machine = make(2, 0);
    machine.install(excluding({{1, 0}}));
    enter(machine, kind, min_block_bytes);
    words_.entered_words[0] = 1;
    const std::vector<Action> actions = run(machine, 0);
    ASSERT_GE(actions.size(), 2U);
    EXPECT_FALSE(actions[0].zeros);
    EXPECT_TRUE(actions[1].zeros) << name_of(kind);
    EXPECT_EQ(actions[1].output_unit, 1U);
    EXPECT_EQ(machine.completed(), 1U) << "nobody waits for what it would have taken";
  }
}

TEST_F(GroupMachineTest, ARootedOpWithoutItsRootIsLostForAll) {
  for (const OpKind kind : {OpKind::broadcast, OpKind::gather, OpKind::scatter, OpKind::reduce}) {
    for (const std::uint64_t unit : {8U, 1U << 16}) {
      words_ = FakeWords();
      GroupMachine machine = make(3, 1);
      machine.install(excluding({{0, 0}}));
      enter(machine, kind, unit, Rank{0});
      const std::vector<Action> actions = run(machine, 1);
      ASSERT_EQ(kinds(actions), (std::vector{Kind::complete, Kind::publish_completed})) << name_of(kind);
      EXPECT_EQ(actions[0].outcome, Fault::peer_lost);
      EXPECT_EQ(actions[0].culprit, Rank{0});
      EXPECT_FALSE(machine.failure().has_value()) << "the group goes on";
    }
  }
}

TEST_F(GroupMachineTest, TheLowestMemberTakesOverABroadcast) {
  GroupMachine lowest = make(3, 2, Policy::repair, true);
  lowest.install(excluding({{0, 0}}));
  enter(lowest, OpKind::broadcast, min_block_bytes, Rank{0});
  everyone_entered(1);
  EXPECT_EQ(lowest.effective_root(make_plan(OpKind::broadcast, DType::float32, ReduceOp::sum, Rank{0}, 4096, 3), 0),
            Rank{1});
  const std::vector<Action> actions = run(lowest, 2);
  ASSERT_EQ(kinds(actions),
            (std::vector{Kind::take_block, Kind::publish_block, Kind::complete, Kind::publish_completed}));
  EXPECT_EQ(actions[0].source, Rank{1});
  EXPECT_TRUE(lowest.waiting_for(words_).empty());
}

TEST_F(GroupMachineTest, OnlyWhoHasOutputCombinesASmallEntry) {
  for (const OpKind kind : {OpKind::gather, OpKind::reduce}) {
    for (const std::uint32_t self : {0U, 1U}) {
      words_ = FakeWords();
      GroupMachine machine = make(2, self);
      enter(machine, kind, 8, Rank{1});
      everyone_entered(1);
      EXPECT_EQ(run(machine, self)[0].kind == Kind::combine_inline, self == 1) << name_of(kind);
    }
  }
}

// Otherwise: the entry after a mismatched one is done in part, and its callers have their error already.
TEST_F(GroupMachineTest, NothingMovesBehindAMismatchedSmallEntry) {
  GroupMachine machine = make(3, 0);
  enter(machine, OpKind::all_reduce, 1 << 16);
  enter(machine, OpKind::barrier, 0);
  enter(machine, OpKind::all_gather, 1 << 16);
  everyone_entered(3);
  words_.signatures[{2, 1}] = 99;
  publish(1, 0, 1, BlockState::claimed);
  publish(2, 0, 2, BlockState::claimed);
  for (const Action& action : run(machine, 0)) {
    EXPECT_EQ(action.sequence, 0U);
  }
  EXPECT_EQ(machine.waiting_for(words_), (std::vector{Rank{1}, Rank{2}}));
}

TEST_F(GroupMachineTest, UnderFailTheFirstSwapDecides) {
  GroupMachine machine = make(2, 0, Policy::fail);
  enter(machine, OpKind::barrier, 0);
  enter(machine, OpKind::barrier, 0);
  everyone_entered(1);
  words_.decisions[0] = DecisionWord{0, Decision::success, 0}.pack();  // by rank 1, before it died
  machine.peer_lost(Rank{1});
  const std::vector<Action> actions = run(machine, 0);
  EXPECT_EQ(kinds(actions), (std::vector{Kind::complete, Kind::publish_completed, Kind::decide, Kind::complete}));
  EXPECT_EQ(actions[0].outcome, Fault::none);
  EXPECT_EQ(actions[3].outcome, Fault::peer_lost);
  EXPECT_EQ(actions[3].culprit, Rank{1});
}

TEST_F(GroupMachineTest, UnderFailAWordOfALaterEntryMeansSuccess) {
  EXPECT_FALSE(DecisionWord::undecided(DecisionWord{4, Decision::undecided, 0}.pack(), 0));
  EXPECT_TRUE(DecisionWord::undecided(DecisionWord{4, Decision::failed, 0}.pack(), 8));
  EXPECT_TRUE(DecisionWord::undecided(0, 0));
}

TEST_F(GroupMachineTest, UnderFailAMemberLearnsOfAnothersDecision) {
  GroupMachine machine = make(3, 0, Policy::fail);
  enter(machine, OpKind::all_reduce, 8);
  EXPECT_TRUE(run(machine, 0).empty());
  words_.decisions[0] = DecisionWord{0, Decision::failed, 2}.pack();
  const std::vector<Action> actions = run(machine, 0);
  ASSERT_EQ(kinds(actions), (std::vector{Kind::complete}));
  EXPECT_EQ(actions[0].outcome, Fault::peer_lost);
  EXPECT_EQ(actions[0].culprit, Rank{2});
}

TEST_F(GroupMachineTest, AVacantSlotFailsAGroupUnderFailUntilRepairIsDeclared) {
  GroupMachine machine = make(3, 0, Policy::fail);
  machine.install(excluding({{2, 0}}));
  ASSERT_TRUE(machine.failure().has_value());
  EXPECT_FALSE(machine.may_enter(words_));
  machine.set_policy(Policy::repair);
  EXPECT_FALSE(machine.failure().has_value());
  enter(machine, OpKind::barrier, 0);
  words_.entered_words = {1, 1, 0};
  EXPECT_EQ(kinds(run(machine, 0)), (std::vector{Kind::complete, Kind::publish_completed}));
}

TEST_F(GroupMachineTest, FailAllEndsOpenEntriesAndPublishesNothing) {
  GroupMachine machine = make(2, 0);
  enter(machine, OpKind::all_reduce, 1 << 16);
  enter(machine, OpKind::barrier, 0);
  machine.fail_all(Fault::timeout, Rank{1});
  const std::vector<Action> actions = run(machine, 0);
  ASSERT_EQ(kinds(actions), (std::vector{Kind::complete, Kind::complete}));
  EXPECT_EQ(actions[1].outcome, Fault::timeout);
  EXPECT_EQ(words_.completed_words[0], 0U);
}

// A group whose ops have failed is not idle: nobody joins it.
TEST_F(GroupMachineTest, AStatusCountsNothingThatFailedAsComplete) {
  GroupMachine timed_out = make(2, 0);
  enter(timed_out, OpKind::gather, 1 << 16);
  timed_out.fail_all(Fault::timeout, Rank{1});
  (void)run(timed_out, 0);
  EXPECT_EQ(timed_out.completed(), 1U);
  EXPECT_EQ(timed_out.freeze().completed, 0U);
  EXPECT_EQ(timed_out.freeze().entered, 1U);
}

TEST_F(GroupMachineTest, AnEvictedMemberFails) {
  GroupMachine machine = make(2, 0);
  enter(machine, OpKind::barrier, 0);
  machine.install(excluding({{0, 1}}));
  EXPECT_EQ(run(machine, 0)[0].outcome, Fault::evicted);
}

TEST_F(GroupMachineTest, WordsPackAndUnpack) {
  const BlockWord block{(std::uint64_t{1} << 40) - 1, BlockState::distributed, 1023};
  const BlockWord back = BlockWord::unpack(block.pack());
  EXPECT_EQ(back.sequence, block.sequence);
  EXPECT_EQ(back.state, block.state);
  EXPECT_EQ(back.holder, block.holder);
  EXPECT_EQ(BlockWord::unpack(0).state, BlockState::open);
}

membership::GroupResolution joined(std::uint64_t n, std::uint64_t base,
                                   std::vector<membership::Departure> vacant = {}) {
  membership::GroupResolution resolution;
  resolution.view = resolution.epoch = ViewNumber{1, n};
  resolution.base = base;
  resolution.departures = std::move(vacant);
  return resolution;
}

TEST_F(GroupMachineTest, AJoinStartsTheGroupAnew) {
  GroupMachine survivor = make(3, 0);
  words_.entered_words = {1, 1, 1};
  enter(survivor, OpKind::all_reduce, 64);
  run(survivor, 0);
  survivor.freeze();
  membership::GroupResolution loss;
  loss.view = ViewNumber{1, 1};
  loss.departures = {{WorkerId{2}, Slot{12}, loss.view, 1}};
  survivor.install(loss);
  EXPECT_TRUE(survivor.idle());
  survivor.freeze();
  survivor.install(joined(2, 1));
  EXPECT_EQ(survivor.present(), (RankSet{true, true, true}));
  EXPECT_EQ(survivor.freeze().epoch, (ViewNumber{1, 2}));
  EXPECT_EQ(survivor.freeze().base, 1U);
  EXPECT_TRUE(survivor.freeze().departures.empty());

  // The newcomer counted nothing that matters.
  GroupMachine newcomer = make(3, 2);
  newcomer.install(joined(2, 1));
  EXPECT_EQ(newcomer.next_sequence(), 1U);
  EXPECT_EQ(newcomer.completed(), 1U);
  EXPECT_EQ(newcomer.base(), 1U);
  EXPECT_TRUE(newcomer.contributes(Rank{2}, 1));
}

TEST_F(GroupMachineTest, AJoinHealsALossThatNoEntryHasMet) {
  GroupMachine machine = make(3, 0, Policy::fail);
  membership::GroupResolution loss;
  loss.view = ViewNumber{1, 1};
  loss.departures = {{WorkerId{2}, Slot{12}, loss.view, 0}};
  machine.install(loss);
  EXPECT_TRUE(machine.failure().has_value());
  machine.install(joined(2, 0));
  EXPECT_FALSE(machine.failure().has_value());
  machine.install(joined(3, 0, {{WorkerId{1}, Slot{11}, ViewNumber{1, 2}, 0}}));
  ASSERT_TRUE(machine.failure().has_value()) << "another slot is still vacant";
  EXPECT_EQ(machine.failure()->culprit, Rank{1});
}

TEST_F(GroupMachineTest, ExactMissesThoseTheStepCountedOn) {
  GroupMachine machine = make(3, 0, Policy::exact);
  const auto enter_in_step = [&](std::uint64_t step_start) {
    const std::uint64_t sequence = machine.next_sequence();
    machine.enter(
        {sequence, make_plan(OpKind::all_reduce, DType::float32, ReduceOp::sum, Rank{0}, 64, 3), 1, step_start});
  };
  const auto outcome_of = [&](std::uint64_t sequence) {
    words_.entered_words = {sequence + 1, sequence + 1, 1};
    for (const Action& action : run(machine, 0)) {
      if (action.kind == Kind::complete && action.sequence == sequence) return action.outcome;
    }
    return Fault::system;
  };
  enter_in_step(0);
  EXPECT_EQ(outcome_of(0), Fault::none);
  enter_in_step(0);
  machine.freeze();
  membership::GroupResolution loss;
  loss.view = ViewNumber{1, 1};
  loss.departures = {{WorkerId{2}, Slot{12}, loss.view, 1}};
  machine.install(loss);
  EXPECT_EQ(outcome_of(1), Fault::incomplete);
  EXPECT_FALSE(machine.failure().has_value()) << "the group goes on";
  enter_in_step(1);
  EXPECT_EQ(outcome_of(2), Fault::incomplete) << "it was there when that step began";
  enter_in_step(2);
  EXPECT_EQ(outcome_of(3), Fault::none) << "it was not";
}

TEST(ConnectedWord, GrowsWithTheEpoch) {
  EXPECT_EQ(connected_word({}), 1U);
  EXPECT_LT(connected_word({}), connected_word({1, 1}));
  EXPECT_LT(connected_word({1, 7}), connected_word({2, 3}));
}

}  // namespace
}  // namespace closeranks::algorithm
