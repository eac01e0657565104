// The entries of a group that this member has entered and that are not complete: what each is, and where its bytes lie.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "algorithm/plan.h"
#include "base/assert.h"
#include "communicator/operation.h"
#include "transport/segment_layout.h"

namespace closeranks::communicator {

// One side of an entry as its descriptor names it: where byte 0 of its unit 0 is.
struct Side {
  transport::Place place = transport::Place::none;
  std::uint64_t offset = 0;
};

struct InFlight {
  std::uint64_t sequence = 0;
  std::shared_ptr<Operation> operation;
  bool table = false;      // an all_to_all's first entry: its sizes
  algorithm::Range piece;  // of each unit of the call, of each pair of an all_to_all
  algorithm::EntryPlan plan;
  Side input;
  Side output;  // style share only: others write there
  std::uint64_t staged_offset = 0;
  std::uint64_t staged_bytes = 0;  // of this member's region; 0: none
  // Bit b: this member has block b, and has put it into its caller's output: there is nothing of it in the region.
  std::uint64_t placed = 0;
};

// At most `capacity` entries with ascending numbers, without gaps. Allocates nothing after its construction.
class EntryRing {
 public:
  // `capacity`: a power of 2.
  explicit EntryRing(std::uint32_t capacity) : ring_(capacity), mask_(capacity - 1) {
    CR_ASSERT(capacity > 0 && (capacity & mask_) == 0);
  }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] InFlight& front() { return at(first_); }
  [[nodiscard]] const InFlight& front() const { return ring_[first_ & mask_]; }
  [[nodiscard]] InFlight& at(std::uint64_t sequence) {
    CR_ASSERT(sequence - first_ < size_);
    return ring_[sequence & mask_];
  }
  // The place of the next entry, to be filled in.
  InFlight& push(std::uint64_t sequence) {
    CR_ASSERT(size_ < ring_.size() && (size_ == 0 || sequence == first_ + size_));
    if (size_ == 0) first_ = sequence;
    ++size_;
    InFlight& entry = ring_[sequence & mask_];
    entry.sequence = sequence;
    return entry;
  }
  // push() is undone.
  void take_back() { --size_; }
  void pop() {
    front().operation.reset();
    ++first_;
    --size_;
  }
  template <class Visitor>
  void for_each(Visitor&& visit) const {
    for (std::uint64_t i = 0; i < size_; ++i) visit(ring_[(first_ + i) & mask_]);
  }

 private:
  std::vector<InFlight> ring_;  // entry q in place q mod capacity
  std::uint64_t mask_;
  std::uint64_t first_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace closeranks::communicator
