#include <cstdlib>
#include <iostream>

#include "agent/job.h"
#include "agent/log_folder.h"
#include "agent/worker_environment.h"
#include "base/deadlines.h"

namespace closeranks::agent {
namespace {

// Quoted where a shell would split or expand it.
std::string quoted(const std::string& word) {
  constexpr const char* plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-<>";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string result = "'";
  for (const char letter : word) result += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return result + "'";
}

void print_deadline(const char* name, std::chrono::milliseconds value, const char* meaning) {
  std::string padded = name;
  padded.resize(27, ' ');
  std::string number = std::to_string(value.count());
  number.insert(0, number.size() < 7 ? 7 - number.size() : 0, ' ');
  std::cout << "  " << padded << number << " ms  " << meaning << "\n";
}

}  // namespace

int dry_run(const LaunchOptions& options, const std::vector<std::string>& tool_folders) {
  JobFacts facts;
  facts.job = "<drawn>";
  facts.token = "<32 random bytes>";
  facts.coordinator = "127.0.0.1:<free port>";
  facts.master_port = options.master_port;
  const std::string root = options.log_dir.empty() ? default_log_root() : options.log_dir;
  facts.process = "<pid>:<start>";
  facts.temporary_folder = "<temporary>/closeranks-<drawn>";
  facts.log_folder = root.empty() ? "" : root + "/<time>-<job>";
  facts.trace_folder = trace_folder(options, facts.log_folder);

  std::cout << "command (" << options.workers << (options.workers == 1 ? " worker)" : " workers)") << ":\n ";
  for (const std::string& word : worker_command(options, find_python(tool_folders))) std::cout << " " << quoted(word);
  std::cout << "\n\nenvironment of slot 0:\n";
  for (auto [name, value] : worker_variables(options, facts, Slot(0), WorkerId(0))) {
    if (name == "MASTER_PORT" && options.master_port == 0) value = "<free port>";
    std::cout << "  " << name << "=" << quoted(value) << "\n";
  }
  if (options.workers > 1 && std::getenv("OMP_NUM_THREADS") == nullptr) {
    std::cout << "  OMP_NUM_THREADS=1   (as torchrun sets it; set it yourself for more)\n";
  }
  std::cout << "\nports: store 127.0.0.1:"
            << (options.master_port == 0 ? std::string("<free port>") : std::to_string(options.master_port))
            << ", coordinator 127.0.0.1:<free port>\n";
  std::cout << "logs: " << (facts.log_folder.empty() ? "none (no HOME)" : facts.log_folder)
            << (options.log_dir.empty() ? "  (the last " + std::to_string(kept_jobs) + " jobs are kept)" : "") << "\n";
  std::cout << "flight recorder: " << (facts.trace_folder.empty() ? "off (no folder)" : facts.trace_folder) << ", "
            << options.trace_bytes << " bytes per worker\n";
  if (!options.events_file.empty()) std::cout << "events: " << options.events_file << "\n";
  std::cout << "when a worker is lost: ";
  if (options.shrink) {
    std::cout << "the others go on (--shrink), down to " << options.min_present << " (--min-present)\n";
  } else {
    std::cout << "every other worker gets an error that names it, and the job ends\n";
  }
  std::cout << "in a closeranks.Session: ";
  if (options.max_replacements == 0) {
    std::cout << "lost workers are not replaced (--max-replacements 0)\n";
  } else {
    std::cout << "lost workers are replaced; a slot is given up when " << options.max_replacements
              << " of its workers have ended before a first step in " << deadlines::replacement_window.count() / 60'000
              << " minutes (--max-replacements); spares: " << (options.no_python ? 0 : options.spares)
              << (options.no_python ? " (--no-python)" : " (--spares)") << "\n";
  }

  std::cout << "\ndeadlines:\n";
  print_deadline("connect", deadlines::connect, "a worker reaches the coordinator at its start");
  print_deadline("handshake", deadlines::handshake, "proof of the token and first message on a connection");
  print_deadline("prepared", deadlines::prepared, "a survivor answers that it is frozen; then it is a suspect itself");
  print_deadline("fence", deadlines::fence, "proof that a lost worker is gone; then it is asked for again");
  print_deadline("stop", options.stop_timeout, "a stopped worker counts as lost (--stop-timeout)");
  if (options.hang_timeout.has_value()) {
    print_deadline("hang", *options.hang_timeout, "all others wait for a worker without progress (--hang-timeout)");
  } else {
    print_deadline("hang", deadlines::hang,
                   "all others wait for a worker without progress; shorter by the job's history");
    print_deadline("hang_least", deadlines::hang_least, "but never shorter than this (--hang-timeout sets it)");
  }
  print_deadline("stack", deadlines::stack, "a hung worker writes its Python stack before it is killed");
  print_deadline("stack_settled", deadlines::stack_settled, "no more of it came for this long: it is whole");
  print_deadline("orphan", options.orphan_timeout, "a worker that reaches nobody ends by itself (--orphan-timeout)");
  print_deadline("agent_lost", deadlines::agent_lost,
                 "closeranks run was killed: its workers have ended by themselves");
  print_deadline("drain_grace", options.grace, "after SIGTERM: workers in a Session leave at a boundary (--grace)");
  print_deadline("boundary", deadlines::boundary, "a round of joining: all have come to its boundary; or later again");
  print_deadline("state_transfer", deadlines::state_transfer, "a newcomer has its state; or the others go on without");
  print_deadline("terminate", deadlines::terminate, "from SIGTERM to SIGKILL");
  print_deadline("failure_grace", deadlines::failure_grace,
                 "after the first failure: the others may end by themselves");
  print_deadline("newcomer_end", deadlines::newcomer_end, "the job is over: newcomers that were never let in end");
  print_deadline("reconnect", deadlines::reconnect, "between tries to reach the coordinator again");
  print_deadline("replacement_window", deadlines::replacement_window, "ends before a first step are counted over this");
  print_deadline("replacement_backoff", deadlines::replacement_backoff,
                 "after such an end; doubled with each in a row");
  print_deadline("replacement_backoff_longest", deadlines::replacement_backoff_longest, "but never longer than this");
  print_deadline("spare_ready", deadlines::spare_ready, "a spare has imported torch; then it is killed");
  print_deadline("spare_after_newcomer", deadlines::spare_after_newcomer,
                 "the next spare is started when the newcomer trains, at the latest after this");
  print_deadline("spare_backoff", deadlines::spare_backoff, "after a spare's death; doubled with each in a row");
  print_deadline("spare_backoff_longest", deadlines::spare_backoff_longest, "but never longer than this");
  print_deadline("job_command", deadlines::job_command, "closeranks job is answered");
  return 0;
}

}  // namespace closeranks::agent
