// Logging: one line per event worth a person's time, to stderr, naming job, slot and worker. Thin over spdlog's
// header-only form, compiled in one file only; nothing else includes spdlog.
#pragma once

#include <string>
#include <string_view>

namespace closeranks::log {

enum class Level { debug, info, warning, error };

// Prefix of each line, e.g. "slot 2 worker 3". Level from CLOSERANKS_LOG (debug, info, warning, error; default
// warning). Call once at start; thread-safe afterwards.
void configure(std::string_view prefix);
void write(Level level, std::string_view message);
inline void debug(std::string_view message) { write(Level::debug, message); }
inline void info(std::string_view message) { write(Level::info, message); }
inline void warning(std::string_view message) { write(Level::warning, message); }
inline void error(std::string_view message) { write(Level::error, message); }

}  // namespace closeranks::log
