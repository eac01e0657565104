// `closeranks job`: asks a running job of this host and user how it is, or to grow and shrink.
#pragma once

#include <span>
#include <string>

#include "closeranks/status.h"

namespace closeranks::agent {

// The folder of the job that is meant: the newest in `root` whose agent runs, or the one whose id is, begins or ends
// with `id`. Fault::invalid_argument with a sentence when there is none, or more than one fits `id`.
Result<std::string> find_job_folder(const std::string& root, const std::string& id);

// `arguments`: what follows `closeranks job`. Prints the answer, or a sentence to stderr; returns the exit status: 0, 1
// when the job refuses or cannot be reached, 2 for a wrong command line.
int job_command(std::span<const std::string> arguments);

}  // namespace closeranks::agent
