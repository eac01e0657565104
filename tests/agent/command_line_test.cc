#include "agent/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace closeranks::agent {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

LaunchOptions parse(const std::vector<std::string>& arguments) {
  auto parsed = parse_run(arguments);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? parsed.value().options : LaunchOptions{};
}

std::string refusal(const std::vector<std::string>& arguments) {
  auto parsed = parse_run(arguments);
  EXPECT_FALSE(parsed.ok());
  return parsed.status().message();
}

TEST(CommandLine, TakesBothSpellings) {
  EXPECT_EQ(parse({"--nproc-per-node", "3", "a.py"}).workers, 3u);
  EXPECT_EQ(parse({"--nproc_per_node=3", "a.py"}).workers, 3u);
  EXPECT_EQ(parse({"--nproc-per-node=3", "--master_port", "1234", "a.py"}).master_port, 1234);
  EXPECT_TRUE(parse({"--no_python", "a"}).no_python);
}

TEST(CommandLine, LeavesTheScriptsOwnArgumentsAlone) {
  const LaunchOptions options = parse({"--shrink", "train.py", "--nproc_per_node", "9", "-m", "--help", "--", "x"});
  EXPECT_THAT(options.script, ElementsAre("train.py", "--nproc_per_node", "9", "-m", "--help", "--", "x"));
  EXPECT_EQ(options.workers, 1u);
  EXPECT_FALSE(options.module);
  EXPECT_THAT(parse({"--", "--odd-name.py", "-x"}).script, ElementsAre("--odd-name.py", "-x"));
}

TEST(CommandLine, KnowsWhatTorchrunKnows) {
  const LaunchOptions options =
      parse({"--nnodes", "1", "--standalone", "--rdzv-id", "run7", "--rdzv-backend=c10d", "--rdzv_endpoint",
             "localhost:29400", "--max-restarts", "3", "--role", "trainer", "-m", "package.module", "x"});
  EXPECT_EQ(options.run_id, "run7");
  EXPECT_EQ(options.max_restarts, 3u);
  EXPECT_EQ(options.role, "trainer");
  EXPECT_TRUE(options.module);
  EXPECT_EQ(options.master_port, 0) << "--standalone: a free port, whatever the endpoint says";
  EXPECT_EQ(parse({"--rdzv-endpoint", "localhost:29400", "a.py"}).master_port, 29400);
}

TEST(CommandLine, TakesOurFlags) {
  const LaunchOptions options = parse({"--nproc-per-node", "4", "--shrink", "--min-present", "2", "--events", "e.jsonl",
                                       "--stop-timeout", "1.5", "--orphan-timeout", "7", "a.py"});
  EXPECT_TRUE(options.shrink);
  EXPECT_EQ(options.min_present, 2u);
  EXPECT_EQ(options.events_file, "e.jsonl");
  EXPECT_EQ(options.stop_timeout, milliseconds(1500));
  EXPECT_EQ(options.orphan_timeout, milliseconds(7000));
}

TEST(CommandLine, TheLastOfTwoCounts) {
  EXPECT_EQ(parse({"--nproc-per-node=2", "--nproc_per_node=5", "a"}).workers, 5u);
}

TEST(CommandLine, AWrongFlagNamesTheNearestRightOne) {
  EXPECT_THAT(refusal({"--nproc-per-nod", "4", "a.py"}), HasSubstr("did you mean --nproc-per-node?"));
  EXPECT_THAT(refusal({"--nproc", "4", "a.py"}), HasSubstr("did you mean --nproc-per-node?"));
  EXPECT_THAT(refusal({"--min_presnt", "4", "a.py"}), HasSubstr("did you mean --min-present?"));
  EXPECT_THAT(refusal({"--zzzzzz", "a.py"}), HasSubstr("closeranks run --help"));
  EXPECT_THAT(refusal({"--run-path", "a.py"}), HasSubstr("a flag of torchrun that closeranks run does not have"));
}

TEST(CommandLine, ErrorsAreOneSentenceThatSaysWhatToDo) {
  EXPECT_THAT(refusal({"--nnodes", "2", "a.py"}), HasSubstr("one host for now"));
  EXPECT_THAT(refusal({"--nnodes=1:4", "a.py"}), HasSubstr("one host for now"));
  EXPECT_THAT(refusal({"--node-rank", "1", "a.py"}), HasSubstr("one host for now"));
  EXPECT_THAT(refusal({"--master-addr", "10.0.0.1", "a.py"}), HasSubstr("loopback"));
  EXPECT_THAT(refusal({"--master-port", "70000", "a.py"}), HasSubstr("0 to 65535"));
  EXPECT_THAT(refusal({"--nproc-per-node", "many", "a.py"}), HasSubstr("auto, cpu, gpu or a number"));
  EXPECT_THAT(refusal({"--nproc-per-node", "0", "a.py"}), HasSubstr("1 to 1024"));
  EXPECT_THAT(refusal({"--nproc-per-node", "2", "--min-present", "3", "a.py"}), HasSubstr("--min-present is 3"));
  EXPECT_THAT(refusal({"-m", "--no-python", "a"}), HasSubstr("exclude each other"));
  EXPECT_THAT(refusal({"--stop-timeout", "0", "a"}), HasSubstr("--stop-timeout takes seconds"));
  EXPECT_THAT(refusal({"--nproc-per-node", "4"}), HasSubstr("needs a script"));
  EXPECT_THAT(refusal({}), HasSubstr("needs a script"));
  EXPECT_THAT(refusal({"--events"}), HasSubstr("--events needs a value"));
  EXPECT_THAT(refusal({"--min-present", "x", "a.py"}), HasSubstr("--min-present"));
}

