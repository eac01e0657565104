// The sizes of an all_to_all, and which sides of a call may be worked on in place.
#include "communicator/exchange_table.h"

#include <gtest/gtest.h>

#include <cstring>

#include "communicator/in_place.h"
#include "processes.h"

namespace closeranks::communicator {
namespace {

using Sizes = std::vector<std::uint64_t>;

// The tables of three members that have exchanged their rows; member `vacant` has not (3: all have).
std::vector<ExchangeTable> tables_of(const std::vector<Sizes>& sends, const std::vector<Sizes>& expects,
                                     std::uint32_t vacant = 3) {
  std::vector<ExchangeTable> tables;
  tables.reserve(3);
  for (std::uint32_t r = 0; r < 3; ++r) tables.emplace_back(Rank{r}, sends[r], expects[r]);
  for (ExchangeTable& table : tables) {
    auto* rows = static_cast<std::byte*>(table.rows()[0].data);
    EXPECT_EQ(table.rows()[0].bytes, 3 * ExchangeTable::row_bytes(3));
    for (std::uint32_t r = 0; r < 3; ++r) {
      const std::uint64_t bytes = ExchangeTable::row_bytes(3);
      std::memset(rows + r * bytes, 0, bytes);
      if (r != vacant) std::memcpy(rows + r * bytes, tables[r].row()[0].data, bytes);
    }
  }
  std::vector<bool> contributes(3, true);
  if (vacant < 3) contributes[vacant] = false;
  for (std::uint32_t r = 0; r < 3; ++r) {
    if (r != vacant) tables[r].settle(contributes);
  }
  return tables;
}

void expect_range(const algorithm::Range& range, std::uint64_t offset, std::uint64_t bytes) {
  EXPECT_EQ(range.offset, offset);
  EXPECT_EQ(range.bytes, bytes);
}

const std::vector<Sizes> sends{{4, 8, 0}, {100, 0, 12}, {16, 20, 24}};
const std::vector<Sizes> expects{{4, 100, 16}, {8, 0, 20}, {0, 12, 24}};

TEST(ExchangeTable, SaysWhereEachPairLies) {
  const std::vector<ExchangeTable> tables = tables_of(sends, expects);
  for (const ExchangeTable& table : tables) {
    EXPECT_FALSE(table.disagreement().has_value());
    EXPECT_EQ(table.longest_pair_bytes(), 100u);
  }
  const ExchangeTable& second = tables[1];
  EXPECT_EQ(second.source_offset(Rank{0}), 4u);
  EXPECT_EQ(second.source_offset(Rank{2}), 16u);
  EXPECT_EQ(second.output_offset(Rank{2}), 8u);
  EXPECT_EQ(second.input_offset(Rank{2}), 100u);
  expect_range(second.to_self(Rank{2}, 0, 64), 0, 20);
  expect_range(second.to_self(Rank{2}, 16, 64), 16, 4);
  expect_range(second.to_self(Rank{2}, 64, 64), 20, 0);
  expect_range(second.from_self(Rank{0}, 64, 64), 64, 36);
  expect_range(second.from_self(Rank{1}, 0, 64), 0, 0);
}

TEST(ExchangeTable, EverybodyFindsTheSameDisagreement) {
  std::vector<Sizes> wrong = expects;
  wrong[1][2] = 24;
  wrong[2][1] = 8;
  for (const ExchangeTable& table : tables_of(sends, wrong)) {
    ASSERT_TRUE(table.disagreement().has_value());
    EXPECT_EQ(table.disagreement()->source, Rank{1});
    EXPECT_EQ(table.disagreement()->destination, Rank{2});
    EXPECT_EQ(table.disagreement()->sent_bytes, 12u);
    EXPECT_EQ(table.disagreement()->expected_bytes, 8u);
  }
}

TEST(ExchangeTable, FromAVacantMemberComesWhatIsExpectedOfIt) {
  const std::vector<ExchangeTable> tables = tables_of(sends, expects, 1);
  for (const std::uint32_t r : {0u, 2u}) {
    EXPECT_FALSE(tables[r].disagreement().has_value());
    // 100 bytes of zeros to rank 0: the longest pair, though nobody sends them.
    EXPECT_EQ(tables[r].longest_pair_bytes(), 100u);
  }
  expect_range(tables[0].to_self(Rank{1}, 0, 1000), 0, 100);
  EXPECT_EQ(tables[0].output_offset(Rank{2}), 104u);
  expect_range(tables[2].to_self(Rank{1}, 0, 1000), 0, 12);
  EXPECT_EQ(tables[0].source_offset(Rank{2}), 0u);
}

// ---- in_place() ---------------------------------------------------------------------------------------------------

class InPlaceCalls : public ::testing::Test {
 protected:
  // Buffers at these element offsets of one stretch of memory.
  Buffer at(std::size_t element, std::size_t count) { return {memory_.data() + element, count * sizeof(double)}; }
  InPlace of(OpKind kind, std::vector<Buffer> inputs, std::vector<Buffer> outputs) {
    Call call;
    call.kind = kind;
    call.dtype = DType::float64;
    call.root = Rank{1};
    call.inputs = std::move(inputs);
    call.outputs = std::move(outputs);
    const Result<CallShape> shape = shape_of(call, facts_);
    EXPECT_TRUE(shape.ok()) << shape.status().message();
    return in_place(call, shape.value(), facts_);
  }
  std::vector<double> memory_ = std::vector<double>(64);
  const GroupFacts facts_{4, Rank{1}, false, 2 * 1024 * 1024};
};

TEST_F(InPlaceCalls, SidesApartAreBothUsed) {
  const InPlace both = of(OpKind::all_reduce, {at(0, 8)}, {at(8, 8)});
  EXPECT_EQ(both.input->data, at(0, 8).data);
  EXPECT_EQ(both.output->data, at(8, 8).data);
  // Takers write their own output themselves: nobody needs to find it.
  const InPlace taken = of(OpKind::all_gather, {at(0, 8)}, {at(16, 32)});
  EXPECT_TRUE(taken.input.has_value());
  EXPECT_FALSE(taken.output.has_value());
}

TEST_F(InPlaceCalls, TheKnownFormsMayOverlap) {
  EXPECT_TRUE(of(OpKind::all_reduce, {at(0, 8)}, {at(0, 8)}).input.has_value());
  EXPECT_TRUE(of(OpKind::reduce, {at(0, 8)}, {at(0, 8)}).input.has_value());
  EXPECT_TRUE(of(OpKind::broadcast, {at(0, 8)}, {at(0, 8)}).input.has_value());
  EXPECT_TRUE(of(OpKind::all_gather, {at(8, 8)}, {at(0, 32)}).input.has_value());
  EXPECT_TRUE(of(OpKind::reduce_scatter, {at(0, 32)}, {at(8, 8)}).input.has_value());
}

TEST_F(InPlaceCalls, OtherOverlapsAreStaged) {
  EXPECT_FALSE(of(OpKind::all_reduce, {at(0, 8)}, {at(4, 8)}).input.has_value());
  EXPECT_FALSE(of(OpKind::all_reduce, {at(4, 8)}, {at(0, 8)}).input.has_value());
  EXPECT_FALSE(of(OpKind::all_gather, {at(0, 8)}, {at(0, 32)}).input.has_value()) << "another member's place";
  EXPECT_FALSE(of(OpKind::reduce_scatter, {at(0, 32)}, {at(16, 8)}).input.has_value());
  EXPECT_FALSE(of(OpKind::scatter, {at(0, 32)}, {at(8, 8)}).input.has_value());
  EXPECT_FALSE(of(OpKind::all_reduce, {at(0, 8)}, {at(4, 4), at(16, 4)}).input.has_value());
}

TEST_F(InPlaceCalls, ListsAndCrookedMemoryAreStaged) {
  EXPECT_FALSE(of(OpKind::all_reduce, {at(0, 4), at(8, 4)}, {at(16, 8)}).input.has_value());
  EXPECT_FALSE(of(OpKind::all_reduce, {at(0, 4), at(4, 4)}, {at(16, 8)}).input.has_value()) << "of two tensors";
  const Buffer crooked{reinterpret_cast<std::byte*>(memory_.data()) + 4, 64};
  EXPECT_FALSE(of(OpKind::all_reduce, {crooked}, {at(16, 8)}).input.has_value());
  EXPECT_FALSE(of(OpKind::all_reduce, {at(16, 8)}, {crooked}).output.has_value());
}

}  // namespace
}  // namespace closeranks::communicator
