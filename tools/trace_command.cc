#include "trace_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"
#include "trace/merge.h"
#include "trace/perfetto.h"
#include "trace/report.h"
#include "trace/torch_export.h"
#include "trace/verdict_json.h"

namespace closeranks::tools {
namespace {

constexpr auto between_reads = std::chrono::seconds(1);

struct Options {
  std::string directory;
  bool json = false;
  bool follow = false;
  std::string perfetto;
  std::string torch_fr;
  double patience_s = 1;
};

// COLUMNS, else the terminal's, else what fits a mail.
trace::ReportStyle style_of_output() {
  trace::ReportStyle style;
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 0) {
    style.colours = std::getenv("NO_COLOR") == nullptr;
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) style.width = size.ws_col;
  }
  if (const char* columns = std::getenv("COLUMNS"); columns != nullptr && std::atoi(columns) > 0) {
    style.width = static_cast<std::size_t>(std::atoi(columns));
  }
  return style;
}

int follow(const Options& options, const trace::VerdictOptions& how) {
  std::string last;
  while (true) {
    const auto job = trace::read_directory(options.directory);
    if (!job.ok()) {
      if (last.empty()) return fail(job.status().message());
    } else {
      const trace::Verdict verdict = trace::judge(job.value(), how);
      // Its durations grow: another verdict is another kind, slot or op.
      const std::string now = std::string(name_of(verdict.kind)) +
                              (verdict.slot ? std::to_string(verdict.slot->value()) : "") + verdict.group +
                              (verdict.sequence ? std::to_string(*verdict.sequence) : "");
      if (now != last) {
        std::cout << (options.json ? to_json(verdict, job.value())
                                   : std::string(name_of(verdict.kind)) + ": " + verdict.sentence)
                  << std::endl;
      }
      last = now;
      const bool lives = job.value().read_ns != 0;
      if (!lives) return 0;
    }
    std::this_thread::sleep_for(between_reads);
  }
}

}  // namespace

int trace_command(std::span<const std::string> arguments) {
  Options options;
  CLI::App app("Says in one sentence what is wrong with a job, who and where, from the files that it left.",
               "closeranks trace");
  app.add_option("directory", options.directory,
                 "recorders' files, dumps of torch's flight recorder, logs of events: all below it is read")
      ->required();
  app.add_flag("--json", options.json, "print one JSON object");
  app.add_flag("--follow", options.follow,
               "of a running job: print the verdict whenever it changes, until the job ends");
  app.add_option("--perfetto", options.perfetto, "write a trace for ui.perfetto.dev into this file");
  app.add_option("--torch-fr", options.torch_fr, "write dumps for torchfrtrace into this directory");
  app.add_option("--patience", options.patience_s, "seconds after which a wait is a sign of trouble (default 1)");
  if (const auto ended = parse(app, arguments)) return *ended;
  trace::VerdictOptions how;
  how.patience_ns = static_cast<std::int64_t>(options.patience_s * 1e9);
  if (options.follow) return follow(options, how);
  const auto job = trace::read_directory(options.directory);
  if (!job.ok()) return fail(job.status().message());
  const trace::Verdict verdict = trace::judge(job.value(), how);
  if (!options.perfetto.empty()) {
    std::ofstream file(options.perfetto);
    file << trace::to_perfetto(job.value(), verdict);
    if (!file.flush()) return fail("cannot write " + options.perfetto);
  }
  if (!options.torch_fr.empty()) {
    const Status written = trace::write_torch_dumps(job.value(), options.torch_fr);
    if (!written.ok()) return fail(written.message());
  }
  std::cout << (options.json ? to_json(verdict, job.value()) + "\n" : report(verdict, job.value(), style_of_output()))
            << std::flush;
  return 0;
}

}  // namespace closeranks::tools
