#include "transport/arena_layout.h"

#include <unistd.h>

#include "transport/fixed_text.h"

namespace closeranks::transport {
namespace {

Status refuse(const ArenaIdentity& identity, const std::string& why) {
  Status status(Fault::refused, Move::give_up, describe(identity) + " is refused: " + why);
  status.slot = identity.slot;
  status.worker = identity.worker;
  return status;
}

}  // namespace

std::string describe(const ArenaIdentity& identity) {
  return "the shared arena of slot " + std::to_string(identity.slot.value()) + " (worker " +
         std::to_string(identity.worker.value()) + ")";
}

ArenaHeader make_arena_header(const ArenaIdentity& identity, std::uint64_t total_bytes) {
  ArenaHeader header;
  header.magic = arena_magic;
  header.version = arena_version;
  header.header_bytes = sizeof(ArenaHeader);
  header.total_bytes = total_bytes;
  header.data_offset = arena_data_offset;
  header.worker = identity.worker.value();
  header.slot = identity.slot.value();
  header.pid = static_cast<std::uint32_t>(::getpid());
  write_fixed_text(header.job, identity.job);
  return header;
}

Status check_arena_size(const ArenaIdentity& expected, std::uint64_t total_bytes) {
  if (total_bytes < arena_data_offset || total_bytes > arena_data_offset + arena_address_budget ||
      total_bytes % huge_page_bytes != 0) {
    return refuse(expected, "it has " + std::to_string(total_bytes) + " bytes");
  }
  return {};
}

Status check_arena_header(const ArenaHeader& found, const ArenaIdentity& expected, std::uint64_t total_bytes) {
  const ArenaHeader wanted = make_arena_header(expected, total_bytes);
  if (found.magic != wanted.magic) {
    return refuse(expected, "it is no closeranks arena (magic number)");
  }
  if (found.version != wanted.version) {
    return refuse(expected, "its layout version is " + std::to_string(found.version) + ", expected " +
                                std::to_string(wanted.version));
  }
  if (found.header_bytes != wanted.header_bytes || found.total_bytes != wanted.total_bytes ||
      found.data_offset != wanted.data_offset) {
    return refuse(expected, "its sizes do not fit together");
  }
  if (read_fixed_text(found.job) != read_fixed_text(wanted.job)) {
    return refuse(expected, "it belongs to job " + printable_text(read_fixed_text(found.job)) + ", not to " +
                                read_fixed_text(wanted.job));
  }
  if (found.worker != wanted.worker || found.slot != wanted.slot) {
    return refuse(expected,
                  "it belongs to worker " + std::to_string(found.worker) + " in slot " + std::to_string(found.slot));
  }
  return {};
}

}  // namespace closeranks::transport
