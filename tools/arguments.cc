#include "arguments.h"

#include <iostream>
#include <vector>

namespace closeranks::tools {

int fail(const std::string& sentence, int status) {
  std::cerr << "closeranks: " << sentence << "\n";
  return status;
}

std::optional<int> parse(CLI::App& app, std::span<const std::string> arguments) {
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    return fail(error.what());
  }
  return std::nullopt;
}

}  // namespace closeranks::tools
