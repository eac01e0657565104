#include "agent/reports.h"

#include <gtest/gtest.h>

namespace closeranks::agent {
namespace {

using membership::Exited;
using membership::Fenced;
using membership::Started;

template <class Message>
WorkerId worker_of(const membership::FromAgent& message) {
  return std::get<Message>(message).worker;
}

TEST(Reports, FirstWorkersAreKnown) {
  Reports reports(2);
  EXPECT_EQ(reports.ended(WorkerId(1), Exited{WorkerId(1), 9, ""}).size(), 1u);
  EXPECT_EQ(reports.all().size(), 1u);
}

TEST(Reports, WhatIsKnownOfASpareIsSaidOnceItHasASlot) {
  Reports reports(2);
  EXPECT_TRUE(reports.ended(WorkerId(2), Fenced{WorkerId(2), true, true, 9, ""}).empty());
  EXPECT_TRUE(reports.all().empty());
  const auto now = reports.started(Started{WorkerId(2), Slot(0)});
  ASSERT_EQ(now.size(), 2u);
  EXPECT_EQ(worker_of<Started>(now[0]), WorkerId(2));
  EXPECT_EQ(worker_of<Fenced>(now[1]), WorkerId(2));
  EXPECT_EQ(reports.ended(WorkerId(2), Exited{WorkerId(2), 9, ""}).size(), 1u);
}

TEST(Reports, ANewConnectionHearsWhoStartedBeforeWhoEnded) {
  Reports reports(1);
  reports.ended(WorkerId(0), Exited{WorkerId(0), 9, ""});
  reports.started(Started{WorkerId(3), Slot(0)});
  reports.ended(WorkerId(3), Exited{WorkerId(3), 9, ""});
  reports.started(Started{WorkerId(4), Slot(0)});
  const auto all = reports.all();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(worker_of<Started>(all[0]), WorkerId(3));
  EXPECT_EQ(worker_of<Started>(all[1]), WorkerId(4));
  EXPECT_EQ(worker_of<Exited>(all[2]), WorkerId(0));
  EXPECT_EQ(worker_of<Exited>(all[3]), WorkerId(3));
}

TEST(Reports, WhatWasAskedOfTheJobIsSaidLastOnEachConnection) {
  Reports reports(2);
  EXPECT_EQ(reports.asked(membership::Resize{1}).size(), 1u);
  EXPECT_EQ(reports.asked(membership::Drain{"the host goes away"}).size(), 1u);
  EXPECT_EQ(std::get<membership::Resize>(reports.asked(membership::Resize{2}).front()).present, 2u);
  reports.ended(WorkerId(1), Exited{WorkerId(1), 0, ""});
  const auto all = reports.all();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(worker_of<Exited>(all[0]), WorkerId(1));
  EXPECT_EQ(std::get<membership::Drain>(all[1]).reason, "the host goes away");
  EXPECT_EQ(std::get<membership::Resize>(all[2]).present, 2u) << "only the newest size counts";
}

}  // namespace
}  // namespace closeranks::agent
