// Communicator::run: issue and wait in one.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "processes.h"
#include "tensors.h"

namespace {
thread_local std::uint64_t allocations = 0;  // of this thread
}

// Counts what each thread of this program allocates; everything else is as before.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace closeranks::communicator_test {
namespace {

using std::chrono::milliseconds;

template <class T>
Call call_of(OpKind kind, DType dtype, std::vector<T>& input, std::vector<T>& output) {
  Call call;
  call.kind = kind;
  call.dtype = dtype;
  if (!input.empty()) call.inputs = {buffer(input)};
  if (!output.empty()) call.outputs = {buffer(output)};
  return call;
}

// Small calls of every kind for one member of `members`, root 0.
std::vector<Call> small_calls(std::uint32_t rank, std::uint32_t members, std::vector<float>& one,
                              std::vector<float>& list, std::vector<float>& nothing) {
  std::vector<float>& at_root = rank == 0 ? list : nothing;
  std::vector<float>& one_at_root = rank == 0 ? one : nothing;
  static_cast<void>(members);
  return {call_of(OpKind::all_reduce, DType::float32, one, one),
          call_of(OpKind::reduce, DType::float32, one, one_at_root),
          call_of(OpKind::broadcast, DType::float32, one, one),
          call_of(OpKind::all_gather, DType::float32, one, list),
          call_of(OpKind::reduce_scatter, DType::float32, list, one),
          call_of(OpKind::gather, DType::float32, one, at_root),
          call_of(OpKind::scatter, DType::float32, at_root, one),
          call_of(OpKind::barrier, DType::bytes, nothing, nothing)};
}

TEST(Run, SmallOpsAllocateNothing) {
  for (const std::uint32_t members : {1u, 2u}) {
    const FileBook files;
    Processes processes(members, [&](std::uint32_t rank) -> std::string {
      PlainMember member(rank, members, files.book());
      std::vector<float> one(3, 1.0f);
      std::vector<float> list(3 * members, 1.0f);
      std::vector<float> nothing;
      const std::vector<Call> calls = small_calls(rank, members, one, list, nothing);
      std::uint64_t quiet = 0;
      std::uint64_t least = ~std::uint64_t{0};
      for (int i = 0; i < 2000; ++i) {
        const std::uint64_t before = allocations;
        for (const Call& call : calls) {
          const Status status = member.group->run(call);
          if (!status.ok()) return status.message();
        }
        const std::uint64_t made = allocations - before;
        if (i > 0) least = std::min(least, made);
        quiet += made == 0 ? 1 : 0;
      }
      // With two members on shared cores one is late now and then, and the other goes to sleep.
      require(least == 0, "each round allocates at least " + std::to_string(least) + " times");
      require(members > 1 || quiet >= 1998, "alone, only " + std::to_string(quiet) + " rounds allocate nothing");
      return "";
    });
    EXPECT_EQ(processes.join(), "");
  }
}

TEST(Run, GivesTheSameAsIssueAndWait) {
  constexpr std::uint32_t members = 3;
  const FileBook files;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    Communicator& group = *member.group;
    for (const std::uint64_t count : {0u, 1u, 500u, 5'000u, 700'000u}) {
      std::vector<std::int64_t> tensor(count, rank + 1);
      const std::uint64_t first = group.next_sequence();
      require(group.run(call_of(OpKind::all_reduce, DType::int64, tensor, tensor)), "run");
      require(tensor == std::vector<std::int64_t>(count, 6), "sum of " + std::to_string(count));
      require(group.last_contributors().slots.size() == members, "contributors");
      const std::vector<FinishedOp> ops = group.recent_ops(-1);
      require(ops.back().sequence == first && ops.back().kind == OpKind::all_reduce, "the list of ops");
      require(ops.back().bytes == count * sizeof(std::int64_t), "bytes in the list");
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      const auto age = now - std::chrono::nanoseconds(ops.back().finished_unix_ns);
      require(age > std::chrono::seconds{-1} && age < std::chrono::seconds{20}, "time in the list");
    }
    // With ops before it in the queue it is done after them.
    std::vector<float> large(400'000, 1.0f);
    std::vector<float> small(2, 1.0f);
    const auto op = group.issue(call_of(OpKind::all_reduce, DType::float32, large, large));
    require(group.run(call_of(OpKind::all_reduce, DType::float32, small, small)), "behind another");
    require(op->done() && large.back() == 3.0f && small.back() == 3.0f, "in the order of issue");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Run, TwoThreadsOnTwoGroups) {
  constexpr std::uint32_t members = 2;
  const FileBook files;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    GroupOptions other;
    other.name = "other";
    other.members = {Slot{0}, Slot{1}};
    const AddressBook book = files.book();
    auto second = member.engine->create_group(other, &book);
    require(second.status(), "second group");
    std::atomic<std::uint64_t> wrong{0};
    const auto work = [&](Communicator& group) {
      for (std::int64_t i = 0; i < 3000; ++i) {
        // Now and then one that is not small.
        std::vector<std::int64_t> tensor(i % 100 == 0 ? 50'000 : 2, i + rank);
        const Status status = group.run(call_of(OpKind::all_reduce, DType::int64, tensor, tensor));
        if (!status.ok() || tensor.front() != 2 * i + 1 || tensor.back() != 2 * i + 1) wrong.fetch_add(1);
      }
    };
    std::thread thread([&] { work(*second.value()); });
    work(*member.group);
    thread.join();
    require(wrong.load() == 0, std::to_string(wrong.load()) + " wrong results");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Run, TellsWhatIsWrong) {
  constexpr std::uint32_t members = 2;
  const FileBook files;
  Processes processes(members, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, members, files.book());
    Communicator& group = *member.group;
    std::vector<float> two(2, 1.0f);
    std::vector<float> three(3, 1.0f);
    require(group.run(call_of(OpKind::all_reduce, DType::float32, two, three)).fault() == Fault::invalid_argument,
            "a call that is wrong in itself");
    require(group.run(call_of(OpKind::all_reduce, DType::float32, two, two)), "which does no harm");
    // The same size of another type.
    std::vector<std::int32_t> integers(2, 1);
    const Status status = rank == 0 ? group.run(call_of(OpKind::all_reduce, DType::float32, two, two))
                                    : group.run(call_of(OpKind::all_reduce, DType::int32, integers, integers));
    require(status.fault() == Fault::mismatch, "mismatch: " + status.message());
    require(
        status.message().find("float32") != std::string::npos && status.message().find("int32") != std::string::npos,
        status.message());
    require(two == std::vector<float>(2, 2.0f) && integers == std::vector<std::int32_t>(2, 1), "nothing has moved");
    require(group.run(call_of(OpKind::all_reduce, DType::float32, two, two)).fault() == Fault::mismatch,
            "and all later ops fail");
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Run, OfAMemberThatDoesNotComeEndsAtTheDeadline) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds{600});
      return "";
    }
    std::vector<float> two(2, 1.0f);
    Call call = call_of(OpKind::all_reduce, DType::float32, two, two);
    call.timeout = milliseconds{200};
    const Status status = member.group->run(call);
    require(status.fault() == Fault::timeout && status.message().find("rank 1") != std::string::npos, status.message());
    return "";
  });
  EXPECT_EQ(processes.join(), "");
}

TEST(Run, OfAMemberThatDiesNamesIt) {
  const FileBook files;
  Processes processes(2, [&](std::uint32_t rank) -> std::string {
    PlainMember member(rank, 2, files.book());
    for (int i = 0;; ++i) {
      std::vector<float> two(2, 1.0f);
      const auto start = std::chrono::steady_clock::now();
      const Status status = member.group->run(call_of(OpKind::all_reduce, DType::float32, two, two));
      if (rank == 1 && i == 1000) ::raise(SIGKILL);
      if (status.ok()) continue;
      require(i > 900 && status.fault() == Fault::peer_lost, status.message());
      require(status.message().find("rank 1") != std::string::npos, status.message());
      require(std::chrono::steady_clock::now() - start < std::chrono::seconds{5}, "within seconds");
      return "";
    }
  });
  processes.reap(1);
  EXPECT_EQ(processes.join(), "");
}

}  // namespace
}  // namespace closeranks::communicator_test
