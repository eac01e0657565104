// One job on this host: starts the workers, watches and fences them, passes their output on, and ends with a verdict.
// The coordinator lives in the same process; the agent speaks to it through its socket only, as it would from afar.
#pragma once

#include <string>
#include <vector>

#include "agent/launch_options.h"

namespace closeranks::agent {

// Runs the job to its end; returns the exit status of the tool. `tool_folders`: where python is looked for. Call once
// per process, from its main thread: it takes over SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD and SIGPIPE, and becomes
// the parent of every orphan among its descendants.
int run_job(const LaunchOptions& options, const std::vector<std::string>& tool_folders);

// Prints what run_job would do: command, environment, ports, and every deadline. Starts nothing. Returns 0.
int dry_run(const LaunchOptions& options, const std::vector<std::string>& tool_folders);

}  // namespace closeranks::agent
