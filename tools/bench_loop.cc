#include "bench_loop.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

namespace closeranks::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t huge_page = std::size_t{2} << 20;

// The connection to the bench; one per process, so that fail() reaches it from anywhere.
int bench_socket = -1;

bool say(const std::string& answer) {
  const std::string line = answer + "\n";
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = ::write(bench_socket, line.data() + sent, line.size() - sent);
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

// The next line without its end; false: the bench is gone.
bool hear(std::string& pending, std::string& line) {
  for (;;) {
    const std::size_t end = pending.find('\n');
    if (end != std::string::npos) {
      line = pending.substr(0, end);
      pending.erase(0, end + 1);
      return true;
    }
    char buffer[1024];
    const ssize_t n = ::read(bench_socket, buffer, sizeof(buffer));
    if (n <= 0) return false;
    pending.append(buffer, static_cast<std::size_t>(n));
  }
}

bool connect_to_bench() {
  const char* path = std::getenv("CLOSERANKS_BENCH_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || std::strlen(path) >= sizeof(address.sun_path)) return false;
  std::strcpy(address.sun_path, path);
  bench_socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return bench_socket >= 0 && ::connect(bench_socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

class Copy final : public Work {
 public:
  Copy(const std::byte* from, std::byte* to, std::size_t bytes) : from_(from), to_(to), bytes_(bytes) {}
  void run() override {
    std::memcpy(to_, from_, bytes_);
    asm volatile("" ::: "memory");  // a copy that nobody reads may not be left out
  }

 private:
  const std::byte* from_;
  std::byte* to_;
  std::size_t bytes_;
};

class Update final : public Work {
 public:
  Update(std::byte* memory, std::size_t bytes)
      : values_(reinterpret_cast<float*>(memory)), count_(bytes / sizeof(float)) {}
  void run() override {
    // As wide as any machine has: the compiler may not vectorise a plain loop at -O2.
    using Vector __attribute__((vector_size(64), aligned(4), may_alias)) = float;
    std::size_t i = 0;
    for (; i + 16 <= count_; i += 16) {
      auto* at = reinterpret_cast<Vector*>(values_ + i);
      *at = -*at;
    }
    for (; i < count_; ++i) values_[i] = -values_[i];
    asm volatile("" ::: "memory");
  }

 private:
  float* values_;
  std::size_t count_;
};

// Buffers are shared by all variants of one op and size.
struct Buffers {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
  std::string memory;  // what it is
};

struct Prepared {
  Shape shape;
  std::unique_ptr<Work> work;
};

class Session {
 public:
  Session(Library& library, std::uint32_t rank, std::uint32_t ranks) : library_(library), rank_(rank), ranks_(ranks) {}
  ~Session() { release(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    std::string id;
    words >> verb;
    if (verb == "variants") {
      std::string op;
      words >> op;
      const std::optional<Operation> operation = operation_named(op);
      return operation ? "ok " + library_.variants(*operation) : "no there is no op " + op;
    }
    if (verb == "prepare") return prepare(words);
    if (verb == "release") return release();
    words >> id;
    const auto found = prepared_.find(id);
    if (found == prepared_.end()) return "no '" + line + "' is no command for anything prepared";
    std::size_t runs = 0;
    words >> runs;
    if (verb == "round") return round(found->second, runs);
    if (verb == "singles") return singles(found->second, runs);
    if (verb == "storm") return storm(found->second, runs);
    if (verb == "explain") return "ok " + found->second.work->explain();
    return "no '" + verb + "' is no command";
  }

 private:
  std::string prepare(std::istringstream& words) {
    std::string id;
    std::string op;
    std::size_t bytes = 0;
    std::string memory;
    std::string variant;
    if (!(words >> id >> op >> bytes >> memory >> variant)) return "no prepare needs five words";
    const std::optional<Operation> operation = operation_named(op);
    if (!operation) return "no there is no op " + op;
    const Shape shape = shape_of(*operation, bytes, ranks_, rank_);
    Buffers& buffers = buffers_[op + " " + std::to_string(bytes) + " " + memory];
    if (!buffers_for(buffers, shape, memory)) return "no memory left for " + std::to_string(bytes) + " bytes";
    std::string reason;
    std::unique_ptr<Work> work;
    if (*operation == Operation::copy) {
      work = std::make_unique<Copy>(buffers.input, buffers.output, shape.input_bytes);
    } else if (*operation == Operation::update) {
      work = std::make_unique<Update>(buffers.output, shape.output_bytes);
    } else {
      work = library_.prepare(shape, buffers.input, buffers.output, variant, reason);
    }
    if (!work) return "no " + reason;
    const std::string wrong = checked_run(shape, *work, buffers);
    if (!wrong.empty()) return "no " + wrong;
    prepared_[id] = {shape, std::move(work)};
    return "ok " + buffers.memory;
  }

  bool buffers_for(Buffers& buffers, const Shape& shape, const std::string& memory) {
    if (!buffers.memory.empty()) return true;
    buffers.memory = memory;
    const auto take = [&](std::size_t bytes, std::byte*& place) {
      if (bytes == 0) return true;
      std::string got = memory;
      place = library_.allocate(bytes, got);
      if (got != memory) buffers.memory = got;
      return place != nullptr;
    };
    if (!take(shape.output_bytes, buffers.output)) return false;
    buffers.output_bytes = shape.output_bytes;
    if (shape.in_place) {
      buffers.input = buffers.output;
      return true;
    }
    if (!take(shape.input_bytes, buffers.input)) return false;
    buffers.input_bytes = shape.input_bytes;
    return true;
  }

  // The op once, on known values; afterwards all is zeros, which repeated sums leave as they are.
  std::string checked_run(const Shape& shape, Work& work, const Buffers& buffers) {
    if (shape.output_bytes > 0) std::memset(buffers.output, 0, shape.output_bytes);
    fill(shape, reinterpret_cast<float*>(buffers.input));
    library_.barrier();
    work.run();
    std::string wrong = work.trouble();
    if (wrong.empty()) wrong = check(shape, reinterpret_cast<const float*>(buffers.output));
    library_.barrier();  // nobody's memory changes before all have taken from it
    if (shape.output_bytes > 0) std::memset(buffers.output, 0, shape.output_bytes);
    if (shape.input_bytes > 0) std::memset(buffers.input, 0, shape.input_bytes);
    return wrong;
  }

  std::string round(const Prepared& prepared, std::size_t runs) {
    std::chrono::duration<double> seconds{0};
    if (prepared.shape.apart()) {
      for (std::size_t i = 0; i < runs; ++i) seconds += one(prepared);
    } else {
      library_.barrier();
      const Clock::time_point start = Clock::now();
      for (std::size_t i = 0; i < runs; ++i) prepared.work->run();
      // An op ends when all have come to it. Where memory alone is measured nobody waits for others, and whoever had a
      // core first would leave out the time of those who waited for one.
      if (prepared.shape.alone()) library_.barrier();
      seconds = Clock::now() - start;
    }
    library_.barrier();  // what a peer still needs of this process is given before it sleeps
    return "ok " + text(seconds.count() / static_cast<double>(runs * prepared.shape.ops_per_run()));
  }

  std::chrono::duration<double> one(const Prepared& prepared) {
    if (prepared.shape.apart()) library_.barrier();
    const Clock::time_point start = Clock::now();
    prepared.work->run();
    return Clock::now() - start;
  }

  std::string singles(const Prepared& prepared, std::size_t runs) {
    library_.barrier();
    std::vector<double> times(runs);
    for (double& seconds : times) seconds = one(prepared).count() / prepared.shape.ops_per_run();
    library_.barrier();
    std::string answer = "ok";
    for (const double seconds : times) answer += " " + text(seconds);
    return answer;
  }

  // Survivors end with the same op: contributors are agreed on.
  static std::string storm(const Prepared& prepared, std::size_t runs) {
    std::string answer = "ok";
    for (std::size_t i = 0; i < runs; ++i) {
      prepared.work->run();
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      answer += " " + std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
      if (prepared.work->contributors() < prepared.shape.ranks) break;
    }
    return answer;
  }

  std::string release() {
    prepared_.clear();
    for (auto& [key, buffers] : buffers_) {
      if (buffers.output != nullptr) library_.release(buffers.output, buffers.output_bytes);
      if (buffers.input != nullptr && buffers.input != buffers.output) {
        library_.release(buffers.input, buffers.input_bytes);
      }
    }
    buffers_.clear();
    return "ok";
  }

  static std::string text(double seconds) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.4e", seconds);
    return digits;
  }

  Library& library_;
  std::uint32_t rank_;
  std::uint32_t ranks_;
  std::map<std::string, Buffers> buffers_;
  std::map<std::string, Prepared> prepared_;
};

}  // namespace

void fail(const std::string& why) {
  static_cast<void>(say("error " + why));
  std::fprintf(stderr, "closeranks bench: %s\n", why.c_str());
  std::_Exit(1);
}

int serve(Library& library, std::uint32_t rank, std::uint32_t ranks) {
  const char* side = std::getenv("CLOSERANKS_BENCH_SIDE");
  if (side == nullptr || !connect_to_bench()) {
    std::fprintf(stderr, "closeranks bench: this program is started by closeranks bench\n");
    return 2;
  }
  Session session(library, rank, ranks);
  std::string pending;
  std::string line;
  if (!say("hello " + std::string(side) + " " + std::to_string(rank))) return 1;
  while (hear(pending, line)) {
    if (line == "end") {
      static_cast<void>(say("ok"));
      return 0;
    }
    if (!say(session.answer(line))) return 1;
  }
  return 1;
}

std::byte* allocate_private(std::size_t bytes) {
  const std::size_t alignment = bytes >= huge_page ? huge_page : 4096;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (memory != nullptr && alignment == huge_page) ::madvise(memory, rounded, MADV_HUGEPAGE);
  return memory;
}

void release_private(std::byte* memory) { std::free(memory); }

}  // namespace closeranks::bench
