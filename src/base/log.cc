#include "base/log.h"

#define SPDLOG_HEADER_ONLY
#define SPDLOG_FMT_EXTERNAL
#define FMT_HEADER_ONLY
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/assert.h"

namespace closeranks::log {
namespace {

// The process's one sink. Made on first use, replaced by configure().
std::shared_ptr<spdlog::logger> make(std::string_view prefix) {
  auto logger = std::make_shared<spdlog::logger>("closeranks", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(prefix.empty() ? "[%H:%M:%S.%e] closeranks %l: %v"
                                     : "[%H:%M:%S.%e] closeranks " + std::string(prefix) + " %l: %v");
  const char* wanted = std::getenv("CLOSERANKS_LOG");
  logger->set_level(wanted == nullptr ? spdlog::level::warn : spdlog::level::from_str(wanted));
  logger->flush_on(spdlog::level::debug);
  return logger;
}

std::shared_ptr<spdlog::logger>& logger() {
  static std::shared_ptr<spdlog::logger> instance = make("");
  return instance;
}

}  // namespace

void configure(std::string_view prefix) { logger() = make(prefix); }

void write(Level level, std::string_view message) {
  switch (level) {
    case Level::debug:
      logger()->debug("{}", message);
      return;
    case Level::info:
      logger()->info("{}", message);
      return;
    case Level::warning:
      logger()->warn("{}", message);
      return;
    case Level::error:
      logger()->error("{}", message);
      return;
  }
}

}  // namespace closeranks::log

namespace closeranks {

void assertion_failed(const char* expression, const char* file, int line) {
  log::error("broken invariant: " + std::string(expression) + " at " + file + ":" + std::to_string(line) +
             "; this is a bug in closeranks, the process stops before it can do harm");
  std::abort();
}

}  // namespace closeranks
