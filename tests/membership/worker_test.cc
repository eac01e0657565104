// The worker's machine: what it accepts, what it refuses, what it says again after a broken connection.
#include "membership/worker.h"

#include <gtest/gtest.h>

namespace closeranks::membership {
namespace {

Worker joined() {
  Worker worker({WorkerId(1), Slot(0), 100, "here", "endpoint0"});
  (void)worker.connected();
  (void)worker.handle(Welcome{1, {1, 1}, {}, {}});
  return worker;
}

ExcludedMember excluded(std::uint32_t slot, ViewNumber view) { return {WorkerId(slot + 1), Slot(slot), view, "gone"}; }

Install install(ViewNumber view, std::vector<ExcludedMember> members) { return {view, std::move(members), {}}; }

TEST(Worker, JoinsWithTheFirstWelcomeOnly) {
  Worker worker({WorkerId(1), Slot(0), 100, "here", "endpoint0"});
  EXPECT_EQ(std::get<Hello>(worker.connected().send.at(0)).installed, ViewNumber{});
  EXPECT_EQ(worker.state(), Worker::State::joining);
  const WorkerAddress peer{WorkerId(2), Slot(1), 101, "here", "endpoint1"};
  EXPECT_EQ(worker.handle(Welcome{1, {1, 3}, {peer}, {excluded(2, {1, 3})}}).addresses.size(), 1U);
  EXPECT_EQ(worker.view(), (ViewNumber{1, 3}));
  EXPECT_TRUE(worker.is_excluded(WorkerId(3)));
  // A later one brings addresses, never a view: views come by install.
  EXPECT_EQ(worker.handle(Welcome{1, {1, 4}, {peer}, {}}).addresses.size(), 1U);
  EXPECT_EQ(worker.view(), (ViewNumber{1, 3}));
}

TEST(Worker, FreezesAnswersAndInstalls) {
  Worker worker = joined();
  const WorkerEffects proposed = worker.handle(Propose{{1, 2}, {excluded(2, {1, 2})}});
  ASSERT_TRUE(proposed.freeze.has_value());
  EXPECT_EQ(proposed.freeze->view, (ViewNumber{1, 2}));
  EXPECT_EQ(worker.state(), Worker::State::frozen);
  EXPECT_EQ(std::get<Prepared>(worker.frozen({1, 2}, {}).send.at(0)).view, (ViewNumber{1, 2}));
  const WorkerEffects installed = worker.handle(install({1, 2}, {excluded(2, {1, 2})}));
  EXPECT_TRUE(installed.install.has_value());
  EXPECT_EQ(worker.state(), Worker::State::active);
  EXPECT_EQ(worker.view(), (ViewNumber{1, 2}));
  // Again: nothing.
  EXPECT_FALSE(worker.handle(install({1, 2}, {excluded(2, {1, 2})})).install.has_value());
}

TEST(Worker, RefusesEverythingBelowItsPromise) {
  Worker worker = joined();
  (void)worker.handle(Propose{{1, 3}, {}});
  EXPECT_FALSE(worker.handle(Propose{{1, 2}, {}}).freeze.has_value());
  EXPECT_FALSE(worker.handle(install({1, 2}, {})).install.has_value());
  EXPECT_TRUE(worker.frozen({1, 2}, {}).send.empty());  // a freeze that was under way for a number replaced since
  EXPECT_TRUE(worker.handle(Propose{{1, 3}, {}}).freeze.has_value());  // asked again after a reconnect
  EXPECT_TRUE(worker.handle(Propose{{1, 4}, {}}).freeze.has_value());
  EXPECT_FALSE(worker.handle(install({1, 3}, {})).install.has_value());
  EXPECT_TRUE(worker.handle(install({1, 4}, {})).install.has_value());
  EXPECT_FALSE(worker.handle(Propose{{1, 4}, {}}).freeze.has_value());
}

TEST(Worker, RefusesAnOldTerm) {
  Worker worker = joined();
  (void)worker.handle(Welcome{2, {1, 1}, {}, {}});  // a newer coordinator, the same view
  EXPECT_FALSE(worker.handle(Propose{{1, 7}, {}}).freeze.has_value());
  EXPECT_FALSE(worker.handle(install({1, 7}, {})).install.has_value());
  EXPECT_FALSE(worker.handle(Evicted{1, {1, 7}, WorkerId(1), "old"}).evicted.has_value());
  EXPECT_TRUE(worker.handle(Propose{{2, 2}, {}}).freeze.has_value());
}

TEST(Worker, TellsItsPromiseAtEveryHello) {
  Worker worker = joined();
  (void)worker.handle(Propose{{1, 2}, {}});
  // Not yet frozen, but promised: the answer under way may be for a number nobody remembers.
  EXPECT_EQ(std::get<Hello>(worker.connected().send.at(0)).prepared, (ViewNumber{1, 2}));
  (void)worker.handle(install({1, 2}, {}));
  const Hello hello = std::get<Hello>(worker.connected().send.at(0));
  EXPECT_EQ(hello.installed, (ViewNumber{1, 2}));
  EXPECT_EQ(hello.prepared, ViewNumber{});
}

TEST(Worker, SuspectsOncePerViewAndMoreWhenItKnowsMore) {
  Worker worker = joined();
  EXPECT_EQ(worker.waits_for(WorkerId(3), "no address").send.size(), 1U);
  EXPECT_TRUE(worker.waits_for(WorkerId(3), "no address").send.empty());
  EXPECT_EQ(worker.suspect(WorkerId(3), "refuses", false).send.size(), 1U);
  EXPECT_TRUE(worker.suspect(WorkerId(3), "refuses", true).send.empty());  // it waited before already
  EXPECT_EQ(worker.suspect(WorkerId(4), "died", false).send.size(), 1U);
  EXPECT_TRUE(worker.suspect(WorkerId(4), "died", false).send.empty());
  EXPECT_EQ(worker.suspect(WorkerId(4), "died", true).send.size(), 1U);
  // After a broken connection all of it again; after an install what still stands.
  EXPECT_EQ(worker.connected().send.size(), 3U);
  (void)worker.handle(Propose{{1, 2}, {excluded(2, {1, 2})}});
  EXPECT_EQ(worker.handle(install({1, 2}, {excluded(2, {1, 2})})).send.size(), 1U);
  EXPECT_TRUE(worker.suspect(WorkerId(3), "refuses", true).send.empty());
}

TEST(Worker, SuspectsBeforeItsWelcomeAndSaysSoThen) {
  Worker worker({WorkerId(1), Slot(0), 100, "here", "endpoint0"});
  EXPECT_TRUE(worker.suspect(WorkerId(2), "died", true).send.empty());
  EXPECT_EQ(worker.handle(Welcome{1, {1, 1}, {}, {}}).send.size(), 1U);
}

TEST(Worker, AfterGoodbyeItAnswersNothing) {
  Worker worker = joined();
  EXPECT_EQ(worker.goodbye().send.size(), 1U);
  EXPECT_TRUE(worker.goodbye().send.empty());
  EXPECT_FALSE(worker.handle(Propose{{1, 2}, {}}).freeze.has_value());
  EXPECT_NE(std::get_if<Goodbye>(&worker.connected().send.back()), nullptr);
}

TEST(Worker, EvictedIsForGood) {
  Worker worker = joined();
  EXPECT_TRUE(worker.handle(Evicted{1, {1, 2}, WorkerId(1), "killed"}).evicted.has_value());
  EXPECT_EQ(worker.state(), Worker::State::evicted);
  EXPECT_FALSE(worker.handle(Propose{{1, 3}, {}}).freeze.has_value());
  EXPECT_TRUE(worker.connected().send.empty());
}

TEST(Groups, ALateMakerAndAnEarlyOneAgree) {
  const std::vector<ExcludedMember> list = {excluded(2, {1, 2}), excluded(5, {1, 3})};
  GroupStatus group;
  group.group = GroupKey(7);
  group.members = {Slot(0), Slot(1), Slot(2)};
  const std::vector<Departure> late = departures_of_new_group(list, group.members, {});
  EXPECT_EQ(late, (std::vector<Departure>{{WorkerId(3), Slot(2), {1, 2}, 0}}));
  // Made before, by this worker alone after its answer: the install does not list it.
  EXPECT_EQ(resolution_for(install({1, 3}, list), group).departures, late);
  // Listed: the resolution as it is.
  Install listed = install({1, 3}, list);
  listed.groups = {{GroupKey(7), {1, 3}, {{WorkerId(3), Slot(2), {1, 2}, 4}}, {}}};
  EXPECT_EQ(resolution_for(listed, group), listed.groups.front());
  // Not affected: as before, its own view too.
  group.members = {Slot(0), Slot(1)};
  group.view = {1, 1};
  const GroupResolution same = resolution_for(install({1, 3}, list), group);
  EXPECT_TRUE(same.departures.empty());
  EXPECT_EQ(same.view, (ViewNumber{1, 1}));
}

}  // namespace
}  // namespace closeranks::membership
