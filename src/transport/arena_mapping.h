// Address space of an arena: a memfd mapped shared at an address aligned to huge pages, so that its huge pages are
// mapped as such; unmapped on destruction. Unlike Mapping it may be inherited by fork children: datasets that were
// loaded before the fork are read there. An object that a child inherits unmaps nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/file_descriptor.h"
#include "closeranks/status.h"
#include "transport/mapping.h"

namespace closeranks::transport {

enum class Inheritance : std::uint8_t {
  inherited,  // fork children have it, and core dumps show it: the process's own memory
  withheld,   // neither: another process's memory
};

class ArenaMapping {
 public:
  ArenaMapping() = default;
  ArenaMapping(ArenaMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), owner_(other.owner_) {}
  ArenaMapping& operator=(ArenaMapping&& other) noexcept;
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;
  ~ArenaMapping();

  // Maps the first `bytes` (a multiple of the page) of `descriptor`. `what` names it in the error (Fault::system).
  static Result<ArenaMapping> map(const FileDescriptor& descriptor, std::uint64_t bytes, Access access,
                                  Inheritance inheritance, std::string_view what);
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  int owner_ = 0;  // pid of the process that mapped it
};

}  // namespace closeranks::transport
