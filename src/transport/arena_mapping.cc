#include "transport/arena_mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "transport/arena_layout.h"

namespace closeranks::transport {

ArenaMapping& ArenaMapping::operator=(ArenaMapping&& other) noexcept {
  if (this != &other) {
    ArenaMapping old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    owner_ = other.owner_;
  }
  return *this;
}

ArenaMapping::~ArenaMapping() {
  if (data_ != nullptr && owner_ == ::getpid()) {
    ::munmap(data_, bytes_);
  }
}

Result<ArenaMapping> ArenaMapping::map(const FileDescriptor& descriptor, std::uint64_t bytes, Access access,
                                       Inheritance inheritance, std::string_view what) {
  const auto refused = [&](int error) {
    return system_error("cannot map " + std::to_string(bytes) + " bytes of " + std::string(what), error);
  };
  // Reserved first, a huge page longer, to find an aligned place in it: the kernel aligns by itself only sometimes.
  const std::uint64_t reserved = bytes + huge_page_bytes;
  void* place = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) {
    return refused(errno);
  }
  auto* begin = static_cast<std::byte*>(place);
  const std::uint64_t skipped = -reinterpret_cast<std::uintptr_t>(begin) % huge_page_bytes;
  const int protection = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  if (::mmap(begin + skipped, bytes, protection, MAP_SHARED | MAP_FIXED, descriptor.get(), 0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, reserved);
    return refused(error);
  }
  if (skipped != 0) {
    ::munmap(begin, skipped);
  }
  ::munmap(begin + skipped + bytes, reserved - skipped - bytes);
  ArenaMapping mapping;
  mapping.data_ = begin + skipped;
  mapping.bytes_ = bytes;
  mapping.owner_ = ::getpid();
  if (inheritance == Inheritance::withheld) {
    if (::madvise(mapping.data_, bytes, MADV_DONTFORK) != 0) {
      return system_error("cannot keep fork children out of " + std::string(what), errno);
    }
    // Advice only: without it a core dump has every peer's tensors in it.
    static_cast<void>(::madvise(mapping.data_, bytes, MADV_DONTDUMP));
  }
  // Advice only: where huge pages are off, everything works with small ones.
  static_cast<void>(::madvise(mapping.data_, bytes, MADV_HUGEPAGE));
  return mapping;
}

}  // namespace closeranks::transport
