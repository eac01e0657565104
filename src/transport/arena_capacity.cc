#include "transport/arena_capacity.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/log.h"
#include "transport/arena_allocator.h"
#include "transport/arena_layout.h"

namespace closeranks::transport {
namespace {

// Address space this process may still take under RLIMIT_AS; nullopt: as much as it likes.
std::optional<std::uint64_t> address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

}  // namespace

void say_without_arena(const std::string& why) {
  log::warning("no shared arena: " + why + ". Collectives copy every tensor through their staging memory");
}

std::uint64_t arena_capacity(std::uint32_t processes) {
  processes = std::max(processes, 1u);
  const auto physical =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::uint64_t capacity =
      std::min((physical + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes, arena_address_budget / processes);
  std::string limit = capacity < physical ? std::to_string(processes) + " processes leave no address space for it"
                                          : "the machine has too little memory for one";
  // Half of what is left, for the arenas of all and for the second view of its own that a failed op may need.
  if (const auto left = address_space_left(); left.has_value() && *left / 2 / (processes + 1) < capacity) {
    capacity = *left / 2 / (processes + 1);
    limit = "the address space of this process is limited (ulimit -v)";
  }
  rlimit file{};
  if (::getrlimit(RLIMIT_FSIZE, &file) == 0 && file.rlim_cur != RLIM_INFINITY &&
      file.rlim_cur < capacity + arena_data_offset) {
    capacity = file.rlim_cur > arena_data_offset ? file.rlim_cur - arena_data_offset : 0;
    limit = "the size of files is limited (ulimit -f), and with it that of shared memory";
  }
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(ArenaAllocator::page_bytes)) {
    capacity = 0;
    limit = "pages of this machine are not of " + std::to_string(ArenaAllocator::page_bytes) + " bytes";
  }
  if (capacity < least_arena_capacity) {
    say_without_arena(limit);
    return 0;
  }
  return capacity / huge_page_bytes * huge_page_bytes;
}

}  // namespace closeranks::transport
