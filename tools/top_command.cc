#include "top_command.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "agent/control_socket.h"
#include "agent/job_command.h"
#include "agent/log_folder.h"
#include "arguments.h"
#include "terminal.h"
#include "trace/live_frame.h"
#include "trace/merge.h"
#include "trace/verdict.h"

namespace closeranks::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct TopOptions {
  std::string folder;
  std::string job;
  std::string log_root = agent::default_log_root();
  double interval_s = 1;
  bool once = false;
};

// Where the running job that is meant keeps its recorders' files: it says so itself.
Result<std::string> trace_folder(const TopOptions& options) {
  if (!options.folder.empty()) return options.folder;
  const auto job = agent::find_job_folder(options.log_root, options.job);
  if (!job.ok()) return job.status();
  const auto answered = agent::ask_job(job.value(), R"({"command": "status"})");
  if (!answered.ok()) return answered.status();
  const auto answer = nlohmann::json::parse(answered.value(), nullptr, false);
  const std::string folder = answer.is_object() ? answer.value("trace", "") : "";
  if (folder.empty()) return Status(Fault::unsupported, Move::fix_call, "this job records nothing");
  return folder;
}

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%H:%M:%S", &parts);
  return text.data();
}

std::vector<std::string> frame(const std::string& folder, trace::FrameOptions options) {
  const auto read = trace::read_directory(folder);
  if (!read.ok()) return {read.status().message()};
  options.now_ns = read.value().read_ns;
  options.clock = time_of_day();
  return trace::live_frame(read.value(), trace::judge(read.value()), options);
}

int show_once(const std::string& folder) {
  trace::FrameOptions options;
  if (Terminal::is_one()) options.columns = Terminal::size().columns;
  for (const std::string& line : frame(folder, options)) std::cout << line << "\n";
  std::cout.flush();
  return std::cout.good() ? 0 : 1;
}

int show_live(const std::string& folder, std::chrono::milliseconds interval) {
  Terminal terminal;
  while (true) {
    const TerminalSize size = Terminal::size();
    trace::FrameOptions options;
    options.columns = size.columns;
    options.lines = size.lines;
    const Clock::time_point start = Clock::now();
    std::vector<std::string> lines = frame(folder, options);
    if (lines.size() > size.lines) lines.resize(size.lines);
    if (!terminal.show(lines)) return 0;
    // Files of a large job take a while to read: a quarter of a core at most goes into that.
    const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    if (terminal.wait(std::max(interval, 3 * spent)) == Terminal::Wish::end) return 0;
  }
}

}  // namespace

int top_command(const std::vector<std::string>& arguments) {
  TopOptions options;
  CLI::App app(
      "Shows a job while it runs, from its flight recorder's files: for each slot its step, its pace, how much of its "
      "time it waits for others, and what it is in; and the verdict. q ends it.",
      "closeranks top");
  app.add_option("folder", options.folder, "the trace folder (default: that of a job that runs on this host)");
  app.add_option("--job", options.job, "id of the job, or the beginning or end of it (default: the newest that runs)");
  app.add_option("--log-dir", options.log_root, "as given to closeranks run");
  app.add_option("--interval", options.interval_s, "seconds between two looks (default 1)")
      ->check(CLI::Range(0.1, 3600.0));
  app.add_flag("--once", options.once, "print one look and end; so it does, too, where no terminal is");
  if (const auto ended = parse(app, arguments)) return *ended;
  const auto folder = trace_folder(options);
  if (!folder.ok()) return fail(folder.status().message(), 1);
  std::error_code error;
  if (!std::filesystem::is_directory(folder.value(), error)) return fail("there is no folder " + folder.value(), 1);
  if (options.once || !Terminal::is_one()) return show_once(folder.value());
  return show_live(folder.value(), std::chrono::milliseconds(static_cast<std::int64_t>(options.interval_s * 1000)));
}

}  // namespace closeranks::tools
