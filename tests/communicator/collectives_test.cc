// Every kind, in real processes, checked element by element.
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <thread>

#include "algorithm/plan.h"
#include "communicator/group.h"
#include "communicator/kernels.h"
#include "processes.h"
#include "tensors.h"

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

template <class T>
void check(const std::vector<T>& got, std::uint64_t index, std::int64_t expected, std::string_view what) {
  if (got[index] == static_cast<T>(expected)) return;
  throw std::string(what) + " of " + std::to_string(got.size()) + ": element " + std::to_string(index) + " is " +
      std::to_string(static_cast<double>(got[index])) + ", not " + std::to_string(expected);
}

// Half of the calls by run(), half by issue and wait.
void run(Communicator& group, Call call) {
  const std::string what(name_of(call.kind));
  if (group.next_sequence() % 2 == 0) {
    require(group.run(call), what);
  } else {
    require(group.issue(std::move(call))->wait(std::chrono::milliseconds{0}), what);
  }
}

// Sizes in elements: nothing, one, odd, inline and not, several blocks, several pieces.
const std::vector<std::uint64_t> sizes{0, 1, 3, 255, 513, 4099, 70'001, 1'300'003};
// Of a unit of kinds whose inputs or outputs are lists.
constexpr std::uint64_t longest_of_list = 600'011;

// Every kind once, with tensors of one size in one kind of memory.
template <class T>
class Round {
 public:
  Round(PlainMember& member, std::uint32_t rank, std::uint32_t members, DType dtype, Memory memory, std::uint64_t count,
        std::uint64_t round)
      : engine_(*member.engine),
        group_(*member.group),
        rank_(rank),
        members_(members),
        dtype_(dtype),
        memory_(memory),
        count_(count),
        round_(round),
        root_(static_cast<std::uint32_t>(round % members)) {}

  void all() {
    all_reduce();
    reduce();
    broadcast();
    count_ = std::min(count_, longest_of_list);
    all_gather();
    reduce_scatter();
    gather();
    scatter();
    all_to_all();
    run(group_, call_of(OpKind::barrier, DType::bytes, {}, {}));
  }

  // Every kind with units a little longer than a piece: the last piece is a small entry.
  void just_over_a_piece(std::uint64_t more) {
    const auto count_of = [&](OpKind kind) {
      return algorithm::piece_unit_bytes(kind, dtype_, members_, communicator::entry_budget_bytes) / sizeof(T) + more;
    };
    count_ = count_of(OpKind::all_reduce);
    all_reduce();
    count_ = count_of(OpKind::reduce);
    reduce();
    count_ = count_of(OpKind::broadcast);
    broadcast();
    count_ = count_of(OpKind::all_gather);
    all_gather();
    count_ = count_of(OpKind::reduce_scatter);
    reduce_scatter();
    count_ = count_of(OpKind::gather);
    gather();
    count_ = count_of(OpKind::scatter);
    scatter();
    count_ = count_of(OpKind::all_to_all);
    all_to_all();
  }

 private:
  Tensor<T> tensor(std::uint64_t count) {
    ++made_;
    return Tensor<T>(engine_, is_shared(memory_, rank_, round_ * 100 + made_), count, T(77), round_ % 3);
  }
  Tensor<T> input(std::uint64_t count) {
    Tensor<T> result = tensor(count);
    for (std::uint64_t i = 0; i < count; ++i) result[i] = static_cast<T>(input_value(rank_, i, round_));
    return result;
  }
  void check(const Tensor<T>& got, std::uint64_t index, std::int64_t expected, std::string_view what) const {
    if (got[index] == static_cast<T>(expected)) return;
    throw std::string(what) + " of " + std::to_string(got.size()) + " in " + std::string(name_of(memory_)) +
        " memory: element " + std::to_string(index) + " is " + std::to_string(static_cast<double>(got[index])) +
        ", not " + std::to_string(expected);
  }
  std::int64_t sum(std::uint64_t index) const {
    std::int64_t sum = 0;
    for (std::uint32_t r = 0; r < members_; ++r) sum += input_value(r, index, round_);
    return sum;
  }
  [[nodiscard]] bool at_root() const { return rank_ == root_; }

  void all_reduce() {
    for (const bool in_place : {true, false}) {
      Tensor<T> from = input(count_);
      Tensor<T> apart = tensor(in_place ? 0 : count_);
      Tensor<T>& to = in_place ? from : apart;
      run(group_, call_of(OpKind::all_reduce, dtype_, {from.buffer()}, {to.buffer()}));
      for (std::uint64_t i = 0; i < count_; ++i) check(to, i, sum(i), "all_reduce");
      for (std::uint64_t i = 0; i < count_ && !in_place; ++i) check(from, i, input_value(rank_, i, round_), "input");
    }
  }
  void reduce() {
    for (const bool in_place : {true, false}) {
      Tensor<T> from = input(count_);
      Tensor<T> apart = tensor(at_root() && !in_place ? count_ : 0);
      Tensor<T>& to = in_place ? from : apart;
      run(group_, call_of(OpKind::reduce, dtype_, {from.buffer()},
                          at_root() ? std::vector{to.buffer()} : std::vector<Buffer>{}, Rank{root_}));
      for (std::uint64_t i = 0; i < count_ && at_root(); ++i) check(to, i, sum(i), "reduce");
      for (std::uint64_t i = 0; i < count_ && !at_root(); ++i) check(from, i, input_value(rank_, i, round_), "input");
    }
  }
  void broadcast() {
    for (const bool in_place : {true, false}) {
      Tensor<T> from = input(count_);
      Tensor<T> apart = tensor(in_place ? 0 : count_);
      Tensor<T>& to = in_place ? from : apart;
      run(group_, call_of(OpKind::broadcast, dtype_, {from.buffer()}, {to.buffer()}, Rank{root_}));
      for (std::uint64_t i = 0; i < count_; ++i) check(to, i, input_value(root_, i, round_), "broadcast");
      for (std::uint64_t i = 0; i < count_ && !in_place; ++i) check(from, i, input_value(rank_, i, round_), "input");
    }
  }
  void all_gather() {
    for (const bool in_place : {true, false}) {
      Tensor<T> from = input(in_place ? 0 : count_);
      Tensor<T> to = tensor(count_ * members_);
      for (std::uint64_t i = 0; i < count_ && in_place; ++i) {
        to[rank_ * count_ + i] = static_cast<T>(input_value(rank_, i, round_));
      }
      run(group_, call_of(OpKind::all_gather, dtype_, {in_place ? to.part(rank_ * count_, count_) : from.buffer()},
                          {to.buffer()}));
      for (std::uint32_t r = 0; r < members_; ++r) {
        for (std::uint64_t i = 0; i < count_; ++i) {
          check(to, r * count_ + i, input_value(r, i, round_), "all_gather");
        }
      }
    }
  }
  void reduce_scatter() {
    for (const bool in_place : {true, false}) {
      Tensor<T> from = input(count_ * members_);
      Tensor<T> to = tensor(in_place ? 0 : count_);
      const Buffer place = in_place ? from.part(rank_ * count_, count_) : to.buffer();
      run(group_, call_of(OpKind::reduce_scatter, dtype_, {from.buffer()}, {place}));
      for (std::uint64_t i = 0; i < count_; ++i) {
        check(in_place ? from : to, (in_place ? rank_ * count_ : 0) + i, sum(rank_ * count_ + i), "reduce_scatter");
      }
    }
  }
  void gather() {
    Tensor<T> from = input(count_);
    Tensor<T> to = tensor(at_root() ? count_ * members_ : 0);
    run(group_, call_of(OpKind::gather, dtype_, {from.buffer()},
                        at_root() ? std::vector{to.buffer()} : std::vector<Buffer>{}, Rank{root_}));
    for (std::uint64_t i = 0; i < to.size(); ++i) {
      check(to, i, input_value(static_cast<std::uint32_t>(i / count_), i % count_, round_), "gather");
    }
  }
  void scatter() {
    Tensor<T> from = input(at_root() ? count_ * members_ : 0);
    Tensor<T> to = tensor(count_);
    run(group_, call_of(OpKind::scatter, dtype_, at_root() ? std::vector{from.buffer()} : std::vector<Buffer>{},
                        {to.buffer()}, Rank{root_}));
    for (std::uint64_t i = 0; i < count_; ++i) check(to, i, input_value(root_, rank_ * count_ + i, round_), "scatter");
  }
  // From i to j: nothing, a few or many elements.
  [[nodiscard]] std::uint64_t pair(std::uint32_t from, std::uint32_t to) const {
    return count_ * ((from * 2 + to + round_) % 4) / 3;
  }
  void all_to_all() {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    Call call = call_of(OpKind::all_to_all, dtype_, {}, {});
    for (std::uint32_t r = 0; r < members_; ++r) {
      call.input_bytes.push_back(pair(rank_, r) * sizeof(T));
      call.output_bytes.push_back(pair(r, rank_) * sizeof(T));
      sent += pair(rank_, r);
      received += pair(r, rank_);
    }
    Tensor<T> from = input(sent);
    Tensor<T> to = tensor(received);
    call.inputs = {from.buffer()};
    call.outputs = {to.buffer()};
    run(group_, std::move(call));
    std::uint64_t at = 0;
    for (std::uint32_t r = 0; r < members_; ++r) {
      std::uint64_t before = 0;  // of this member's part, in r's inputs
      for (std::uint32_t other = 0; other < rank_; ++other) before += pair(r, other);
      for (std::uint64_t i = 0; i < pair(r, rank_); ++i, ++at) {
        check(to, at, input_value(r, before + i, round_), "all_to_all");
      }
    }
    require(at == received, "all_to_all: sizes");
  }

  Engine& engine_;
  Communicator& group_;
  std::uint32_t rank_;
  std::uint32_t members_;
  DType dtype_;
  Memory memory_;
  std::uint64_t count_;
  std::uint64_t round_;
  std::uint32_t root_;
  std::uint64_t made_ = 0;
};

class Collectives : public ::testing::TestWithParam<std::uint32_t> {};
class CollectivesInMemory : public ::testing::TestWithParam<std::tuple<std::uint32_t, Memory>> {};

TEST_P(CollectivesInMemory, EveryKindAndSize) {
  const auto [members, memory] = GetParam();
  const FileBook files;
  Processes processes(members, [&, members = members, memory = memory](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    std::uint64_t round = 0;
    for (const std::uint64_t count : sizes) {
      ++round;
      Round<float>(member, rank, members, DType::float32, memory, count, round).all();
      Round<std::int16_t>(member, rank, members, DType::int16, memory, count, round).all();
    }
    Round<double>(member, rank, members, DType::float64, memory, 30'011, ++round).all();
    for (const std::uint64_t more : {1u, 63u, 65u, 512u, 513u}) {
      Round<float>(member, rank, members, DType::float32, memory, 0, ++round).just_over_a_piece(more);
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

INSTANTIATE_TEST_SUITE_P(Members, CollectivesInMemory,
                         ::testing::Combine(::testing::Values(1u, 2u, 3u, 4u, 5u),
                                            ::testing::Values(Memory::own, Memory::shared, Memory::mixed)),
                         [](const auto& chosen) {
                           return std::to_string(std::get<0>(chosen.param)) + std::string("In") +
                                  std::string(name_of(std::get<1>(chosen.param)));
                         });

TEST_P(Collectives, EveryTypeAndReduction) {
  const std::uint32_t members = GetParam();
  const FileBook files;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    std::vector<double> factors;
    for (std::uint32_t r = 0; r < members; ++r) factors.push_back(1.5 + r);
    for (int type = 0; type < static_cast<int>(DType::bytes); ++type) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::premul_sum); ++op) {
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
          call.factor = 1.5 + rank;
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
          auto* to = reinterpret_cast<std::byte*>(expected.data());
          if (reduce == ReduceOp::premul_sum) {
            communicator::reduce_scaled(dtype, sources, factors, to, expected.size());
          } else {
            communicator::reduce(dtype, reduce, sources, to, expected.size());
          }
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
    require(second.value()->recent_ops(-1).size() == ops / 2, "recent ops");
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
