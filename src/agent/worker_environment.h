// The environment and the command of a worker: pure, so that --dry-run shows exactly what a run does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/launch_options.h"
#include "closeranks/ids.h"

namespace closeranks::agent {

// What all workers of a job share.
struct JobFacts {
  std::string job;          // unique; names the job in logs and on connections
  std::string token;        // the job's secret
  std::string coordinator;  // "127.0.0.1:port"
  std::uint16_t master_port = 0;
  std::string log_folder;        // empty: no log files
  std::string temporary_folder;  // empty: python uses its own
  std::string process;           // "PID:START_TICKS" of the agent, which holds the coordinator
  std::string trace_folder{};    // empty: nothing is recorded
};

using Variable = std::pair<std::string, std::string>;

// Of a worker's files in the log folder: "slot-2" for the first in its slot, "slot-2.worker-5" for a replacement.
std::string log_name(Slot slot, WorkerId worker);

// Where the flight recorder's files go; empty: nowhere, for there is no log folder either.
std::string trace_folder(const LaunchOptions& options, const std::string& log_folder);

// torchrun's variables for a worker, and ours (docs/environment of closeranks run: --dry-run prints them).
std::vector<Variable> worker_variables(const LaunchOptions& options, const JobFacts& facts, Slot slot, WorkerId worker);

// `inherited` ("NAME=value" each) without what an outer job or an earlier launch left behind, plus the worker's
// variables. OMP_NUM_THREADS=1 is added for more than one worker unless it is set, as torchrun does.
std::vector<std::string> worker_environment(const LaunchOptions& options, const JobFacts& facts, Slot slot,
                                            WorkerId worker, std::span<const std::string> inherited);

// What a spare is started with: as a worker's, as far as it is known before there is a slot. Libraries read some of it
// while they are imported (OMP_NUM_THREADS). The kernel shows it as that of every successor, too, so it names no
// worker.
std::vector<std::string> spare_environment(const LaunchOptions& options, std::span<const std::string> inherited);

// The python for workers and tools: beside the tool, else $PYTHON_EXEC, else python3. `tool_folders`: where the tool
// is, as it was called and with links resolved.
std::string find_python(std::span<const std::string> tool_folders);

// What is executed: program and arguments.
std::vector<std::string> worker_command(const LaunchOptions& options, const std::string& python);

// A spare, and what it is told to become: the words after `python -u` of worker_command().
std::vector<std::string> spare_command(const std::string& python);
std::vector<std::string> spare_orders(const LaunchOptions& options);

}  // namespace closeranks::agent