TEST(CommandLine, HelpNeedsNoScript) {
  auto parsed = parse_run(std::vector<std::string>{"--help"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_THAT(parsed.value().help, HasSubstr("--nproc-per-node"));
  EXPECT_THAT(parsed.value().help, HasSubstr("--shrink"));
}

TEST(CommandLine, CountsWorkersByName) {
  ASSERT_TRUE(worker_count("cpu").ok());
  EXPECT_GE(worker_count("cpu").value(), 1u);
  ::setenv("CUDA_VISIBLE_DEVICES", "0,2,3", 1);
  EXPECT_EQ(worker_count("gpu").value(), 3u);
  EXPECT_EQ(worker_count("auto").value(), 3u);
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_FALSE(worker_count("gpu").ok());
  EXPECT_EQ(worker_count("auto").value(), worker_count("cpu").value());
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST(CommandLine, TorchrunsVariablesAreDefaults) {
  ::setenv("PET_NPROC_PER_NODE", "6", 1);
  EXPECT_EQ(parse({"a.py"}).workers, 6u);
  EXPECT_EQ(parse({"--nproc-per-node", "2", "a.py"}).workers, 2u);
  ::unsetenv("PET_NPROC_PER_NODE");
}

TEST(CommandLine, StreamsOfSomeWorkers) {
  const LaunchOptions all = parse({"--nproc-per-node", "2", "-r", "3", "a.py"});
  EXPECT_TRUE(all.redirects.has(Slot(0), 1) && all.redirects.has(Slot(1), 2));
  const LaunchOptions some = parse({"--nproc-per-node", "3", "-r", "0:1,1:2", "a.py"});
  EXPECT_TRUE(some.redirects.has(Slot(0), 1));
  EXPECT_FALSE(some.redirects.has(Slot(0), 2));
  EXPECT_TRUE(some.redirects.has(Slot(1), 2));
  EXPECT_FALSE(some.redirects.has(Slot(2), 1));
  const LaunchOptions undone = parse({"--nproc-per-node", "2", "-r", "3", "-t", "0:3", "a.py"});
  EXPECT_FALSE(undone.redirects.has(Slot(0), 1));
  EXPECT_TRUE(undone.redirects.has(Slot(1), 1));
  EXPECT_TRUE(parse({"-r3", "a.py"}).redirects.has(Slot(0), 1));
  EXPECT_THAT(refusal({"-r", "4", "a.py"}), HasSubstr("--redirects takes 0 to 3"));
  EXPECT_THAT(refusal({"-t", "0:1,2", "a.py"}), HasSubstr("--tee takes"));
}

TEST(CommandLine, ShownSlots) {
  EXPECT_THAT(parse({"--nproc-per-node", "4", "--local-ranks-filter", "0,2", "a.py"}).shown,
              ElementsAre(Slot(0), Slot(2)));
  EXPECT_THAT(refusal({"--nproc-per-node", "2", "--local_ranks_filter", "2", "a.py"}), HasSubstr("slots below 2"));
}

TEST(CommandLine, ReplacementsSparesHangsAndGrace) {
  const LaunchOptions plain = parse({"a.py"});
  EXPECT_EQ(plain.max_replacements, 3u);
  EXPECT_EQ(plain.spares, 1u);
  EXPECT_FALSE(plain.hang_timeout.has_value()) << "it adapts";
  EXPECT_EQ(plain.grace, milliseconds(30'000));
  const LaunchOptions given =
      parse({"--max-replacements", "0", "--spares=2", "--hang-timeout", "2.5", "--grace", "90", "a.py"});
  EXPECT_EQ(given.max_replacements, 0u);
  EXPECT_EQ(given.spares, 2u);
  EXPECT_EQ(given.hang_timeout, milliseconds(2'500));
  EXPECT_EQ(given.grace, milliseconds(90'000));
  EXPECT_THAT(refusal({"--hang-timeout", "0", "a.py"}), HasSubstr("--hang-timeout takes seconds"));
  EXPECT_THAT(refusal({"--spares", "17", "a.py"}), HasSubstr("--spares takes 0 to 16"));
}

}  // namespace
}  // namespace closeranks::agent
