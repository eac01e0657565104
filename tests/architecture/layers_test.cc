// The folder tree is the architecture: includes point down the layers only, and the deciding layers do no I/O.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path source_root = CLOSERANKS_SOURCE_DIR;

// What each layer may include besides itself and the public headers.
const std::map<std::string, std::set<std::string>> allowed = {
    {"base", {}},
    {"membership", {"base"}},
    {"algorithm", {"membership", "base"}},
    {"transport", {"algorithm", "base"}},
    {"control", {"membership", "base"}},
    {"recorder", {"base"}},
    {"communicator", {"algorithm", "membership", "transport", "control", "recorder", "base"}},
    {"coordinator", {"membership", "control", "base"}},
    {"trace", {"recorder", "base"}},
    {"agent", {"coordinator", "control", "transport", "algorithm", "membership", "recorder", "base"}},
    {"simulator", {"algorithm", "membership", "base"}},
};

std::vector<std::string> includes_of(const fs::path& file) {
  static const std::regex pattern(R"(^\s*#\s*include\s*[<"]([^>"]+)[>"])");
  std::vector<std::string> found;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::smatch match;
    if (std::regex_search(line, match, pattern)) found.push_back(match[1]);
  }
  return found;
}

std::vector<fs::path> sources_below(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".h" || entry.path().extension() == ".cc") found.push_back(entry.path());
  }
  return found;
}

TEST(Layers, IncludesPointDownOnly) {
  for (const auto& entry : fs::directory_iterator(source_root / "src")) {
    const std::string layer = entry.path().filename();
    ASSERT_TRUE(allowed.contains(layer)) << "src/" << layer << " is not a known layer";
    for (const fs::path& file : sources_below(entry.path())) {
      for (const std::string& include : includes_of(file)) {
        if (include.find('/') == std::string::npos) continue;  // <algorithm> is the standard's
        const std::string first = include.substr(0, include.find('/'));
        if (first == layer || !allowed.contains(first)) continue;
        EXPECT_TRUE(allowed.at(layer).contains(first)) << file << " includes " << include;
      }
    }
  }
}

TEST(Layers, DecidingCodeNeitherWaitsNorReadsAClock) {
  const std::set<std::string> forbidden = {
      "thread",   "mutex",  "condition_variable", "fstream", "unistd.h", "ctime",     "time.h", "future",
      "asio.hpp", "cstdio", "iostream",           "random",  "fcntl.h",  "sys/mman.h"};
  for (const char* layer : {"membership", "algorithm"}) {
    for (const fs::path& file : sources_below(source_root / "src" / layer)) {
      for (const std::string& include : includes_of(file)) {
        EXPECT_FALSE(forbidden.contains(include)) << file << " includes <" << include << ">";
      }
      std::ifstream stream(file);
      const std::string text{std::istreambuf_iterator<char>(stream), {}};
      EXPECT_EQ(text.find("::now("), std::string::npos) << file << " reads a clock; time is an argument here";
    }
  }
}

TEST(Layers, PublicHeadersIncludeNoThirdParty) {
  for (const fs::path& file : sources_below(source_root / "include")) {
    for (const std::string& include : includes_of(file)) {
      const bool standard = include.find('/') == std::string::npos && include.find('.') == std::string::npos;
      EXPECT_TRUE(standard || include.starts_with("closeranks/")) << file << " includes " << include;
    }
  }
}

TEST(Layers, FilesStayReadable) {
  for (const char* folder : {"src", "include", "tools", "bindings"}) {
    for (const fs::path& file : sources_below(source_root / folder)) {
      std::ifstream stream(file);
      std::size_t lines = 0;
      std::string head;
      for (std::string line; std::getline(stream, line); ++lines) {
        if (lines < 12) head += line + "\n";
      }
      EXPECT_TRUE(lines <= 600 || head.find("one thing") != std::string::npos)
          << file << " has " << lines << " lines and its head does not say why it is one thing";
    }
  }
}

}  // namespace
