#include "agent/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace closeranks::agent {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;
using testing::StartsWith;

LaunchOptions four_workers() {
  LaunchOptions options;
  options.workers = 4;
  options.script = {"train.py", "--epochs", "3"};
  return options;
}

const JobFacts facts{"run-1a2b", "secret", "127.0.0.1:4000", 29401, "/logs/job", "/tmp/closeranks-x", "77:8800"};

TEST(WorkerEnvironment, HasTorchrunsVariablesAndOurs) {
  const auto environment = worker_environment(four_workers(), facts, Slot(2), WorkerId(2), {});
  for (const char* expected : {"RANK=2",
                               "LOCAL_RANK=2",
                               "GROUP_RANK=0",
                               "ROLE_RANK=2",
                               "ROLE_NAME=default",
                               "LOCAL_WORLD_SIZE=4",
                               "WORLD_SIZE=4",
                               "GROUP_WORLD_SIZE=1",
                               "ROLE_WORLD_SIZE=4",
                               "MASTER_ADDR=127.0.0.1",
                               "MASTER_PORT=29401",
                               "TORCHELASTIC_RESTART_COUNT=0",
                               "TORCHELASTIC_MAX_RESTARTS=0",
                               "TORCHELASTIC_RUN_ID=run-1a2b",
                               "TORCHELASTIC_USE_AGENT_STORE=True",
                               "TORCHELASTIC_ERROR_FILE=/logs/job/slot-2.error.json",
                               "OMP_NUM_THREADS=1",
                               "CLOSERANKS_COORDINATOR=127.0.0.1:4000",
                               "CLOSERANKS_TOKEN=secret",
                               "CLOSERANKS_WORKER=2",
                               "CLOSERANKS_JOB=run-1a2b",
                               "CLOSERANKS_POLICY=fail",
                               "CLOSERANKS_TEMPORARY_FOLDER=/tmp/closeranks-x/2",
                               "CLOSERANKS_COORDINATOR_PROCESS=77:8800",
                               "CLOSERANKS_ORPHAN_TIMEOUT=60000"}) {
    EXPECT_THAT(environment, Contains(expected));
  }
}

TEST(WorkerEnvironment, ShrinkRepairs) {
  LaunchOptions options = four_workers();
  options.shrink = true;
  EXPECT_THAT(worker_environment(options, facts, Slot(0), WorkerId(0), {}), Contains("CLOSERANKS_POLICY=repair"));
}

TEST(WorkerEnvironment, ScrubsWhatAnOuterJobLeft) {
  const std::vector<std::string> inherited{"HOME=/root",
                                           "RANK=7",
                                           "CLOSERANKS_TOKEN=old",
                                           "CLOSERANKS_LOG=debug",
                                           "TORCHELASTIC_USE_AGENT_STORE=True",
                                           "TORCHELASTIC_SOMETHING_NEW=1",
                                           "RANKS=kept"};
  const auto environment = worker_environment(four_workers(), facts, Slot(0), WorkerId(0), inherited);
  EXPECT_THAT(environment, Contains("HOME=/root"));
  EXPECT_THAT(environment, Contains("CLOSERANKS_LOG=debug"));
  EXPECT_THAT(environment, Contains("RANKS=kept"));
  EXPECT_THAT(environment, Not(Contains("RANK=7")));
  EXPECT_THAT(environment, Not(Contains("CLOSERANKS_TOKEN=old")));
  EXPECT_THAT(environment, Not(Contains(StartsWith("TORCHELASTIC_SOMETHING_NEW"))));
}

