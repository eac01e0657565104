// closeranks-bare: what this machine gives to the recipe of docs/protocol.md with nothing around it. Processes reduce
// the blocks they claim and write them to all, as the engine does with the same kernels, between two waits for
// everybody; there is no call, no engine, no recorder, and nobody may die. What `closeranks bench` measures above it is
// the engine's price; what it measures below a wanted figure no engine can reach with this recipe on this machine.
//
//   chrt -r 1 closeranks-bare --processes 4 --bytes 65536,1048576
//
// In place, as in torch. `shared`: the tensors are shared memory; `private`: each member copies its own in and out.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "algorithm/plan.h"
#include "communicator/kernels.h"
#include "communicator/patience.h"

namespace {

using namespace closeranks;                // NOLINT(google-build-using-namespace)
using namespace closeranks::communicator;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

constexpr std::size_t most_processes = 64;
constexpr std::size_t row_words = 4096;  // of blocks of a member's share: up to 256 MiB with one process
enum State : std::uint64_t { open, claimed, final, distributed };

struct alignas(64) Word {
  std::atomic<std::uint64_t> value{0};
};

struct Words {
  std::array<Word, most_processes> entered;
  std::array<std::atomic<std::uint64_t>, most_processes * row_words> blocks;  // op << 2 | state, as in a segment
  Word last_op;                                                               // 0: not known yet
};

std::byte* map(std::size_t bytes, int sharing) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("closeranks-bare: no memory");
    std::exit(1);
  }
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

struct Setting {
  std::uint32_t processes = 2;
  std::size_t bytes = 0;
  bool is_private = false;
  double seconds = 1;
  std::uint32_t spins = 2;
};

// What all map alike.
struct Shared {
  Words* words;
  std::vector<std::byte*> tensors;
};

class Member {
 public:
  Member(const Setting& setting, const Shared& shared, std::uint32_t rank)
      : setting_(setting),
        shared_(shared),
        words_(*shared.words),
        rank_(rank),
        plan_(algorithm::make_plan(OpKind::all_reduce, DType::float32, ReduceOp::sum, Rank{0}, setting.bytes,
                                   setting.processes)),
        scratch_(map(algorithm::max_block_bytes, MAP_PRIVATE)),
        tensor_(setting.is_private ? map(setting.bytes, MAP_PRIVATE) : nullptr) {}

