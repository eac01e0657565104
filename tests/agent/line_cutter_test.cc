#include "agent/line_cutter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace closeranks::agent {
namespace {

using testing::ElementsAre;

std::vector<std::string> cut(const std::vector<std::string>& pieces, std::size_t max_bytes = max_line_bytes) {
  std::vector<std::string> lines;
  LineCutter cutter(max_bytes);
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) cutter.feed(piece, take);
  cutter.finish(take);
  return lines;
}

TEST(LineCutter, JoinsPiecesAndKeepsEmptyLines) {
  EXPECT_THAT(cut({"on", "e\n\ntw", "o\n"}), ElementsAre("one", "", "two"));
  EXPECT_THAT(cut({"no newline at the end"}), ElementsAre("no newline at the end"));
  EXPECT_THAT(cut({"", "\n"}), ElementsAre(""));
}

TEST(LineCutter, BoundsALineWithoutNewline) {
  EXPECT_THAT(cut({"abcdefgh", "ij\nk"}, 4), ElementsAre("abcd", "efgh", "ij", "k"));
  EXPECT_THAT(cut({"abcd\nx\n"}, 4), ElementsAre("abcd", "x"));
}

TEST(LineCutter, ShowsWhatATerminalWould) {
  EXPECT_THAT(cut({"10%\r50%\r100%\n"}), ElementsAre("100%"));
  EXPECT_THAT(cut({"windows\r\n"}), ElementsAre("windows"));
}

TEST(LineCutter, PassesBytesOfAnyKind) {
  const std::string garbage("a\0\xff\xfe\x1b[2Jb", 9);
  EXPECT_THAT(cut({garbage + "\n"}), ElementsAre(garbage));
}

TEST(Printable, KeepsColoursAndTextOnly) {
  EXPECT_EQ(printable("\x1b[31mred\x1b[0m\tx"), "\x1b[31mred\x1b[0m\tx");
  EXPECT_EQ(printable("a\x1b[2Jb\a\x7f"), "a?[2Jb??");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(printable("\x1b["), "?[");
}

}  // namespace
}  // namespace closeranks::agent
