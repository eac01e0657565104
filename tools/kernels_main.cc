// closeranks-kernels: how fast the reductions and copies of src/communicator/kernels.h are on this machine, one thread.
//
// Every figure is the best of several turns, in processor time of the thread: other work on the machine stretches the
// turns it meets, and the best one shows what the kernel itself is limited by. `again` runs over one block, which stays
// in the cache; `onward` walks through memory of 64 MiB per source, block by block, as a collective does.
#include <sys/mman.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "communicator/kernels.h"

namespace {

using namespace closeranks;                // NOLINT(google-build-using-namespace)
using namespace closeranks::communicator;  // NOLINT(google-build-using-namespace)

constexpr std::size_t kib = 1024;
constexpr std::size_t walked = 64 * kib * kib;
constexpr int turns = 15;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Shared pages, as segments and arenas have; filled with ones, so that no sum leaves the ordinary numbers.
std::byte* shared_memory(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("closeranks-kernels: no memory");
    std::exit(1);
  }
  std::memset(memory, 0x3f, bytes);
  return static_cast<std::byte*>(memory);
}

// Seconds of the best turn of `run(offset)` over all offsets below `total`, `block` apart.
double best(std::size_t total, std::size_t block, const std::function<void(std::size_t)>& run) {
  double least = 1e9;
  for (int turn = 0; turn < turns; ++turn) {
    const double start = thread_seconds();
    for (std::size_t at = 0; at < total; at += block) run(at);
    least = std::min(least, thread_seconds() - start);
  }
  return least;
}

void measure_reductions(DType dtype, ReduceOp op, const std::vector<std::size_t>& blocks) {
  std::vector<std::byte*> memory;
  std::byte* scratch = shared_memory(blocks.back());
  for (const std::size_t count : {1u, 2u, 4u, 8u}) {
    while (memory.size() < count) memory.push_back(shared_memory(walked));
    const std::vector<double> factors(count, 0.5);
    for (const std::size_t block : blocks) {
      const auto run = [&](std::size_t at) {
        std::vector<const std::byte*> sources;
        for (std::size_t s = 0; s < count; ++s) sources.push_back(memory[s] + at);
        if (op == ReduceOp::premul_sum) {
          reduce_scaled(dtype, sources, factors, scratch, block);
        } else {
          reduce(dtype, op, sources, scratch, block);
        }
      };
      const std::size_t once = 16 * kib * kib;
      const double again = best(once, block, [&](std::size_t) { run(0); });
      const double onward = best(walked, block, run);
      std::printf("%-10s %-10s %zu sources, blocks of %3zu KiB: read %6.1f GB/s again, %6.1f onward\n",
                  std::string(name_of(dtype)).c_str(), std::string(name_of(op)).c_str(), count, block / kib,
                  static_cast<double>(count * once) / again * 1e-9,
                  static_cast<double>(count * walked) / onward * 1e-9);
    }
  }
  for (std::byte* each : memory) munmap(each, walked);
  munmap(scratch, blocks.back());
}

void measure_copies(const std::vector<std::size_t>& blocks) {
  std::byte* from = shared_memory(walked);
  std::byte* to = shared_memory(walked);
  for (const std::size_t block : blocks) {
    for (const Reuse reuse : {Reuse::soon, Reuse::late}) {
      const double onward = best(walked, block, [&](std::size_t at) { copy_bytes(to + at, from + at, block, reuse); });
      // What a taker does: the source has just been written, the destination has not been touched for long.
      const double near = best(walked, block, [&](std::size_t at) { copy_bytes(to + at, from, block, reuse); });
      std::printf("copy, reused %s, blocks of %3zu KiB: %6.1f GB/s onward, %6.1f from the cache\n",
                  reuse == Reuse::soon ? "soon" : "late", block / kib, static_cast<double>(walked) / onward * 1e-9,
                  static_cast<double>(walked) / near * 1e-9);
    }
  }
  munmap(from, walked);
  munmap(to, walked);
}

template <class Enum>
Enum by_name(const std::string& name, Enum last) {
  for (int value = 0; value <= static_cast<int>(last); ++value) {
    if (name == name_of(static_cast<Enum>(value))) return static_cast<Enum>(value);
  }
  throw CLI::ValidationError("there is no " + name);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How fast the reductions and copies are on this machine, one thread.");
  std::vector<std::string> dtypes{"float32", "bfloat16", "float16"};
  std::vector<std::string> ops{"sum"};
  std::vector<std::size_t> blocks{32, 64, 128, 256};
  bool copies = true;
  app.add_option("--dtype", dtypes, "element types, e.g. float32")->delimiter(',');
  app.add_option("--op", ops, "reductions, e.g. sum")->delimiter(',');
  app.add_option("--blocks", blocks, "KiB reduced at once, ascending")->delimiter(',');
  app.add_flag("!--no-copies", copies, "leave out the copies");
  try {
    app.parse(argc, argv);
    for (std::size_t& block : blocks) block *= kib;
    for (const std::string& dtype : dtypes) {
      for (const std::string& op : ops) {
        measure_reductions(by_name(dtype, DType::bytes), by_name(op, ReduceOp::premul_sum), blocks);
      }
    }
    if (copies) measure_copies(blocks);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return 0;
}
