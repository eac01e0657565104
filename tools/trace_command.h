// `closeranks trace DIR`: what is wrong with a job, from the files that it left.
#pragma once

#include <span>
#include <string>

namespace closeranks::tools {

// `arguments`: what follows `closeranks trace`. Returns the exit status: 0 with or without a culprit, 2 with a sentence
// for a wrong command line or a directory without traces.
int trace_command(std::span<const std::string> arguments);

}  // namespace closeranks::tools
