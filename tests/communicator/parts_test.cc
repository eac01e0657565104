// The communicator's parts without processes: call shapes, signatures, staging memory, buffer lists, ops.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "communicator/buffer_list.h"
#include "communicator/call_shape.h"
#include "communicator/group_key.h"
#include "communicator/operation.h"
#include "communicator/region_allocator.h"
#include "processes.h"

namespace closeranks::communicator {
namespace {

using communicator_test::buffer;
using std::chrono::milliseconds;

const GroupFacts group_of_four{4, Rank{1}, false, 2 * 1024 * 1024};

Call all_reduce_of(std::vector<float>& tensor) {
  Call call;
  call.kind = OpKind::all_reduce;
  call.dtype = DType::float32;
  call.inputs = {buffer(tensor)};
  call.outputs = {buffer(tensor)};
  return call;
}

TEST(CallShape, LongCallsAreCutIntoWholeElementsThatCoverTheUnit) {
  std::vector<float> tensor(3'000'001);
  const Result<CallShape> shape = shape_of(all_reduce_of(tensor), group_of_four);
  ASSERT_TRUE(shape.ok());
  EXPECT_GT(shape.value().pieces, 4u);
  std::uint64_t next = 0;
  for (std::uint32_t piece = 0; piece < shape.value().pieces; ++piece) {
    const algorithm::Range range = shape.value().piece(piece);
    EXPECT_EQ(range.offset, next);
    EXPECT_GT(range.bytes, 0u);
    EXPECT_EQ(range.bytes % sizeof(float), 0u);
    next += range.bytes;
  }
  EXPECT_EQ(next, tensor.size() * sizeof(float));
}

TEST(CallShape, AnEmptyTensorIsOnePiece) {
  std::vector<float> nothing;
  const Result<CallShape> shape = shape_of(all_reduce_of(nothing), group_of_four);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape.value().pieces, 1u);
  EXPECT_EQ(shape.value().piece(0).bytes, 0u);
}

TEST(CallShape, WrongCallsSayWhy) {
  std::vector<float> tensor(10);
  std::vector<float> four(40);
  const auto reason = [](const Call& call) { return shape_of(call, group_of_four).status().message(); };
  Call call = all_reduce_of(tensor);
  call.outputs = {buffer(four)};
  EXPECT_EQ(reason(call), "all_reduce: output has 160 bytes, expected 40 bytes (as long as the input)");
  call = all_reduce_of(tensor);
  call.kind = OpKind::all_gather;
  EXPECT_NE(reason(call).find("one input of each member"), std::string::npos);
  call = all_reduce_of(tensor);
  call.inputs[0].bytes = call.outputs[0].bytes = 39;
  EXPECT_EQ(reason(call), "all_reduce: 39 bytes is not a whole number of float32");
  call = all_reduce_of(tensor);
  call.inputs[0].data = nullptr;
  EXPECT_EQ(reason(call), "all_reduce: a buffer has a size but no memory");
  call = all_reduce_of(tensor);
  call.reduce = ReduceOp::band;
  EXPECT_NE(reason(call).find("band is not defined on float32"), std::string::npos);
  call = all_reduce_of(tensor);
  call.kind = OpKind::reduce;
  call.root = Rank{2};
  EXPECT_EQ(reason(call), "reduce: output has 40 bytes, expected 0 bytes (only the root has output)");
  call.kind = OpKind::all_to_all;
  call.input_bytes = {8, 8, 8};
  EXPECT_EQ(reason(call), "all_to_all: input_bytes has 3 numbers, expected 4 (one for each member)");
  call.input_bytes = {8, 8, 8, 20};
  EXPECT_EQ(reason(call), "all_to_all: input has 40 bytes, fewer than input_bytes add up to");
  call.input_bytes = {8, 8, 8, 16};
  call.output_bytes = {8, 8, 8, 8};
  EXPECT_EQ(reason(call), "all_to_all: output has 40 bytes, expected 32 bytes (what its parts add up to)");
  call.output_bytes = {8, 8, 8, 16};
  EXPECT_TRUE(shape_of(call, group_of_four).ok());
  call.input_bytes = {6, 10, 8, 16};
  EXPECT_EQ(reason(call), "all_to_all: 6 bytes is not a whole number of float32");
  call = all_reduce_of(tensor);
  call.kind = OpKind::send;
  call.outputs.clear();
  call.root = Rank{1};
  EXPECT_EQ(reason(call), "send: a member does not send to itself");
  call.root = Rank{4};
  EXPECT_EQ(reason(call), "send: rank 4 is not in this group of 4");
  EXPECT_EQ(shape_of(call, group_of_four).status().fault(), Fault::invalid_argument);
}

TEST(CallShape, SignaturesTellCallsApart) {
  std::vector<float> tensor(10);
  std::vector<float> longer(11);
  const auto signature = [](const Call& call, std::uint32_t piece = 0, Policy policy = Policy::fail,
                            bool lowest = false) {
    return signature_of(call, shape_of(call, group_of_four).value().unit_bytes, piece, policy, lowest);
  };
  const Call call = all_reduce_of(tensor);
  Call other = call;
  EXPECT_EQ(signature(call), signature(other));
  other.root = Rank{3};  // means nothing to an all_reduce
  EXPECT_EQ(signature(call), signature(other));
  other.reduce = ReduceOp::max;
  EXPECT_NE(signature(call), signature(other));
  other = call;
  other.dtype = DType::int32;
  EXPECT_NE(signature(call), signature(other));
  EXPECT_NE(signature(call), signature(all_reduce_of(longer)));
  EXPECT_NE(signature(call), signature(call, 1));
  EXPECT_NE(signature(call), signature(call, 0, Policy::repair));
  other = call;
  other.kind = OpKind::broadcast;
  EXPECT_NE(signature(call), signature(other));
  EXPECT_EQ(signature(other), signature([&] {
              Call same = other;
              same.reduce = ReduceOp::max;  // means nothing to a broadcast
              return same;
            }()));
  Call from_three = other;
  from_three.root = Rank{3};
  EXPECT_NE(signature(other), signature(from_three));
  Call with_layout = call;
  with_layout.fingerprint = 7;
  EXPECT_NE(signature(call), signature(with_layout));
  EXPECT_EQ(signature(other, 0, Policy::fail, true), signature(from_three, 0, Policy::fail, true));
}

TEST(CallShape, GroupsAreNamedByNameMembersAndCount) {
  const std::vector<Slot> some{Slot{0}, Slot{1}};
  const std::vector<Slot> others{Slot{1}, Slot{0}};
  EXPECT_EQ(group_key("a", some, 0), group_key("a", some, 0));
  EXPECT_NE(group_key("a", some, 0), group_key("b", some, 0));
  EXPECT_NE(group_key("a", some, 0), group_key("a", others, 0));
  EXPECT_NE(group_key("a", some, 0), group_key("a", some, 1));
}

TEST(RegionAllocator, PlacesNeverOverlapAndComeBack) {
  constexpr std::uint64_t size = 1 << 20;
  RegionAllocator region(size);
  std::mt19937 random(5);
  struct Place {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  std::vector<Place> places;
  int refused = 0;
  for (int turn = 0; turn < 20'000; ++turn) {
    if (places.empty() || random() % 3 != 0) {
      const std::uint64_t bytes = 1 + random() % 100'000;
      const std::optional<std::uint64_t> offset = region.allocate(bytes);
      if (!offset) {
        ++refused;
        places.clear();
        region = RegionAllocator(size);
        continue;
      }
      EXPECT_EQ(*offset % RegionAllocator::alignment, 0u);
      ASSERT_LE(*offset + bytes, size);
      for (const Place& place : places) {
        ASSERT_TRUE(*offset + bytes <= place.offset || place.offset + place.bytes <= *offset);
      }
      places.push_back({*offset, bytes});
    } else {
      const std::size_t pick = random() % places.size();
      region.release(places[pick].offset, places[pick].bytes);
      places.erase(places.begin() + static_cast<std::ptrdiff_t>(pick));
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(RegionAllocator, HolesGrowTogetherAgain) {
  RegionAllocator region(4096);
  const auto a = region.allocate(1000);
  const auto b = region.allocate(1000);
  const auto c = region.allocate(1000);
  EXPECT_FALSE(region.allocate(2000));
  region.release(*a, 1000);
  region.release(*c, 1000);
  EXPECT_FALSE(region.allocate(3000));
  region.release(*b, 1000);
  EXPECT_EQ(region.allocate(4096), 0u);
}

TEST(BufferList, RangesCrossBuffers) {
  std::vector<std::uint8_t> a{1, 2, 3};
  std::vector<std::uint8_t> none;
  std::vector<std::uint8_t> b{4, 5};
  const std::vector<Buffer> list{buffer(a), buffer(none), buffer(b)};
  EXPECT_EQ(total_bytes(list), 5u);
  std::vector<std::uint8_t> out(3);
  copy_from(list, 2, reinterpret_cast<std::byte*>(out.data()), 3);
  EXPECT_EQ(out, (std::vector<std::uint8_t>{3, 4, 5}));
  const std::vector<std::uint8_t> in{9, 8};
  copy_to(list, 2, reinterpret_cast<const std::byte*>(in.data()), 2);
  EXPECT_EQ(a[2], 9);
  EXPECT_EQ(b[0], 8);
  EXPECT_TRUE(same_memory(list, list));
  EXPECT_FALSE(same_memory(list, {buffer(a)}));
}

TEST(BufferList, KnowsWhatIsOneStretch) {
  std::vector<std::uint8_t> memory(100, 7);
  const auto at = [&](std::size_t from, std::size_t bytes) { return Buffer{memory.data() + from, bytes}; };
  EXPECT_EQ(only_buffer({{nullptr, 0}, at(10, 20), {nullptr, 0}})->bytes, 20u);
  EXPECT_FALSE(only_buffer({at(10, 20), at(30, 5)}).has_value()) << "one behind the other, but two";
  EXPECT_FALSE(only_buffer({}).has_value());
  EXPECT_TRUE(overlaps(at(10, 20), {at(0, 5), at(29, 1)}));
  EXPECT_FALSE(overlaps(at(10, 20), {at(0, 10), at(30, 70)}));
  EXPECT_EQ(range_in({at(0, 10), at(20, 10)}, 12, 8), at(22, 8).data);
  EXPECT_EQ(range_in({at(0, 10), at(20, 10)}, 8, 4), nullptr) << "over the edge";
  fill_zeros({at(0, 10), at(20, 10)}, 8, 4);
  EXPECT_EQ(memory[7], 7);
  EXPECT_EQ(memory[8] + memory[9] + memory[20] + memory[21], 0);
  EXPECT_EQ(memory[22], 7);
}

class NobodyDrives final : public OperationDriver {
 public:
  Status wait_for(Operation&, milliseconds) override { return {Fault::timeout, Move::retry, "nobody drives"}; }
};

std::shared_ptr<Operation> some_operation() {
  const auto now = Operation::Clock::now();
  auto operation = std::make_shared<Operation>(std::make_shared<NobodyDrives>());
  operation->begin(Call{}, CallShape{0, 0, 3}, 7, now, now);
  return operation;
}

TEST(Operation, ActionsRunOnceAndBeforeWaitReturns) {
  const auto operation = some_operation();
  int ran = 0;
  operation->when_done([&] {
    ++ran;
    EXPECT_TRUE(operation->done());
    EXPECT_TRUE(operation->wait(milliseconds{0}).ok()) << "an action may wait for its own op";
  });
  EXPECT_EQ(operation->wait(milliseconds{0}).fault(), Fault::timeout);
  operation->finish();
  EXPECT_EQ(ran, 0);
  EXPECT_FALSE(operation->settled()) << "a future that an action completes is not complete yet";
  operation->settle();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(operation->wait(milliseconds{0}).ok());
  operation->when_done([&] { ++ran; });
  EXPECT_EQ(ran, 2);
}

TEST(Operation, PiecesThatDifferAreAUnion) {
  const auto operation = some_operation();
  const auto slots = [](const std::vector<Slot>& all) {
    return std::make_shared<const Contributors>(Contributors{all, all, true});
  };
  operation->add_contributors(slots({Slot{0}, Slot{1}, Slot{2}}));
  operation->add_contributors(slots({Slot{0}, Slot{1}, Slot{2}}));
  operation->add_contributors(slots({Slot{0}, Slot{2}}));
  operation->add_contributors(slots({Slot{0}, Slot{2}, Slot{3}}));
  operation->finish();
  EXPECT_FALSE(operation->contributors().uniform);
  EXPECT_EQ(operation->contributors().slots, (std::vector<Slot>{Slot{0}, Slot{1}, Slot{2}, Slot{3}}));
  EXPECT_EQ(operation->contributors().slots_in_all, (std::vector<Slot>{Slot{0}, Slot{2}}));
}

TEST(Operation, TheFirstFailureIsTheOps) {
  const auto operation = some_operation();
  operation->add_failure({Fault::peer_lost, Move::repair_group, "first"});
  operation->add_failure({Fault::timeout, Move::give_up, "second"});
  operation->finish();
  EXPECT_EQ(operation->status().message(), "first");
  EXPECT_TRUE(operation->contributors().slots.empty());
}

TEST(Operation, KeepsTheCallersMemoryUntilItIsSettled) {
  const auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = memory;
  Call call;
  call.keep_alive = memory;
  const auto now = Operation::Clock::now();
  const auto operation = std::make_shared<Operation>(std::make_shared<NobodyDrives>());
  operation->begin(call, CallShape{}, 0, now, now);
  call.keep_alive.reset();
  operation->finish();
  EXPECT_EQ(watch.use_count(), 2);
  operation->settle();
  EXPECT_EQ(watch.use_count(), 1);
}

TEST(Operation, IsUsedAgainAsIfItWereNew) {
  const auto operation = some_operation();
  operation->add_failure({Fault::timeout, Move::give_up, "of the call before"});
  operation->finish();
  operation->settle();
  const auto now = Operation::Clock::now();
  operation->begin_copy_of(Call{}, CallShape{8, 8, 1}, 12, now, now);
  EXPECT_FALSE(operation->done());
  EXPECT_FALSE(operation->settled());
  int ran = 0;
  operation->when_done([&] { ++ran; });
  operation->finish();
  operation->settle();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(operation->status().ok());
  EXPECT_EQ(operation->sequence(), 12u);
}

}  // namespace
}  // namespace closeranks::communicator
