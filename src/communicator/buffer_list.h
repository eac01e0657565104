// A list of buffers that counts as one concatenated buffer (communicator.h: Call).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "closeranks/communicator.h"
#include "communicator/kernels.h"

namespace closeranks::communicator {

std::uint64_t total_bytes(const std::vector<Buffer>& buffers);
// The same buffers in the same order: the call is in place.
bool same_memory(const std::vector<Buffer>& left, const std::vector<Buffer>& right);

// The only buffer of the list that is not empty; nullopt: there are several, or none. (Buffers that happen to lie one
// behind the other may belong to several tensors.)
std::optional<Buffer> only_buffer(const std::vector<Buffer>& buffers);
// Whether any byte of `memory` is in one of the buffers.
bool overlaps(const Buffer& memory, const std::vector<Buffer>& buffers);

// Copies `bytes` from the concatenation, starting at `offset`, to `to`.
// Precondition of these: offset + bytes <= total_bytes(buffers).
void copy_from(const std::vector<Buffer>& buffers, std::uint64_t offset, std::byte* to, std::uint64_t bytes);
// Copies `bytes` at `from` into the concatenation, starting at `offset`. `from` may be that very place.
void copy_to(const std::vector<Buffer>& buffers, std::uint64_t offset, const std::byte* from, std::uint64_t bytes,
             Reuse reuse = Reuse::soon);
void fill_zeros(const std::vector<Buffer>& buffers, std::uint64_t offset, std::uint64_t bytes);
// Where [offset, offset + bytes) lies in the concatenation, or nullptr when it is not all in one buffer.
std::byte* range_in(const std::vector<Buffer>& buffers, std::uint64_t offset, std::uint64_t bytes);

}  // namespace closeranks::communicator
