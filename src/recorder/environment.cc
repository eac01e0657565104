#include "recorder/environment.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "recorder/recording.h"

namespace closeranks::recorder {

std::shared_ptr<RingWriter> open_from_environment(const EngineOptions& worker) {
  const char* directory = std::getenv("CLOSERANKS_TRACE_DIR");
  if (!recording || directory == nullptr || *directory == '\0') return nullptr;
  RingOptions options;
  options.directory = directory;
  options.job = worker.job;
  options.slot = worker.slot;
  options.worker = worker.worker;
  options.slots_in_job = worker.slots;
  if (const char* text = std::getenv("CLOSERANKS_TRACE_BYTES")) {
    const std::string_view number(text);
    std::from_chars(number.data(), number.data() + number.size(), options.bytes);
  }
  Result<std::shared_ptr<RingWriter>> ring = RingWriter::open(options);
  if (!ring.ok()) {
    log::warning("nothing of this process is recorded: " + ring.status().message() + "; the job goes on without");
    return nullptr;
  }
  if (ring.value()->bytes() < ring.value()->wanted_bytes()) {
    log::warning("little of this process is recorded: there was room for " + std::to_string(ring.value()->bytes()) +
                 " bytes in " + options.directory);
  }
  return std::move(ring.value());
}

}  // namespace closeranks::recorder
