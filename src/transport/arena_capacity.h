// How large an arena may be on this machine.
#pragma once

#include <cstdint>
#include <string>

namespace closeranks::transport {

// Less is no arena: it would be full with the first model.
inline constexpr std::uint64_t least_arena_capacity = 64ull << 20;

// Bytes of data for the arena of one of `processes` that map each other's: the machine's memory, less where the
// address space is limited (RLIMIT_AS, RLIMIT_FSIZE, very many processes). 0: too little is left for an arena to be of
// use; the reason is logged.
std::uint64_t arena_capacity(std::uint32_t processes);

// The one log line of a process that goes without.
void say_without_arena(const std::string& why);

}  // namespace closeranks::transport
