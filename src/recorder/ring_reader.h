// A recorder's file, decoded: whatever became of its writer, and whoever wrote it. No byte is trusted: what makes no
// sense is left out and counted, and memory stays within a small multiple of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "closeranks/status.h"
#include "recorder/trace.h"

namespace closeranks::recorder {

// True if a file that begins with `bytes` says that it is a recorder's, of this version or another.
bool is_ring(std::span<const std::byte> bytes);

// Where the end of a job is all that matters, and soon: what is older than the newest so many records of each ring is
// left out, and counted as overwritten.
inline constexpr std::uint64_t all_records = std::numeric_limits<std::uint64_t>::max();

// `file`: the name that WorkerTrace::file gets. Fault::refused: not a recorder's file (zero-filled, say), or of another
// version, both named. Of a file that is cut, what is left.
Result<WorkerTrace> read_ring(std::span<const std::byte> bytes, const std::string& file,
                              std::uint64_t newest = all_records);

// Of a live worker's file, too: what it had written when it was read. Fault::system: it cannot be read.
Result<WorkerTrace> read_ring_file(const std::string& path, std::uint64_t newest = all_records);

}  // namespace closeranks::recorder
