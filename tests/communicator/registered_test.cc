// Tensors in shared memory: the same results as anywhere else, bit for bit; and what a failed op leaves behind is the
// caller's alone.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "communicator/kernels.h"
#include "processes.h"
#include "tensors.h"
#include "transport/outside_view.h"

namespace closeranks::communicator_test {
namespace {

using std::chrono::milliseconds;

// Fractions whose sums depend on the order in which they are added.
float fraction(std::uint32_t rank, std::uint64_t index) {
  std::mt19937_64 random(index * 31 + rank);
  return static_cast<float>(static_cast<double>(random()) / 3e18) - 3.0f;
}

TEST(Registered, MemoryMakesNoDifferenceToTheBits) {
  constexpr std::uint32_t members = 3;
  constexpr std::uint64_t count = 300'007;
  const FileBook files;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    std::vector<std::vector<float>> inputs(members, std::vector<float>(count));
    std::vector<const std::byte*> sources;
    for (std::uint32_t r = 0; r < members; ++r) {
      for (std::uint64_t i = 0; i < count; ++i) inputs[r][i] = fraction(r, i);
      sources.push_back(reinterpret_cast<const std::byte*>(inputs[r].data()));
    }
    for (const ReduceOp reduce : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::premul_sum}) {
      std::vector<float> expected(count);
      auto* to = reinterpret_cast<std::byte*>(expected.data());
      const std::vector<double> factors{0.5, 1.5, 2.5};
      if (reduce == ReduceOp::premul_sum) {
        communicator::reduce_scaled(DType::float32, sources, factors, to, count * sizeof(float));
      } else {
        communicator::reduce(DType::float32, reduce, sources, to, count * sizeof(float));
      }
      // Every member in one kind of memory, and in all mixtures.
      for (std::uint32_t mixture = 0; mixture < 1u << members; ++mixture) {
        const bool shared = (mixture >> rank & 1) != 0;
        for (const bool in_place : {true, false}) {
          Tensor<float> input(*member.engine, shared, count, 0.0f, mixture % 5);
          Tensor<float> apart(*member.engine, !shared, in_place ? 0 : count);
          std::memcpy(input.data(), inputs[rank].data(), count * sizeof(float));
          Tensor<float>& output = in_place ? input : apart;
          Call call;
          call.kind = OpKind::all_reduce;
          call.dtype = DType::float32;
          call.reduce = reduce;
          call.factor = factors[rank];
          call.inputs = {input.buffer()};
          call.outputs = {output.buffer()};
          require(member.group->run(call), "all_reduce");
          require(std::memcmp(output.data(), expected.data(), count * sizeof(float)) == 0,
                  std::string(closeranks::name_of(reduce)) + " in mixture " + std::to_string(mixture));
        }
      }
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Registered, WithoutArenasEverythingWorks) {
  const FileBook files;
  ::setenv("CLOSERANKS_SHARED_ARENAS", "0", 1);
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    // One of the two has none.
    if (rank == 1) ::unsetenv("CLOSERANKS_SHARED_ARENAS");
    PlainMember member(rank, 2, files.book());
    std::byte* block = member.engine->shared_memory()->allocate(1 << 20);
    require((block != nullptr) == (rank == 1), "an arena where it is wanted");
    Tensor<float> tensor(*member.engine, rank == 1, 200'000, 1.0f);
    Call call;
    call.kind = OpKind::all_reduce;
    call.dtype = DType::float32;
    call.inputs = {tensor.buffer()};
    call.outputs = {tensor.buffer()};
    require(member.group->run(call), "all_reduce");
    require(tensor[0] == 2.0f && tensor[199'999] == 2.0f, "sum");
    member.engine->shared_memory()->release(block);
    return "";
  });
  ::unsetenv("CLOSERANKS_SHARED_ARENAS");
  EXPECT_EQ(processes.join(), "");
}

TEST(Registered, MemoryOutlivesItsEngine) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    std::shared_ptr<SharedMemory> memory;
    std::byte* block = nullptr;
    {
      PlainMember member(rank, 2, files.book());
      memory = member.engine->shared_memory();
      block = memory->allocate(1 << 20);
      require(block != nullptr, "a block");
      member.group.reset();
      member.engine->stop(milliseconds{100});
    }
    std::memset(block, 1, 1 << 20);
    require(memory->allocate(4096) == nullptr, "but none is given any more");
    memory->release(block);
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// Shared by the test and its members.
struct Board {
  std::atomic<std::uint32_t> stopped_in_op{0};
  std::atomic<std::uint32_t> failed{0};
  std::atomic<std::uint32_t> go_on{0};
};

class SharedBoard {
 public:
  SharedBoard()
      : board_(new(::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board) {}
  ~SharedBoard() { ::munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board* operator->() const { return board_; }

 private:
  Board* board_;
};

bool wait_until(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds{1});
  }
  return true;
}

// Rank 0 gives an all_reduce up at its deadline while another member, stopped in the middle of it, still owns a block.
// When that one goes on it writes the block: but not into what rank 0 sees. False: it had none in work when it was
// stopped (the op was done, or rank 0 has done all that the other had entered; more pieces than it enters ahead make
// that rare).
bool stop_a_member_at_a_block() {
  constexpr std::uint64_t count = 16'000'000;
  const FileBook files;
  const SharedBoard board;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    const auto memory = member.engine->shared_memory();
    Tensor<float> tensor(*member.engine, true, count, 1.0f);
    Tensor<float> neighbour(*member.engine, true, count, 5.0f);
    Call call;
    call.kind = OpKind::all_reduce;
    call.dtype = DType::float32;
    call.inputs = {tensor.buffer()};
    call.outputs = {tensor.buffer()};
    if (rank == 1) {
      board->stopped_in_op.store(1);
      static_cast<void>(member.group->run(call));
      while (board->go_on.load() < 2) std::this_thread::sleep_for(milliseconds{1});
      return "";
    }
    call.timeout = milliseconds{300};
    const Status status = member.group->run(call);
    require(status.ok() || status.fault() == Fault::timeout, status.message());
    if (memory->contains(tensor.data(), count * sizeof(float))) {
      board->failed.store(2);
      return "";
    }
    require(!status.ok(), "the memory of an op that succeeded was taken from the others");
    for (std::uint64_t i = 0; i < count; ++i) tensor[i] = 7.0f;
    board->failed.store(1);
    while (board->go_on.load() < 1) std::this_thread::sleep_for(milliseconds{1});
    std::this_thread::sleep_for(milliseconds{200});
    for (std::uint64_t i = 0; i < count; ++i) {
      require(tensor[i] == 7.0f, "a failed op has written element " + std::to_string(i));
    }
    require(memory->contains(neighbour.data(), count * sizeof(float)), "the failed op's memory alone");
    board->go_on.store(2);
    return "";
  });
  EXPECT_TRUE(wait_until([&] { return board->stopped_in_op.load() != 0; }));
  const std::vector<transport::OutsideView> views = transport::OutsideView::open_all(processes.pid(1));
  EXPECT_EQ(views.size(), 1u);
  EXPECT_TRUE(wait_until([&] { return views.empty() || views.front().completed() > 0 || board->failed.load() != 0; }));
  processes.kill(1, SIGSTOP);
  EXPECT_TRUE(wait_until([&] { return board->failed.load() != 0; }));
  board->go_on.store(board->failed.load());
  processes.kill(1, SIGCONT);
  EXPECT_EQ(processes.join(), "");
  return board->failed.load() == 1;
}

TEST(Registered, AFailedOpLeavesTheMemoryToItsCaller) {
  bool stopped_at_a_block = false;
  for (int attempt = 0; attempt < 30 && !stopped_at_a_block && !HasFailure(); ++attempt) {
    stopped_at_a_block = stop_a_member_at_a_block();
  }
  EXPECT_TRUE(stopped_at_a_block);
}

// Rank 0 gives an all_gather up at its deadline, because rank 2 does not come; when it comes, rank 1 reads what rank 0
// had given, whatever rank 0's caller has made of that memory since.
TEST(Registered, AFailedOpsInputIsStillWhatItWas) {
  constexpr std::uint64_t count = 1'000'000;
  const FileBook files;
  const SharedBoard board;
  Processes processes(3, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 3, files.book());
    Tensor<float> input(*member.engine, true, count, static_cast<float>(rank) + 1.0f);
    Tensor<float> output(*member.engine, true, 3 * count, -1.0f);
    Call call;
    call.kind = OpKind::all_gather;
    call.dtype = DType::float32;
    call.inputs = {input.buffer()};
    call.outputs = {output.buffer()};
    if (rank == 0) {
      call.timeout = milliseconds{200};
      require(member.group->run(call).fault() == Fault::timeout, "rank 0 waits for nobody for long");
      for (std::uint64_t i = 0; i < count; ++i) input[i] = 99.0f;
      board->failed.store(1);
      while (board->go_on.load() < 2) std::this_thread::sleep_for(milliseconds{1});
      return "";
    }
    if (rank == 2) {
      while (board->failed.load() < 1) std::this_thread::sleep_for(milliseconds{1});
    }
    // It cannot succeed: rank 0 takes nothing any more. What the others had read of it before they knew is right.
    call.timeout = milliseconds{3000};
    static_cast<void>(member.group->run(call));
    for (std::uint64_t i = 0; i < count; ++i) {
      require(output[i] == 1.0f || output[i] == -1.0f, "rank 0's later values at element " + std::to_string(i));
    }
    require(output[0] == 1.0f, "nothing was read of rank 0");
    board->go_on.fetch_add(1);
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// Two halves of one block, in ops of two groups. One op fails; the other, whose last page the first one's pages are
// next to, ends as if nothing had been.
TEST(Registered, ANeighbourInTheSameBlockIsNotHarmed) {
  constexpr std::uint64_t half = 250'001;  // not in whole pages
  const FileBook files;
  const SharedBoard board;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    GroupOptions other;
    other.name = "other";
    other.members = {Slot{0}, Slot{1}};
    const AddressBook book = files.book();
    auto second = member.engine->create_group(other, &book);
    require(second.status(), "second group");
    Tensor<float> block(*member.engine, true, 2 * half, 1.0f);
    const auto call_of = [&](std::uint64_t first) {
      Call call;
      call.kind = OpKind::all_reduce;
      call.dtype = DType::float32;
      call.inputs = {block.part(first, half)};
      call.outputs = {block.part(first, half)};
      return call;
    };
    if (rank == 1) {
      while (board->failed.load() < 1) std::this_thread::sleep_for(milliseconds{1});
      require(second.value()->run(call_of(half)), "the op that succeeds");
      require(block[half] == 2.0f && block[2 * half - 1] == 2.0f, "its sum, at the other member");
      return "";
    }
    const auto succeeds = second.value()->issue(call_of(half));
    Call fails = call_of(0);
    fails.timeout = milliseconds{100};
    const Status status = member.group->run(fails);
    require(status.fault() == Fault::timeout, status.message());
    board->failed.store(1);
    require(succeeds->wait(milliseconds{0}), "the neighbour");
    for (std::uint64_t i = 0; i < half; ++i) {
      require(block[i] == 1.0f, "the failed one, element " + std::to_string(i));
      require(block[half + i] == 2.0f, "the neighbour, element " + std::to_string(i));
    }
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

// Lengths that do not fit into 32 bits, in bytes and in the pieces' offsets.
TEST(Registered, MoreThanFourGibibytes) {
  const char* soak = std::getenv("CLOSERANKS_SOAK");
  if (soak == nullptr || std::string(soak) == "0")
    GTEST_SKIP() << "13 GiB of memory are for the soak (CLOSERANKS_SOAK)";
  constexpr std::uint64_t unit = (std::uint64_t{1} << 31) + 12'345;
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book(), milliseconds{120'000});
    std::vector<std::uint8_t> input(unit);
    std::vector<std::uint8_t> output(2 * unit, 0xee);
    const auto value = [](std::uint32_t r, std::uint64_t i) { return static_cast<std::uint8_t>(i % 251 + r); };
    for (std::uint64_t i = 0; i < unit; ++i) input[i] = value(rank, i);
    Call call;
    call.kind = OpKind::all_gather;
    call.inputs = {buffer(input)};
    call.outputs = {buffer(output)};
    require(member.group->run(call), "all_gather");
    for (std::uint32_t r = 0; r < 2; ++r) {
      for (std::uint64_t i = 0; i < unit; ++i) {
        require(output[r * unit + i] == value(r, i), "byte " + std::to_string(r * unit + i));
      }
    }
    return "";
  });
  EXPECT_EQ(processes.join(std::chrono::seconds{250}), "");
}

}  // namespace
}  // namespace closeranks::communicator_test
