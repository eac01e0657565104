#include "agent/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/process_state.h"

namespace closeranks::agent {
namespace {

Status cannot_start(const std::string& program, int error) {
  const std::string hint = error == ENOENT   ? "; is it installed and in PATH?"
                           : error == EACCES ? "; is it executable?"
                                             : "";
  return {Fault::system, Move::give_up, "cannot start '" + program + "': " + std::strerror(error) + hint};
}

std::vector<char*> pointers(std::span<const std::string> words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// The attributes of posix_spawn, freed in every case.
struct SpawnPlan {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnPlan() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

Result<OutputPipe> make_output_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Status(Fault::system, Move::give_up,
                  std::string("cannot make a pipe for a worker's output: ") + std::strerror(errno));
  }
  OutputPipe pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  // Ours alone: the worker's end stays blocking, as programs expect of their stdout.
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

Result<WorkerProcess> start_worker(std::span<const std::string> command, std::span<const std::string> environment,
                                   const FileDescriptor* input) {
  auto output = make_output_pipe();
  if (!output.ok()) return output.status();
  auto errors = make_output_pipe();
  if (!errors.ok()) return errors.status();

  SpawnPlan plan;
  if (input != nullptr) {
    ::posix_spawn_file_actions_adddup2(&plan.actions, input->get(), STDIN_FILENO);
  } else {
    ::posix_spawn_file_actions_addopen(&plan.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  ::posix_spawn_file_actions_adddup2(&plan.actions, output.value().write.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&plan.actions, errors.value().write.get(), STDERR_FILENO);
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&plan.attributes, &none);
  ::posix_spawnattr_setsigdefault(&plan.attributes, &all);
  ::posix_spawnattr_setpgroup(&plan.attributes, 0);
  ::posix_spawnattr_setflags(&plan.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  WorkerProcess worker;
  const int error = ::posix_spawnp(&worker.pid, command.front().c_str(), &plan.actions, &plan.attributes,
                                   pointers(command).data(), pointers(environment).data());
  if (error != 0) return cannot_start(command.front(), error);
  // Not reaped by anybody but us, so the pid still is this process.
  auto process = open_process(worker.pid);
  if (!process.ok()) {
    ::kill(worker.pid, SIGKILL);
    ::waitpid(worker.pid, nullptr, 0);
    return process.status();
  }
  worker.process = std::move(process.value());
  worker.output = std::move(output.value().read);
  worker.errors = std::move(errors.value().read);
  return worker;
}

int status_of_ending(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t close = text.rfind(')');
  if (close == std::string::npos) return -1;
  std::istringstream rest(text.substr(close + 1));
  // Field 52 is the exit code; the letter after the command is field 3.
  std::string field;
  for (int number = 3; number < 52; ++number) rest >> field;
  int status = -1;
  rest >> status;
  return rest ? status : -1;
}

}  // namespace closeranks::agent
