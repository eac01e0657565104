// Every kind, in real processes, checked element by element.
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <thread>

#include "communicator/kernels.h"
#include "processes.h"

namespace closeranks::communicator_test {
namespace {

// The input of `rank` at `index` in round `round`: small whole numbers, exact in every type they are used in.
std::int64_t input_value(std::uint32_t rank, std::uint64_t index, std::uint64_t round) {
  return static_cast<std::int64_t>((index * 7 + rank * 13 + round * 3) % 11) - 3;
}

template <class T>
std::vector<T> input_of(std::uint32_t rank, std::uint64_t count, std::uint64_t round) {
  std::vector<T> values(count);
  for (std::uint64_t i = 0; i < count; ++i) values[i] = static_cast<T>(input_value(rank, i, round));
  return values;
}

Call call_of(OpKind kind, DType dtype, std::vector<Buffer> inputs, std::vector<Buffer> outputs, Rank root = Rank{0}) {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  call.root = root;
  call.inputs = std::move(inputs);
  call.outputs = std::move(outputs);
  return call;
}

void run(Communicator& group, Call call) {
  const std::string what(name_of(call.kind));
  require(group.issue(std::move(call))->wait(std::chrono::milliseconds{0}), what);
}

template <class T>
void check(const std::vector<T>& got, std::uint64_t index, std::int64_t expected, std::string_view what) {
  if (got[index] == static_cast<T>(expected)) return;
  throw std::string(what) + " of " + std::to_string(got.size()) + ": element " + std::to_string(index) + " is " +
      std::to_string(static_cast<double>(got[index])) + ", not " + std::to_string(expected);
}

// Sizes in elements: nothing, one, odd, inline and not, several blocks, several pieces.
const std::vector<std::uint64_t> sizes{0, 1, 3, 255, 513, 4099, 70'001, 1'300'003};

template <class T>
void all_kinds(Communicator& group, std::uint32_t rank, std::uint32_t members, DType dtype) {
  std::uint64_t round = 0;
  for (const std::uint64_t count : sizes) {
    ++round;
    const Rank root{static_cast<std::uint32_t>(round % members)};
    {
      std::vector<T> tensor = input_of<T>(rank, count, round);
      run(group, call_of(OpKind::all_reduce, dtype, {buffer(tensor)}, {buffer(tensor)}));
      for (std::uint64_t i = 0; i < count; ++i) {
        std::int64_t sum = 0;
        for (std::uint32_t r = 0; r < members; ++r) sum += input_value(r, i, round);
        check(tensor, i, sum, "all_reduce");
      }
    }
    {
      std::vector<T> tensor = input_of<T>(rank, count, round);
      run(group, call_of(OpKind::broadcast, dtype, {buffer(tensor)}, {buffer(tensor)}, root));
      for (std::uint64_t i = 0; i < count; ++i) {
        check(tensor, i, input_value(root.value(), i, round), "broadcast");
      }
    }
    {
      std::vector<T> input = input_of<T>(rank, count, round);
      std::vector<T> output(count * members, T(77));
      run(group, call_of(OpKind::all_gather, dtype, {buffer(input)}, {buffer(output)}));
      for (std::uint32_t r = 0; r < members; ++r) {
        for (std::uint64_t i = 0; i < count; ++i) {
          check(output, r * count + i, input_value(r, i, round), "all_gather");
        }
      }
    }
    {
      std::vector<T> input = input_of<T>(rank, count * members, round);
      std::vector<T> output(count, T(77));
      run(group, call_of(OpKind::reduce_scatter, dtype, {buffer(input)}, {buffer(output)}));
      for (std::uint64_t i = 0; i < count; ++i) {
        std::int64_t sum = 0;
        for (std::uint32_t r = 0; r < members; ++r) sum += input_value(r, rank * count + i, round);
        check(output, i, sum, "reduce_scatter");
      }
    }
    {
      std::vector<T> input = input_of<T>(rank, count, round);
      std::vector<T> output(rank == root.value() ? count * members : 0);
      run(group, call_of(OpKind::gather, dtype, {buffer(input)},
                         rank == root.value() ? std::vector{buffer(output)} : std::vector<Buffer>{}, root));
      for (std::uint64_t i = 0; i < output.size(); ++i) {
        check(output, i, input_value(static_cast<std::uint32_t>(i / count), i % count, round), "gather");
      }
    }
    {
      std::vector<T> input = input_of<T>(rank, rank == root.value() ? count * members : 0, round);
      std::vector<T> output(count, T(77));
      run(group,
          call_of(OpKind::scatter, dtype, rank == root.value() ? std::vector{buffer(input)} : std::vector<Buffer>{},
                  {buffer(output)}, root));
      for (std::uint64_t i = 0; i < count; ++i) {
        check(output, i, input_value(root.value(), rank * count + i, round), "scatter");
      }
    }
    run(group, call_of(OpKind::barrier, DType::bytes, {}, {}));
  }
}

class Collectives : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Collectives, EveryKindAndSize) {
  const std::uint32_t members = GetParam();
  const FileBook files;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    all_kinds<float>(*member.group, rank, members, DType::float32);
    all_kinds<std::int16_t>(*member.group, rank, members, DType::int16);
    all_kinds<double>(*member.group, rank, members, DType::float64);
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST_P(Collectives, EveryTypeAndReduction) {
  const std::uint32_t members = GetParam();
  const FileBook files;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    for (int type = 0; type < static_cast<int>(DType::bytes); ++type) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::bxor); ++op) {
        const auto dtype = static_cast<DType>(type);
        const auto reduce = static_cast<ReduceOp>(op);
        for (const std::size_t count : {5u, 3001u}) {
          // Bytes that are any value of the type; the kernels on the same inputs are the model.
          std::vector<std::vector<std::uint8_t>> inputs;
          for (std::uint32_t r = 0; r < members; ++r) {
            inputs.emplace_back(count * size_of(dtype));
            for (std::size_t i = 0; i < inputs[r].size(); ++i) {
              inputs[r][i] = static_cast<std::uint8_t>((i * 31 + r * 17 + static_cast<std::size_t>(op)) >> (i % 3));
            }
          }
          std::vector<std::uint8_t> result = inputs[rank];
          Call call = call_of(OpKind::all_reduce, dtype, {buffer(result)}, {buffer(result)});
          call.reduce = reduce;
          const Status status = member.group->issue(std::move(call))->wait(std::chrono::milliseconds{0});
          const std::string what = std::string(name_of(reduce)) + " of " + std::string(name_of(dtype));
          if (!communicator::check_reduction(dtype, reduce).ok()) {
            require(status.fault() == Fault::invalid_argument, what + " was not refused");
            continue;
          }
          require(status, what);
          std::vector<const std::byte*> sources;
          for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
          std::vector<std::uint8_t> expected(result.size());
          communicator::reduce(dtype, reduce, sources, reinterpret_cast<std::byte*>(expected.data()), expected.size());
          require(result == expected, what + " is wrong");
        }
      }
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST_P(Collectives, ManyOpsInFlightOnTwoGroups) {
  const std::uint32_t members = GetParam();
  const FileBook files;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    GroupOptions other;
    other.name = "backwards";
    for (std::uint32_t slot = members; slot-- > 0;) other.members.push_back(Slot{slot});
    const AddressBook book = files.book();
    auto second = member.engine->create_group(other, &book);
    require(second.status(), "second group");
    constexpr int ops = 60;  // more than the window of either
    std::vector<std::vector<float>> tensors;
    std::vector<std::shared_ptr<Op>> issued;
    int called_back = 0;
    std::mutex mutex;
    for (int i = 0; i < ops; ++i) {
      tensors.push_back(input_of<float>(rank, i % 5 == 0 ? 200'000 : 100 + i, i));
    }
    for (int i = 0; i < ops; ++i) {
      Communicator& group = i % 2 == 0 ? *member.group : *second.value();
      issued.push_back(
          group.issue(call_of(OpKind::all_reduce, DType::float32, {buffer(tensors[i])}, {buffer(tensors[i])})));
      issued.back()->when_done([&] {
        const std::lock_guard lock(mutex);
        ++called_back;
      });
    }
    for (int i = ops; i-- > 0;) require(issued[i]->wait(std::chrono::milliseconds{0}), "op " + std::to_string(i));
    require(called_back == ops, "callbacks: " + std::to_string(called_back));
    for (int i = 0; i < ops; ++i) {
      const std::string what = "op " + std::to_string(i);
      for (std::size_t k = 0; k < tensors[i].size(); ++k) {
        std::int64_t sum = 0;
        for (std::uint32_t r = 0; r < members; ++r) sum += input_value(r, k, i);
        check(tensors[i], k, sum, what);
      }
    }
    require(issued[3]->contributors().slots.size() == members, "contributors");
    require(second.value()->recent_ops().size() == ops / 2, "recent ops");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

INSTANTIATE_TEST_SUITE_P(Members, Collectives, ::testing::Values(1u, 2u, 3u, 4u));

TEST(Lists, ListsCountAsOneBuffer) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    std::vector<float> a(1000, 1.0f + static_cast<float>(rank));
    std::vector<float> b(3, 10.0f);
    run(*member.group, call_of(OpKind::all_reduce, DType::float32, {buffer(a), buffer(b)}, {buffer(a), buffer(b)}));
    require(a == std::vector<float>(1000, 3.0f) && b == std::vector<float>(3, 20.0f), "coalesced all_reduce");
    // Nobody has to wait: the engine's own thread finishes an op.
    std::vector<float> c(5000, 1.0f);
    const auto op = member.group->issue(call_of(OpKind::all_reduce, DType::float32, {buffer(c)}, {buffer(c)}));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (!op->done() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    require(op->done() && c[4999] == 2.0f, "an op nobody waits for");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

}  // namespace
}  // namespace closeranks::communicator_test
