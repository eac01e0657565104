// Four processes add up numbers; one is killed in the middle of it, and the others' sum is right all the same.
//
// Started by hand, the program asks `closeranks run` for four processes of itself (--shrink: they may become fewer).
// Started by that, it joins the job, and slot 2 kills itself right after it has entered the second all_reduce: its
// input still counts there, on every survivor alike. In the third one there are three of them.
#include <closeranks/engine.h>
#include <closeranks/shared_memory.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t victim = 2;
constexpr std::size_t elements = 250'000;  // a megabyte: it has blocks, of which each process reduces some

int start_processes() {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> words{CLOSERANKS_TOOL,      "run", "--nproc-per-node", "4",    "--shrink",
                                 "--max-replacements", "0",   "--no-python",      program};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(pointers[0], pointers.data());
  std::perror(CLOSERANKS_TOOL);
  return 1;
}

// Which slots' input is in a result, and what their sum must be: slot s gives s + 1 in every element.
struct Expected {
  explicit Expected(const std::vector<closeranks::Slot>& contributors) {
    for (const closeranks::Slot slot : contributors) {
      sum += static_cast<float>(slot.value() + 1);
      names += " " + std::to_string(slot.value());
    }
  }
  float sum = 0;
  std::string names;
};

// One all_reduce in place; false: it failed, or its result is not the sum of what its contributors gave.
bool add_up(closeranks::Communicator& group, std::span<float> numbers, std::uint32_t slot, bool dies_in_it) {
  std::fill(numbers.begin(), numbers.end(), static_cast<float>(slot + 1));
  closeranks::Call call;
  call.kind = closeranks::OpKind::all_reduce;
  call.dtype = closeranks::DType::float32;
  call.inputs = call.outputs = {{numbers.data(), numbers.size_bytes()}};
  const std::shared_ptr<closeranks::Op> op = group.issue(call);
  if (dies_in_it) ::kill(::getpid(), SIGKILL);
  const closeranks::Status status = op->wait(std::chrono::seconds{30});
  if (!status.ok()) {
    std::printf("slot %u: %s\n", slot, status.message().c_str());
    return false;
  }
  const Expected expected(op->contributors().slots_in_all);
  const bool right = std::all_of(numbers.begin(), numbers.end(), [&](float n) { return n == expected.sum; });
  std::printf("slot %u: the sum is %g, %s, with the inputs of slots%s\n", slot, static_cast<double>(numbers[0]),
              right ? "right" : "WRONG", expected.names.c_str());
  return right;
}

int work(const closeranks::EngineOptions& options) {
  const std::uint32_t slot = options.slot.value();
  const auto engine = closeranks::Engine::start(options);
  if (!engine.ok()) {
    std::printf("slot %u cannot join the job: %s\n", slot, engine.status().message().c_str());
    return 1;
  }
  closeranks::GroupOptions everybody;
  everybody.name = "everybody";
  for (std::uint32_t s = 0; s < options.slots; ++s) everybody.members.emplace_back(s);
  everybody.policy = closeranks::Policy::repair;  // the others go on without one that is lost
  const auto group = engine.value()->create_group(everybody, nullptr);
  if (!group.ok()) {
    std::printf("slot %u has no group: %s\n", slot, group.status().message().c_str());
    return 1;
  }
  // In shared memory the others read and write the numbers in place. Ordinary memory works as well.
  const auto shared = engine.value()->shared_memory();
  auto* block = reinterpret_cast<float*>(shared->allocate(elements * sizeof(float)));
  std::vector<float> ordinary(block == nullptr ? elements : 0);
  const std::span<float> numbers(block == nullptr ? ordinary.data() : block, elements);

  bool right = true;
  for (int i = 0; i < 3; ++i) right = add_up(*group.value(), numbers, slot, slot == victim && i == 1) && right;
  engine.value()->stop(std::chrono::seconds{5});
  shared->release(reinterpret_cast<std::byte*>(block));
  return right ? 0 : 1;
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what the one that is killed has said is not lost
  const std::optional<closeranks::EngineOptions> options = closeranks::Engine::options_from_environment();
  return options ? work(*options) : start_processes();
}
