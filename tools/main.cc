// closeranks: the command-line tool.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "agent/command_line.h"
#include "agent/job.h"
#include "agent/job_command.h"
#include "agent/strike.h"
#include "agent/worker_environment.h"
#include "arguments.h"
#include "top_command.h"
#include "trace_command.h"

namespace {

using closeranks::agent::find_python;
using closeranks::tools::fail;
using closeranks::tools::parse;

constexpr std::string_view usage =
    "closeranks - distributed training whose surviving workers go on\n"
    "\n"
    "  closeranks run [flags] script.py [arguments]   start a script on several workers of this host\n"
    "  closeranks job status | resize N               a running job: how it is; grow or shrink it\n"
    "  closeranks top [DIR]                           a running job, slot by slot, as it goes\n"
    "  closeranks trace DIR [flags]                   what is wrong with a job, who and where, from the files it left\n"
    "  closeranks demo [flags]                        train, lose four workers on the way, and see what it cost\n"
    "  closeranks bench [OP] [flags]                  collectives beside Gloo, Open MPI and the memory's limit\n"
    "  closeranks version                             print the version\n"
    "\n"
    "Each has --help.\n";

// Where this program is: as it was called (the bin folder of a virtual environment, say), and with links resolved.
std::vector<std::string> tool_folders(const std::string& called) {
  std::vector<std::string> folders;
  std::string path = called;
  if (path.find('/') == std::string::npos) {
    std::string rest = std::getenv("PATH") != nullptr ? std::getenv("PATH") : "";
    while (!rest.empty()) {
      const std::string folder = rest.substr(0, rest.find(':'));
      rest.erase(0, folder.size() + 1);
      if (!folder.empty() && ::access((folder + "/" + called).c_str(), X_OK) == 0) {
        path = folder + "/" + called;
        break;
      }
    }
  }
  std::error_code error;
  if (path.find('/') != std::string::npos) {
    folders.push_back(std::filesystem::absolute(path, error).parent_path().string());
  }
  const auto resolved = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(resolved.parent_path().string());
  return folders;
}

// The demo and the bench are Python modules; their process replaces this one.
int become_python(const std::string& module, const std::vector<std::string>& folders,
                  const std::vector<std::string>& arguments) {
  std::vector<std::string> command{find_python(folders), "-m", module};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : command) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers.front(), pointers.data());
  return fail("cannot start '" + command.front() + "': " + std::strerror(errno) +
              "; install closeranks into a virtual environment, or set PYTHON_EXEC");
}

int run(const std::vector<std::string>& arguments, const std::vector<std::string>& folders) {
  auto parsed = closeranks::agent::parse_run(arguments);
  if (!parsed.ok()) return fail(parsed.status().message());
  if (!parsed.value().help.empty()) {
    std::cout << parsed.value().help;
    return 0;
  }
  const auto& options = parsed.value().options;
  return options.dry_run ? closeranks::agent::dry_run(options, folders) : closeranks::agent::run_job(options, folders);
}

// For the demo and for tests: kills a worker inside an all_reduce and prints what its words said.
int strike(const std::vector<std::string>& arguments) {
  closeranks::agent::StrikeOptions options;
  std::uint32_t slot = 0;
  double seconds = std::chrono::duration<double>(options.timeout).count();
  CLI::App app("Kills a worker of a running job in the middle of an all_reduce; prints one JSON object.",
               "closeranks strike");
  app.add_option("--events", options.events_file, "the job's events file")->required();
  app.add_option("--slot", slot, "whose worker is killed")->required();
  app.add_option("--timeout", seconds, "seconds to wait for the moment (default 30)");
  if (const auto ended = parse(app, arguments)) return *ended;
  options.slot = closeranks::Slot(slot);
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  const auto struck = closeranks::agent::strike(options);
  if (!struck.ok()) {
    return fail(struck.status().message(), 1);
  }
  std::cout << closeranks::agent::to_json(struck.value(), options.slot) << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 2), argv + argc);
  const std::string command = argc > 1 ? argv[1] : "--help";
  const std::vector<std::string> folders = tool_folders(argv[0]);
  if (command == "run") return run(arguments, folders);
  if (command == "demo" || command == "bench") return become_python("closeranks." + command, folders, arguments);
  if (command == "strike") return strike(arguments);
  if (command == "top") return closeranks::tools::top_command(arguments);
  if (command == "job") return closeranks::agent::job_command(arguments);
  if (command == "trace") return closeranks::tools::trace_command(arguments);
  if (command == "version" || command == "--version") {
    std::cout << "closeranks " << CLOSERANKS_VERSION << "\n";
    return 0;
  }
  if (command == "--help" || command == "-h" || command == "help") {
    std::cout << usage;
    return 0;
  }
  const std::vector<std::string> commands{"run", "job", "top", "trace", "demo", "bench", "version"};
  const std::string meant = closeranks::agent::nearest(command, commands);
  return fail("there is no command '" + command + "'" +
              (meant.empty() ? "; closeranks --help lists them" : "; did you mean " + meant + "?"));
}
