// `closeranks top`: a running job, slot by slot, in a terminal; read from the flight recorder's files, so that neither
// the job nor a worker of it has to answer.
#pragma once

#include <string>
#include <vector>

namespace closeranks::tools {

// `arguments`: what follows `closeranks top`. Returns the exit status: 0; 1 when there is no such job or folder; 2 for
// a wrong command line.
int top_command(const std::vector<std::string>& arguments);

}  // namespace closeranks::tools
