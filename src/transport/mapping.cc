#include "transport/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace closeranks::transport {
namespace {

constexpr int wanted_seals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Mapping old(std::move(*this));
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    owner_ = other.owner_;
  }
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr && owner_ == ::getpid()) {
    ::munmap(data_, bytes_);
  }
}

Result<Mapping> Mapping::map(const FileDescriptor& descriptor, std::uint64_t bytes, Access access,
                             std::string_view what) {
  const int protection = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) {
    return system_error("cannot map " + std::to_string(bytes) + " bytes of " + std::string(what), errno);
  }
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  mapping.owner_ = ::getpid();
  // A forked data loader must hold no mapping: it would keep the memory of a closed group alive, and it could write
  // into it (protocol rule 24).
  if (::madvise(data, bytes, MADV_DONTFORK) != 0) {
    return system_error("cannot keep fork children out of " + std::string(what), errno);
  }
  return mapping;
}

Result<FileDescriptor> make_memfd(const std::string& name, std::uint64_t bytes) {
  FileDescriptor descriptor(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) {
    return system_error("cannot make the shared memory " + name, errno);
  }
  if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("cannot give " + std::to_string(bytes) + " bytes to the shared memory " + name +
                            " (is there a file size limit? see ulimit -f)",
                        errno);
  }
  if (::fcntl(descriptor.get(), F_ADD_SEALS, wanted_seals) != 0) {
    return system_error("cannot seal the shared memory " + name, errno);
  }
  close_in_fork_child(descriptor.get());
  return descriptor;
}

Result<std::uint64_t> sealed_bytes(const FileDescriptor& descriptor, std::string_view what) {
  struct stat status{};
  if (::fstat(descriptor.get(), &status) != 0) {
    return system_error("cannot look at " + std::string(what), errno);
  }
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (!S_ISREG(status.st_mode) || seals < 0 || (seals & wanted_seals) != wanted_seals) {
    return Status(
        Fault::refused, Move::give_up,
        std::string(what) + " is refused: it is not a sealed memfd, its sender could shrink it while it is used");
  }
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace closeranks::transport
