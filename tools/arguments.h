// What the commands of the tool have in common: reading their arguments, and saying what is wrong.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string>

namespace closeranks::tools {

// Says it on stderr and returns `status`, for a command to return.
int fail(const std::string& sentence, int status = 2);

// nullopt: the command goes on. Else the exit status that it ends with: --help was printed (0), or what is wrong (2).
std::optional<int> parse(CLI::App& app, std::span<const std::string> arguments);

}  // namespace closeranks::tools
