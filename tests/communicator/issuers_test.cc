// The line that tells who calls a group's ops.
#include "communicator/issuers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace closeranks::communicator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class IssuersLine : public ::testing::Test {
 protected:
  std::unique_ptr<transport::IssuerLine> line_ = std::make_unique<transport::IssuerLine>();
  [[nodiscard]] IssuedBy read() const { return read_issuers(*line_); }
  // Runs `body` on a thread of its own, which has ended when it returns; its id.
  template <class Body>
  static std::uint32_t elsewhere(Body body) {
    std::uint32_t id = 0;
    std::thread([&] {
      id = this_thread();
      body();
    }).join();
    return id;
  }
};

TEST_F(IssuersLine, NobodyHasMadeTheGroup) {
  EXPECT_EQ(read().collectives, 0u);
  EXPECT_THAT(read().threads, IsEmpty());
}

TEST_F(IssuersLine, TheMakerUntilSomebodyCalls) {
  Issuers issuers(*line_);
  EXPECT_EQ(read().collectives, 0u);
  EXPECT_THAT(read().threads, ElementsAre(this_thread()));
  const std::uint32_t caller = elsewhere([&] { EXPECT_EQ(issuers.note(true), 0u); });
  EXPECT_NE(caller, this_thread());
  EXPECT_EQ(read().collectives, 1u);
  EXPECT_THAT(read().threads, ElementsAre(caller));
}

TEST_F(IssuersLine, CountsCollectivesAndNamesTheLastCallers) {
  Issuers issuers(*line_);
  const std::uint32_t other = elsewhere([&] { issuers.note(true); });
  EXPECT_EQ(issuers.note(false), 1u);  // a message counts for nothing
  EXPECT_EQ(issuers.note(true), 1u);
  EXPECT_EQ(issuers.collectives(), 2u);
  EXPECT_EQ(read().collectives, 2u);
  EXPECT_THAT(read().threads, UnorderedElementsAre(this_thread(), other));
  for (std::uint32_t i = 0; i < transport::issuer_words; ++i) issuers.note(true);
  EXPECT_EQ(read().collectives, 2 + transport::issuer_words);
  EXPECT_THAT(read().threads, ElementsAre(this_thread()));
  EXPECT_TRUE(has_called(read().collectives, 9));
  EXPECT_FALSE(has_called(read().collectives, 10));
}

TEST_F(IssuersLine, ACallbackIsNoThread) {
  Issuers issuers(*line_);
  {
    const InCallbacks outer;
    const InCallbacks inner;
    issuers.note(true);
  }
  EXPECT_THAT(read().threads, ElementsAre(a_callback));
  issuers.note(true);
  EXPECT_THAT(read().threads, UnorderedElementsAre(a_callback, this_thread()));
}

TEST_F(IssuersLine, ANewEpochCountsAnew) {
  Issuers issuers(*line_);
  for (int i = 0; i < 20; ++i) issuers.note(true);
  issuers.start_anew(2);
  EXPECT_EQ(read().collectives, 2u);
  EXPECT_THAT(read().threads, ElementsAre(this_thread()));
  EXPECT_EQ(issuers.note(true), 2u);
  EXPECT_EQ(read().collectives, 3u);
}

TEST_F(IssuersLine, TheCountMayWrapAround) {
  line_->words[0] = std::uint64_t{7} << 32 | 0xffffffff;
  line_->words[1] = std::uint64_t{7} << 32 | 1;
  EXPECT_EQ(read().collectives, 1u);
  EXPECT_TRUE(has_called(1, 0xfffffff0));
  EXPECT_FALSE(has_called(0xfffffff0, 1));
  EXPECT_FALSE(has_called(1, 1));
}

}  // namespace
}  // namespace closeranks::communicator
