// One frame of `closeranks top`, from traces made by hand.
#include "trace/live_frame.h"

#include <gtest/gtest.h>

namespace closeranks::trace {
namespace {

using recorder::Event;
using recorder::EventKind;
using recorder::GroupTrace;
using recorder::JobTrace;
using recorder::OpTrace;
using recorder::WorkerTrace;

constexpr std::int64_t second = 1'000'000'000;

// Steps of a second; slot 1 takes its time, the others wait for it.
WorkerTrace worker(std::uint32_t slot, std::uint32_t slots, std::int64_t waited_ns) {
  WorkerTrace trace;
  trace.job = "a17";
  trace.host = "alpha";
  trace.slot = Slot(slot);
  trace.worker = WorkerId(slot);
  trace.pid = 4000 + slot;
  trace.slots_in_job = slots;
  trace.running = true;
  GroupTrace group;
  group.name = "world";
  for (std::uint32_t i = 0; i < slots; ++i) group.members.emplace_back(i);
  group.made_ns = 0;
  for (std::uint64_t step = 0; step < 5; ++step) {
    Event event;
    event.kind = EventKind::step;
    event.at_ns = static_cast<std::int64_t>(step) * second;
    event.number = step;
    trace.events.push_back(event);
    OpTrace op;
    op.sequence = step;
    op.call.kind = "all_reduce";
    op.finished_ns = event.at_ns + second / 2;
    op.issued_ns = op.entered_ns = *op.finished_ns - waited_ns;
    op.waited_ns = waited_ns;
    trace.ops.push_back(op);
  }
  group.entered = group.completed = 5;
  trace.groups.push_back(group);
  trace.last_written_ns = 5 * second;
  return trace;
}

JobTrace job(std::uint32_t slots) {
  JobTrace trace;
  for (std::uint32_t i = 0; i < slots; ++i) trace.workers.push_back(worker(i, slots, i == 1 ? 0 : second / 4));
  return trace;
}

std::vector<std::string> frame(const JobTrace& trace, std::size_t columns, std::size_t lines = 0) {
  FrameOptions options;
  options.columns = columns;
  options.lines = lines;
  options.now_ns = 5 * second;
  Verdict verdict;
  verdict.sentence = "nothing is wrong: 3 slots go on";
  return live_frame(trace, verdict, options);
}

bool has(const std::vector<std::string>& lines, const std::string& text) {
  for (const std::string& line : lines) {
    if (line.find(text) != std::string::npos) return true;
  }
  return false;
}

TEST(LiveFrame, SaysOfEachSlotItsStepItsPaceAndWhatItWaits) {
  const auto lines = frame(job(3), 120);
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0], "job a17 on alpha; 3 slots");
  EXPECT_EQ(lines[1], "verdict: nothing is wrong: 3 slots go on");
  EXPECT_EQ(lines[2], "slot  worker       pid      step  step time  waiting  doing");
  EXPECT_EQ(lines[3],
            "   0       0      4000         4      1.0 s     25 %  all_reduce #4 of group 'world' done 500 ms ago");
  EXPECT_EQ(lines[4],
            "   1       1      4001         4      1.0 s      0 %  all_reduce #4 of group 'world' done 500 ms ago");
}

TEST(LiveFrame, AnOpThatIsNotOverCountsAsWaiting) {
  JobTrace trace = job(2);
  OpTrace open;
  open.sequence = 5;
  open.call.kind = "all_reduce";
  open.issued_ns = open.entered_ns = 5 * second;
  trace.workers[0].ops.push_back(open);
  trace.workers[0].groups[0].current = open;
  trace.workers[0].groups[0].entered = 6;
  FrameOptions options;
  options.now_ns = 15 * second;
  const auto lines = live_frame(trace, Verdict{}, options);
  EXPECT_TRUE(has(lines, "100 %  in all_reduce #5 of group 'world' for 10.0 s")) << lines[3];
}

TEST(LiveFrame, FitsANarrowTerminal) {
  for (const std::size_t columns : {1U, 24U, 30U, 40U, 60U, 80U}) {
    for (const std::string& line : frame(job(3), columns)) {
      EXPECT_LE(line.size(), std::max<std::size_t>(columns, 24)) << line;
      EXPECT_FALSE(line.empty());
    }
  }
  EXPECT_EQ(frame(job(3), 40)[2].substr(0, 24), "slot      step  doing");
}

TEST(LiveFrame, ShowsTheSlowestWhereNotAllFit) {
  const auto lines = frame(job(30), 100, 10);
  EXPECT_EQ(lines.size(), 10U);
  EXPECT_TRUE(has(lines, "   1       1"));
  EXPECT_TRUE(has(lines, "24 more"));
}

TEST(LiveFrame, SaysWhoIsStoppedWhoIsGoneAndWhichViewsThereWere) {
  JobTrace trace = job(3);
  trace.workers[0].running = false;
  Event state;
  state.kind = EventKind::peer_state;
  state.at_ns = 5 * second;
  state.slots = {Slot(1)};
  state.detail = "stopped (T)";
  Event view;
  view.kind = EventKind::view;
  view.number = 2;
  view.slots = {Slot(1), Slot(2)};
  view.detail = "slot 0 is out";
  trace.workers[2].events.push_back(view);
  trace.workers[2].events.push_back(state);
  const auto lines = frame(trace, 120);
  EXPECT_EQ(lines[0], "job a17 on alpha; 3 slots, 2 present in view 2 (1 view; last: slot 0 is out)");
  EXPECT_TRUE(has(lines, "is gone"));
  EXPECT_TRUE(has(lines, "stopped (T)"));
}

TEST(LiveFrame, DoesNotLetANameCommandTheTerminal) {
  JobTrace trace = job(1);
  trace.workers[0].groups[0].name = "\x1b[2Jx";
  for (const std::string& line : frame(trace, 120)) EXPECT_EQ(line.find('\x1b'), std::string::npos);
}

TEST(LiveFrame, WithoutAFileSaysSo) {
  const auto lines = frame(JobTrace{}, 60);
  EXPECT_TRUE(has(lines, "no worker has written a file yet"));
}

}  // namespace
}  // namespace closeranks::trace
