// Memory of a memfd, mapped shared and left out of fork children; unmapped on destruction. A fork child has nothing
// mapped there, so an object that it inherits unmaps nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/file_descriptor.h"
#include "base/system_error.h"
#include "closeranks/status.h"

namespace closeranks::transport {

enum class Access : std::uint8_t { read_only, read_write };

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), owner_(other.owner_) {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  // Maps all `bytes` of `descriptor`. `what` names it in the error (Fault::system).
  static Result<Mapping> map(const FileDescriptor& descriptor, std::uint64_t bytes, Access access,
                             std::string_view what);
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int owner_ = 0;  // pid of the process that mapped it
};

// A sparse, zeroed memfd of `bytes`, sealed against resizing, close-on-exec and closed in fork children.
Result<FileDescriptor> make_memfd(const std::string& name, std::uint64_t bytes);

// Size in bytes of a memfd that a peer sent, once it is proved to be one that cannot shrink under us: a regular file
// with the seals of make_memfd. Else Fault::refused.
Result<std::uint64_t> sealed_bytes(const FileDescriptor& descriptor, std::string_view what);

}  // namespace closeranks::transport
