// Reads a worker's segment from outside the group: the demo's killer picks its moment with it, and a person can look.
// Mapped read-only; a snapshot is never consistent, it is what the words were while they were read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file_descriptor.h"
#include "closeranks/ids.h"
#include "closeranks/status.h"
#include "transport/segment.h"

namespace closeranks::transport {

class OutsideView {
 public:
  // A memfd from fetch_segment(). Identity and shape are taken from its header, after checking it against the size.
  static Result<OutsideView> open(FileDescriptor descriptor);
  // All segments that the process `pid` has open, found through /proc/PID/fd (same user or root). Empty when none or
  // not permitted.
  static std::vector<OutsideView> open_all(int pid);

  [[nodiscard]] const SegmentIdentity& identity() const { return segment_.identity(); }
  [[nodiscard]] const SegmentShape& shape() const { return segment_.shape(); }
  [[nodiscard]] std::uint32_t pid() const { return pid_; }
  [[nodiscard]] std::uint64_t entered() const;
  [[nodiscard]] std::uint64_t completed() const;
  [[nodiscard]] std::uint64_t connected() const;
  // As written (algorithm::BlockWord::unpack reads it).
  [[nodiscard]] std::uint64_t block_word(std::uint64_t sequence, std::uint32_t block) const;

  struct Descriptor {
    std::uint64_t sequence = 0;
    std::uint64_t signature = 0;
    std::uint64_t unit_bytes = 0;
    std::uint32_t blocks = 0;  // 0: inlined
    std::uint8_t kind = 0;     // OpKind
    std::uint8_t dtype = 0;    // DType
    std::uint8_t reduce = 0;   // ReduceOp
  };
  // The descriptor in the ring slot of `sequence`; compare its `sequence` before believing it.
  [[nodiscard]] Descriptor descriptor(std::uint64_t sequence) const;

 private:
  explicit OutsideView(Segment segment) : segment_(std::move(segment)) {}
  Segment segment_;
  std::uint32_t pid_ = 0;
};

}  // namespace closeranks::transport
