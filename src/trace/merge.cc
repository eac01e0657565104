#include "trace/merge.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "recorder/ring_reader.h"
#include "trace/event_log.h"
#include "trace/live.h"
#include "trace/torch_dump.h"

namespace closeranks::trace {

using recorder::JobTrace;
using recorder::Role;
using recorder::WorkerTrace;

namespace {

namespace fs = std::filesystem;

// A directory that holds more than this is none of traces.
constexpr std::size_t most_files = 20'000;
constexpr int most_depth = 8;
constexpr std::uintmax_t largest_dump_bytes = std::uintmax_t{256} << 20;

Status wrong(const std::string& sentence) { return {Fault::invalid_argument, Move::fix_call, sentence}; }

std::vector<std::byte> read_bytes(const fs::path& path, std::size_t most) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> bytes(most);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(most));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

std::int64_t modified_ns(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return 0;
  return static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
}

struct Found {
  std::vector<WorkerTrace> rings;
  std::vector<WorkerTrace> dumps;
  std::vector<fs::path> event_logs;
  std::vector<std::string> remarks;
};

void read_file(const fs::path& path, std::uintmax_t size, std::uint64_t newest, Found& found) {
  constexpr std::size_t head_bytes = 4096;
  const std::vector<std::byte> head = read_bytes(path, std::min<std::uintmax_t>(size, head_bytes));
  const std::string name = path.string();
  if (recorder::is_ring(head)) {
    auto ring = recorder::read_ring_file(name, newest);
    if (ring.ok()) {
      found.rings.push_back(std::move(ring.value()));
    } else {
      found.remarks.push_back(name + ": " + ring.status().message());
    }
    return;
  }
  if (head.size() > 2 && head[0] == std::byte{0x80} && std::to_integer<int>(head[1]) <= 5) {
    if (size > largest_dump_bytes) {
      found.remarks.push_back(name + ": too large for a dump of torch's flight recorder");
      return;
    }
    auto dump = read_torch_dump(read_bytes(path, size), name, modified_ns(path));
    if (dump.ok()) {
      found.dumps.push_back(std::move(dump.value()));
    } else {
      found.remarks.push_back(name + ": " + dump.status().message());
    }
    return;
  }
  if (is_event_log({reinterpret_cast<const char*>(head.data()), head.size()})) found.event_logs.push_back(path);
}

Found search(const std::string& directory, std::uint64_t newest) {
  Found found;
  std::error_code error;
  std::size_t files = 0;
  fs::recursive_directory_iterator entry(directory, fs::directory_options::skip_permission_denied, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry.depth() >= most_depth) entry.disable_recursion_pending();
    std::error_code ignored;
    if (entry->is_symlink(ignored) || !entry->is_regular_file(ignored)) continue;
    if (++files > most_files) {
      found.remarks.push_back("more than " + std::to_string(most_files) + " files: the rest was left out");
      break;
    }
    const std::uintmax_t size = entry->file_size(ignored);
    if (!ignored && size > 0) read_file(entry->path(), size, newest, found);
  }
  if (error) found.remarks.push_back(directory + " could not be read to its end: " + error.message());
  return found;
}

// The job that was written last; the others are remarked.
std::vector<WorkerTrace> newest_job(Found& found) {
  std::map<std::string, std::int64_t> jobs;
  for (const WorkerTrace& ring : found.rings) {
    std::int64_t& last = jobs[ring.job];
    last = std::max(last, ring.last_written_ns + ring.unix_offset_ns);
  }
  const auto newest =
      std::max_element(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const auto& [job, last] : jobs) {
    if (job != newest->first) {
      found.remarks.push_back("another job is here, too, and older: " + (job.empty() ? "one without a name" : job));
    }
  }
  std::erase_if(found.rings, [&](const WorkerTrace& ring) { return ring.job != newest->first; });
  return std::move(found.rings);
}

// torch's times are unix times: onto the job's clock.
void shift(WorkerTrace& dump, std::int64_t by) {
  const auto move = [by](std::optional<std::int64_t>& time) {
    if (time.has_value()) *time += by;
  };
  for (recorder::OpTrace& op : dump.ops) {
    move(op.issued_ns);
    move(op.entered_ns);
    move(op.finished_ns);
  }
  dump.last_written_ns += by;
}

}  // namespace

Result<JobTrace> read_directory(const std::string& directory, std::uint64_t newest) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) return wrong("there is no directory " + directory);
  Found found = search(directory, newest);
  JobTrace job;
  std::set<Slot> told;
  if (!found.rings.empty()) {
    job.workers = newest_job(found);
    for (const WorkerTrace& ring : job.workers) {
      if (ring.role == Role::worker && ring.slot.has_value()) told.insert(*ring.slot);
    }
  }
  const std::int64_t unix_offset_ns = job.workers.empty() ? 0 : job.workers.front().unix_offset_ns;
  for (WorkerTrace& dump : found.dumps) {
    if (dump.slot.has_value() && told.contains(*dump.slot)) {
      found.remarks.push_back(dump.file + ": left out; slot " + std::to_string(dump.slot->value()) +
                              " has a file that says more");
      continue;
    }
    shift(dump, -unix_offset_ns);
    job.workers.push_back(std::move(dump));
  }
  const bool has_agent = std::any_of(job.workers.begin(), job.workers.end(),
                                     [](const WorkerTrace& worker) { return worker.role == Role::agent; });
  // The agent's own file says the same, and more exactly.
  for (const fs::path& log : has_agent ? std::vector<fs::path>{} : found.event_logs) {
    WorkerTrace agent = read_event_log(log.string(), unix_offset_ns);
    if (!agent.events.empty()) job.workers.push_back(std::move(agent));
  }
  job.remarks = std::move(found.remarks);
  if (job.workers.empty()) {
    std::string sentence =
        "no recorder's file, no dump of torch's flight recorder and no log of events in " + directory;
    if (!job.remarks.empty()) sentence += "; " + job.remarks.front();
    return wrong(sentence);
  }
  std::stable_sort(job.workers.begin(), job.workers.end(), [](const WorkerTrace& a, const WorkerTrace& b) {
    return std::pair(a.slot, a.worker) < std::pair(b.slot, b.worker);
  });
  complete_members(job);
  look_at_processes(job);
  return job;
}

}  // namespace closeranks::trace
