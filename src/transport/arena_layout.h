// The layout of an arena: a header in the first page, data from the second huge page on. Little endian (the host's:
// arenas never leave it). docs/segment.md draws it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "closeranks/ids.h"
#include "closeranks/status.h"

namespace closeranks::transport {

inline constexpr std::uint64_t huge_page_bytes = 2ull << 20;
inline constexpr std::uint64_t arena_magic = 0x314e5241524b4c43;  // "CLKRARN1"
inline constexpr std::uint32_t arena_version = 1;
// Where data begins: the header has a huge page of address space for itself.
inline constexpr std::uint64_t arena_data_offset = huge_page_bytes;
// Data of all arenas that one process maps: a quarter of the 128 TiB that it can address.
inline constexpr std::uint64_t arena_address_budget = 32ull << 40;

// Whose arena. Compared with the header when a peer's is attached.
struct ArenaIdentity {
  std::string job;  // first 63 bytes count
  WorkerId worker;
  Slot slot;
};

struct ArenaHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t header_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t data_offset = 0;
  std::uint64_t worker = 0;
  std::uint32_t slot = 0;
  std::uint32_t pid = 0;       // in the maker's own pid namespace
  std::array<char, 64> job{};  // zero-terminated
  std::array<std::uint64_t, 2> reserved{};
};
static_assert(sizeof(ArenaHeader) == 128);

// Of an arena of `total_bytes`, data and header, made by this process.
ArenaHeader make_arena_header(const ArenaIdentity& identity, std::uint64_t total_bytes);
// ok if `total_bytes` can be an arena and `found` is the header of the expected one; else Fault::refused, naming the
// first difference. The first is checked before anything is mapped.
Status check_arena_size(const ArenaIdentity& expected, std::uint64_t total_bytes);
Status check_arena_header(const ArenaHeader& found, const ArenaIdentity& expected, std::uint64_t total_bytes);

std::string describe(const ArenaIdentity& identity);

// [offset, offset + bytes) is data of an arena of `capacity` bytes of data. No sum overflows: both come from peers.
constexpr bool inside_arena(std::uint64_t capacity, std::uint64_t offset, std::uint64_t bytes) {
  return offset >= arena_data_offset && offset - arena_data_offset <= capacity &&
         bytes <= capacity - (offset - arena_data_offset);
}

}  // namespace closeranks::transport
