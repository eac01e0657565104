// One memfd per (group, member): the member's words, its descriptor ring, scratch block, messages and staging region.
// Made and written by that member alone, with three exceptions: owners of blocks write results into the *region* of
// other members and the state of a block into the block words of an entry's lowest contributor, and everybody decides
// entries in rank 0's decision words (policy fail).
//
// A memfd has no name in any file system: a crash leaves nothing behind. It is made at full size but sparse (memory
// is taken as pages are touched), sealed against resizing (so no peer can make our loads fault), close-on-exec, and
// every mapping is left out of fork children. Mappings live as long as the Segment object: the engine keeps those of
// dead members until the group is closed (protocol rule 5).
//
// Threads: the object is immutable after create/attach; its words are atomics. Any thread may use it.
// The layout is documented in docs/segment.md; segment_layout.h has the structs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/file_descriptor.h"
#include "closeranks/ids.h"
#include "closeranks/status.h"
#include "transport/mapping.h"
#include "transport/segment_layout.h"

namespace closeranks::transport {

// Whose segment of which group. Compared with the header when a peer's segment is attached.
struct SegmentIdentity {
  std::string job;  // first 63 bytes count
  GroupKey group;
  std::string group_name;  // for people; first 95 bytes count, not compared
  WorkerId worker;
  Slot slot;
  Rank rank;
};

class Segment {
 public:
  // A fresh segment of this process, zeroed. Fault::system when the kernel refuses (memory, descriptors, file size
  // limit), Fault::invalid_argument for a shape outside its bounds.
  static Result<Segment> create(const SegmentIdentity& identity, const SegmentShape& shape);
  // Maps a segment that came from a peer. Nothing in it is trusted: size, seals, magic, version, identity and shape
  // must be the expected ones, else Fault::refused naming what differs. The descriptor is closed in any case; the
  // mapping needs none.
  static Result<Segment> attach(FileDescriptor descriptor, const SegmentIdentity& expected, const SegmentShape& shape);

  // Of a segment made by create(): what peers get. Invalid for attached ones.
  [[nodiscard]] const FileDescriptor& descriptor() const { return descriptor_; }
  [[nodiscard]] const SegmentShape& shape() const { return shape_; }
  [[nodiscard]] const SegmentIdentity& identity() const { return identity_; }

  // -- words of the recipe (algorithm/group_machine.h says who writes them and when) ------------------------------
  [[nodiscard]] std::atomic<std::uint64_t>& connected() const { return control().connected.value; }
  [[nodiscard]] std::atomic<std::uint64_t>& entered() const { return control().entered.value; }
  [[nodiscard]] std::atomic<std::uint64_t>& completed() const { return control().completed.value; }
  // Who calls the ops here (communicator/issuers.h).
  [[nodiscard]] IssuerLine& issuers() const { return control().issuers; }
  // The word that belongs to `sequence`, in ring slot sequence mod window.
  [[nodiscard]] std::atomic<std::uint64_t>& decision(std::uint64_t sequence) const;
  [[nodiscard]] DescriptorSlot& descriptor_slot(std::uint64_t sequence) const;
  // Precondition: block < shape().max_blocks.
  [[nodiscard]] std::atomic<std::uint64_t>& block_word(std::uint64_t sequence, std::uint32_t block) const;

  // -- bytes ------------------------------------------------------------------------------------------------------
  [[nodiscard]] std::byte* scratch() const { return at(layout_.scratch); }  // shape().scratch_bytes
  [[nodiscard]] std::byte* region() const { return at(layout_.region); }    // shape().region_bytes
  // [offset, offset + bytes) of the region, or nullptr when it is not inside: offsets come from a peer's descriptor
  // and are checked before every use.
  [[nodiscard]] std::byte* region_range(std::uint64_t offset, std::uint64_t bytes) const;

  // -- point to point (communicator/point_to_point.h) ---------------------------------------------------------------
  // Written by this segment's member as the sender to `destination`.
  [[nodiscard]] OutboundWords& outbound(Rank destination) const;
  [[nodiscard]] MessageSlot& message_slot(Rank destination, std::uint32_t slot) const;
  [[nodiscard]] std::byte* message_half(Rank destination, std::uint32_t slot, std::uint32_t half) const;
  // Written by this segment's member as the receiver from `source`.
  [[nodiscard]] InboundWords& inbound(Rank source) const;
  [[nodiscard]] std::atomic<std::uint64_t>& consumed(Rank source, std::uint32_t slot) const;
  // All words of ours towards `other` as in a fresh segment: another worker takes its place. Precondition: the one
  // before is gone, and the new one does not look at them yet.
  void forget_messages(Rank other) const;

 private:
  friend class OutsideView;
  Segment() = default;
  void advise_huge_pages() const;
  [[nodiscard]] std::uint64_t in_window(std::uint64_t sequence) const { return sequence & (shape_.window - 1); }
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return mapping_.data() + offset; }
  [[nodiscard]] ControlWords& control() const { return *reinterpret_cast<ControlWords*>(at(layout_.control)); }

  SegmentIdentity identity_;
  SegmentShape shape_;
  SegmentLayout layout_;
  FileDescriptor descriptor_;
  Mapping mapping_;
};

}  // namespace closeranks::transport
