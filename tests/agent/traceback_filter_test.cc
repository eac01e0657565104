#include "agent/traceback_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/slot_names.h"

namespace closeranks::agent {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

class TracebackFilterTest : public testing::Test {
 protected:
  static std::vector<std::string> texts(const TracebackFilter::Lines& lines) {
    std::vector<std::string> result;
    for (const ShownLine& line : lines) {
      result.push_back((line.slot.has_value() ? std::to_string(line.slot->value()) : "-") + "|" + line.text);
    }
    return result;
  }
  std::vector<std::string> say(std::uint32_t slot, const std::string& text) {
    return texts(filter.line(Slot(slot), 2, text, now));
  }
  std::vector<std::string> after(milliseconds time) {
    now += time;
    return texts(filter.tick(now));
  }
  void traceback(std::uint32_t slot, const std::string& error, const std::string& prefix = "") {
    for (const char* line : {"Traceback (most recent call last):", "  File \"a.py\", line 1, in <module>", "    f()"}) {
      EXPECT_THAT(say(slot, prefix + line), IsEmpty());
    }
    EXPECT_THAT(say(slot, prefix + error), IsEmpty());
  }
  TracebackFilter filter;
  TracebackFilter::Time now{};
};

TEST_F(TracebackFilterTest, OtherLinesPassAtOnce) {
  EXPECT_THAT(say(0, "hello"), ElementsAre("0|hello"));
  EXPECT_THAT(say(1, "hello"), ElementsAre("1|hello"));
  EXPECT_FALSE(filter.next_tick().has_value());
}

TEST_F(TracebackFilterTest, OneWorkersErrorIsShownOnce) {
  traceback(2, "ValueError: x");
  EXPECT_THAT(after(TracebackFilter::quiet), IsEmpty());
  EXPECT_THAT(after(TracebackFilter::gather),
              ElementsAre("2|Traceback (most recent call last):", "2|  File \"a.py\", line 1, in <module>", "2|    f()",
                          "2|ValueError: x"));
  EXPECT_THAT(after(milliseconds(10000)), IsEmpty());
}

TEST_F(TracebackFilterTest, TheSameErrorOfOthersIsTold) {
  traceback(0, "ValueError: x at 0x7f01", "[rank0]: ");
  traceback(3, "ValueError: x at 0x7f02", "[rank3]: ");
  traceback(1, "ValueError: x at 0x7fab", "[rank1]: ");
  after(TracebackFilter::quiet);
  const auto shown = after(TracebackFilter::gather);
  ASSERT_EQ(shown.size(), 5u);
  EXPECT_EQ(shown[3], "0|[rank0]: ValueError: x at 0x7f01");
  EXPECT_EQ(shown[4], "-|the same error as on slot 0 on slots 1 and 3");
}

TEST_F(TracebackFilterTest, ALateOneIsToldLater) {
  traceback(0, "E: x");
  after(TracebackFilter::quiet);
  EXPECT_EQ(after(TracebackFilter::gather).size(), 4u);
  traceback(1, "E: x");
  after(TracebackFilter::quiet);
  EXPECT_THAT(after(TracebackFilter::gather), ElementsAre("-|the same error as on slot 0 on slot 1"));
}

TEST_F(TracebackFilterTest, DifferentErrorsAreAllShown) {
  traceback(0, "E: x");
  traceback(1, "E: y");
  EXPECT_EQ(texts(filter.finish(now)).size(), 8u);
}

TEST_F(TracebackFilterTest, AWorkerThatLogsTheSameErrorAgainShowsItAgain) {
  traceback(0, "E: x");
  after(TracebackFilter::quiet);
  EXPECT_EQ(after(TracebackFilter::gather).size(), 4u);
  traceback(0, "E: x");
  after(TracebackFilter::quiet);
  EXPECT_EQ(after(TracebackFilter::gather).size(), 4u);
}

TEST_F(TracebackFilterTest, ASyntaxErrorHasNoHeader) {
  for (const std::uint32_t slot : {0u, 1u}) {
    for (const char* line : {"  File \"/x/a.py\", line 3", "    def f(:", "          ^"}) {
      EXPECT_THAT(say(slot, line), IsEmpty());
    }
    EXPECT_THAT(say(slot, "SyntaxError: invalid syntax"), IsEmpty());
  }
  EXPECT_THAT(texts(filter.finish(now)),
              ElementsAre("0|  File \"/x/a.py\", line 3", "0|    def f(:", "0|          ^",
                          "0|SyntaxError: invalid syntax", "-|the same error as on slot 0 on slot 1"));
}

TEST_F(TracebackFilterTest, AScriptThatDoesNotExist) {
  EXPECT_THAT(say(0, "/venv/bin/python: can't open file '/x/no.py': [Errno 2] No such file or directory"), IsEmpty());
  EXPECT_THAT(say(1, "/venv/bin/python: can't open file '/x/no.py': [Errno 2] No such file or directory"), IsEmpty());
  EXPECT_EQ(texts(filter.finish(now)).size(), 2u);
}

TEST_F(TracebackFilterTest, ChainedErrorsAreOneBlock) {
  traceback(0, "KeyError: 'a'");
  say(0, "");
  say(0, "During handling of the above exception, another exception occurred:");
  say(0, "");
  traceback(0, "ValueError: b");
  after(TracebackFilter::quiet);
  EXPECT_EQ(after(TracebackFilter::gather).size(), 11u);
}

TEST_F(TracebackFilterTest, OutputThatFollowsIsNotHeldForEver) {
  traceback(0, "E: logged");
  std::size_t shown = 0;
  for (int step = 0; step < 40; ++step) {
    now += milliseconds(50);
    shown += say(0, "step " + std::to_string(step)).size();
  }
  EXPECT_GT(shown, 30u);
}

TEST_F(TracebackFilterTest, ABlockIsBounded) {
  EXPECT_THAT(say(0, "Traceback (most recent call last):"), IsEmpty());
  for (std::size_t line = 0; line < 3 * TracebackFilter::most_lines; ++line) say(0, "  deep");
  EXPECT_GE(texts(filter.finish(now)).size(), 1u);
  EXPECT_FALSE(filter.next_tick().has_value());
}

TEST(NameSlots, ReadsAsText) {
  EXPECT_EQ(name_slots({Slot(2)}), "slot 2");
  EXPECT_EQ(name_slots({Slot(3), Slot(0)}), "slots 0 and 3");
  EXPECT_EQ(name_slots({Slot(1), Slot(3), Slot(0)}), "slots 0, 1 and 3");
}

}  // namespace
}  // namespace closeranks::agent