  // Microseconds per op: the median.
  double run() {
    std::vector<double> times;
    const Clock::time_point start = Clock::now();
    Clock::time_point before = start;
    for (std::uint64_t op = 1; words_.last_op.value == 0 || op <= words_.last_op.value; ++op) {
      one(op);
      const Clock::time_point now = Clock::now();
      times.push_back(std::chrono::duration<double, std::micro>(now - before).count());
      before = now;
      // The next op is the last: nobody can have begun the one after it.
      const bool enough = std::chrono::duration<double>(now - start).count() > setting_.seconds;
      if (rank_ == 0 && enough && words_.last_op.value == 0) words_.last_op.value = op + 1;
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }

 private:
  void one(std::uint64_t op) {
    if (setting_.is_private) copy_bytes(shared_.tensors[rank_], tensor_, setting_.bytes);
    words_.entered[rank_].value.store(op, std::memory_order_release);
    for (std::uint32_t r = 0; r < setting_.processes; ++r) await(words_.entered[r].value, op);
    const std::uint32_t places = algorithm::claim_places(plan_, setting_.processes);
    for (std::uint32_t place = 0; place < places; ++place) {
      if (const auto block = algorithm::claim_order(plan_, setting_.processes, Rank{rank_}, place)) share(*block, op);
    }
    for (std::uint32_t block = 0; block < plan_.blocks(); ++block) await(word_of(block), op << 2 | State::distributed);
    if (setting_.is_private) copy_bytes(tensor_, shared_.tensors[rank_], setting_.bytes);
  }

  void share(std::uint32_t block, std::uint64_t op) {
    std::atomic<std::uint64_t>& word = word_of(block);
    std::uint64_t seen = word.load(std::memory_order_acquire);
    if (seen >= op << 2 || !word.compare_exchange_strong(seen, op << 2 | State::claimed)) return;
    const algorithm::Range range = algorithm::block_plan(plan_, block).range;
    sources_.clear();
    for (const std::byte* tensor : shared_.tensors) sources_.push_back(tensor + range.offset);
    reduce(DType::float32, ReduceOp::sum, sources_, scratch_, range.bytes);
    publish(word, op << 2 | State::final);
    for (std::uint32_t i = 0; i < setting_.processes; ++i) {
      copy_bytes(shared_.tensors[(rank_ + i) % setting_.processes] + range.offset, scratch_, range.bytes);
    }
    publish(word, op << 2 | State::distributed);
  }

  static void publish(std::atomic<std::uint64_t>& word, std::uint64_t value) {
    word.store(value, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  std::atomic<std::uint64_t>& word_of(std::uint32_t block) const {
    return words_.blocks[block % setting_.processes * row_words + block / setting_.processes];
  }

  void await(const std::atomic<std::uint64_t>& word, std::uint64_t value) const {
    Patience patience(setting_.spins, std::chrono::hours{1});
    while (word.load(std::memory_order_acquire) < value) {
      if (!patience.pause()) std::exit(1);
    }
  }

  const Setting& setting_;
  const Shared& shared_;
  Words& words_;
  std::uint32_t rank_;
  algorithm::EntryPlan plan_;
  std::byte* scratch_;
  std::byte* tensor_;
  std::vector<const std::byte*> sources_;
};

bool measure(const Setting& setting) {
  Shared shared;
  shared.words = new (map(sizeof(Words), MAP_SHARED)) Words;
  for (std::uint32_t r = 0; r < setting.processes; ++r) {
    shared.tensors.push_back(map(setting.bytes, MAP_SHARED));
  }
  std::vector<pid_t> children;
  for (std::uint32_t r = 0; r < setting.processes; ++r) {
    const pid_t child = ::fork();
    if (child == 0) {
      const double us = Member(setting, shared, r).run();
      if (r == 0) {
        std::printf("%2u processes, %-7s %9zu bytes %10.2f us\n", setting.processes,
                    setting.is_private ? "private" : "shared", setting.bytes, us);
        std::fflush(stdout);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  bool well = true;
  for (const pid_t child : children) {
    int status = 0;
    well = child > 0 && ::waitpid(child, &status, 0) == child && status == 0 && well;
  }
  for (std::uint32_t r = 0; r < setting.processes; ++r) {
    ::munmap(shared.tensors[r], setting.bytes);
  }
  ::munmap(shared.words, sizeof(Words));
  return well;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What this machine gives to an all_reduce of float32 with no failure handling at all"};
  Setting setting;
  std::vector<std::size_t> sizes{65'536, 1'048'576};
  std::vector<std::string> memories{"shared", "private"};
  app.add_option("--processes", setting.processes, "default 2")
      ->check(CLI::Range(std::uint32_t{1}, static_cast<std::uint32_t>(most_processes)));
  app.add_option("--bytes", sizes, "above 2048, multiples of 4; default 65536,1048576")
      ->delimiter(',')
      ->check(CLI::Range(algorithm::inline_bytes + 1, std::uint64_t{1} << 28));
  app.add_option("--memory", memories, "default shared,private")
      ->delimiter(',')
      ->check(CLI::IsMember({"shared", "private"}));
  app.add_option("--seconds", setting.seconds, "of each measurement, default 1")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  setting.spins = cores >= static_cast<long>(setting.processes) ? 50 : 2;  // as the engine
  for (const std::size_t bytes : sizes) {
    for (const std::string& memory : memories) {
      setting.bytes = bytes / sizeof(float) * sizeof(float);
      setting.is_private = memory == "private";
      if (!measure(setting)) return 1;
    }
  }
  return 0;
}
