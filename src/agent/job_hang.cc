// A hung worker writes its Python stack before it is fenced: that is what its author needs to know.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "agent/job_state.h"
#include "agent/python_stack.h"

namespace closeranks::agent {
namespace {

using std::chrono::milliseconds;

// Between two looks at the file.
constexpr milliseconds look_every{10};
constexpr std::size_t most_frames = 12;
// Hundreds of threads with deep stacks fit; a file that grows without end is read no further.
constexpr std::size_t most_bytes = 1u << 20;

std::uint64_t size_of_file(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

}  // namespace

std::string Job::stack_file(WorkerId id) const {
  const Worker& worker = workers_.at(id);
  if (facts_.log_folder.empty() || !worker.slot.has_value()) return "";
  return facts_.log_folder + "/" + log_name(*worker.slot, id) + ".stack.log";
}

void Job::fence_with_stack(const membership::Fence& fence) {
  const auto found = workers_.find(fence.worker);
  const std::string path = found == workers_.end() ? "" : stack_file(fence.worker);
  if (path.empty() || found->second.exited || !answers_stack_signal(found->second.pid)) {
    watcher_->fence(fence.worker, fence.reason);
    return;
  }
  const std::uint64_t before = size_of_file(path);
  watcher_->signal(fence.worker, stack_signal());
  const auto now = Clock::now();
  await_stack(fence, before, before, now, now + deadlines::stack);
}

// `last`: the file's size at the last look; `grown`: when it last grew.
void Job::await_stack(const membership::Fence& fence, std::uint64_t before, std::uint64_t last, Clock::time_point grown,
                      Clock::time_point until) {
  auto timer = std::make_shared<asio::steady_timer>(main_, look_every);
  timer->async_wait([this, timer, fence, before, last, grown, until](const std::error_code&) {
    const auto now = Clock::now();
    const std::uint64_t size = size_of_file(stack_file(fence.worker));
    const auto grown_at = size > last ? now : grown;
    const bool settled = size > before && now - grown_at >= deadlines::stack_settled;
    if (!settled && now < until && !workers_.at(fence.worker).exited) {
      await_stack(fence, before, size, grown_at, until);
      return;
    }
    watcher_->fence(fence.worker, fence.reason);
    show_stack(fence, before);
  });
}

void Job::show_stack(const membership::Fence& fence, std::uint64_t before) {
  const std::string path = stack_file(fence.worker);
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(before));
  std::string text(most_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  record(recorder::EventKind::stack, fence.worker, 0, fence.reason, text);
  const std::vector<std::string> frames = recent_frames(text, most_frames);
  const std::string who = name_of(fence.worker) + " hangs: " + fence.reason;
  if (frames.empty()) {
    output_->say(who + "; it wrote no Python stack");
    return;
  }
  output_->say(who + "; its Python stack, most recent call first (all threads: " + path + "):");
  for (const std::string& frame : frames) output_->say("  " + frame);
}

}  // namespace closeranks::agent
