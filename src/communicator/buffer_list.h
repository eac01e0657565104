// A list of buffers that counts as one concatenated buffer (communicator.h: Call).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "closeranks/communicator.h"

namespace closeranks::communicator {

std::uint64_t total_bytes(const std::vector<Buffer>& buffers);
// The same buffers in the same order: the call is in place.
bool same_memory(const std::vector<Buffer>& left, const std::vector<Buffer>& right);

// Copies `bytes` from the concatenation, starting at `offset`, to `to`.
// Precondition of both: offset + bytes <= total_bytes(buffers).
void copy_from(const std::vector<Buffer>& buffers, std::uint64_t offset, std::byte* to, std::uint64_t bytes);
// Copies `bytes` at `from` into the concatenation, starting at `offset`.
void copy_to(const std::vector<Buffer>& buffers, std::uint64_t offset, const std::byte* from, std::uint64_t bytes);

}  // namespace closeranks::communicator