TEST(WorkerEnvironment, ThreadsOfOpenMpAreTheUsersWhenSet) {
  const std::vector<std::string> inherited{"OMP_NUM_THREADS=8"};
  EXPECT_THAT(worker_environment(four_workers(), facts, Slot(0), WorkerId(0), inherited),
              Contains("OMP_NUM_THREADS=8"));
  EXPECT_THAT(worker_environment(four_workers(), facts, Slot(0), WorkerId(0), inherited),
              Not(Contains("OMP_NUM_THREADS=1")));
  LaunchOptions alone = four_workers();
  alone.workers = 1;
  EXPECT_THAT(worker_environment(alone, facts, Slot(0), WorkerId(0), {}), Not(Contains(StartsWith("OMP_NUM_THREADS"))));
}

TEST(WorkerEnvironment, AReplacementHasItsOwnIdAndFiles) {
  const auto environment = worker_environment(four_workers(), facts, Slot(2), WorkerId(7), {});
  for (const char* expected :
       {"RANK=2", "CLOSERANKS_WORKER=7", "TORCHELASTIC_ERROR_FILE=/logs/job/slot-2.worker-7.error.json",
        "CLOSERANKS_STACK_FILE=/logs/job/slot-2.worker-7.stack.log",
        "CLOSERANKS_OUTPUT_FILES=/logs/job/slot-2.worker-7", "CLOSERANKS_TEMPORARY_FOLDER=/tmp/closeranks-x/7"}) {
    EXPECT_THAT(environment, Contains(expected));
  }
  EXPECT_EQ(log_name(Slot(2), WorkerId(2)), "slot-2");
}

TEST(WorkerEnvironment, ASpareHasNoSlotYet) {
  const auto environment =
      spare_environment(four_workers(), std::vector<std::string>{"HOME=/root", "RANK=1", "CLOSERANKS_WORKER=3"});
  EXPECT_THAT(environment, Contains("HOME=/root"));
  EXPECT_THAT(environment, Contains("OMP_NUM_THREADS=1"));
  EXPECT_THAT(environment, Not(Contains(StartsWith("CLOSERANKS_WORKER="))));
  EXPECT_THAT(environment, Not(Contains(StartsWith("RANK="))));
  EXPECT_THAT(environment, Not(Contains(StartsWith("CLOSERANKS_COORDINATOR="))));
}

TEST(WorkerCommand, ASpareIsToldWhatToBecome) {
  LaunchOptions options = four_workers();
  EXPECT_THAT(spare_command("py"), ElementsAre("py", "-u", "-c", "from closeranks.spare import main; main()"));
  EXPECT_THAT(spare_orders(options), ElementsAre("train.py", "--epochs", "3"));
  options.module = true;
  EXPECT_THAT(spare_orders(options), ElementsAre("-m", "train.py", "--epochs", "3"));
}

TEST(WorkerCommand, PythonScriptModuleOrProgram) {
  LaunchOptions options = four_workers();
  EXPECT_THAT(worker_command(options, "py"), ElementsAre("py", "-u", "train.py", "--epochs", "3"));
  options.module = true;
  EXPECT_THAT(worker_command(options, "py"), ElementsAre("py", "-u", "-m", "train.py", "--epochs", "3"));
  options.module = false;
  options.no_python = true;
  EXPECT_THAT(worker_command(options, "py"), ElementsAre("train.py", "--epochs", "3"));
}

TEST(FindPython, BesideTheToolElseByVariableElseByName) {
  const std::string folder = testing::TempDir() + "closeranks-find-python";
  std::filesystem::create_directories(folder);
  ::unsetenv("PYTHON_EXEC");
  EXPECT_EQ(find_python(std::vector<std::string>{folder}), "python3");
  ::setenv("PYTHON_EXEC", "/opt/python", 1);
  EXPECT_EQ(find_python(std::vector<std::string>{folder}), "/opt/python");
  std::ofstream(folder + "/python") << "#!/bin/sh\n";
  ::chmod((folder + "/python").c_str(), 0755);
  EXPECT_EQ(find_python(std::vector<std::string>{"/nowhere", folder}), folder + "/python");
  ::unsetenv("PYTHON_EXEC");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace closeranks::agent
