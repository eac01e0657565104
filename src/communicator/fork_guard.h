// A forked child (a data loader) inherits the objects of its parent's engine, but none of its threads, and no mapping.
// Such objects are dead in the child: their functions say so, and their destructors touch nothing.
#pragma once

#include <cstdint>

#include "closeranks/status.h"

namespace closeranks::communicator {

// Remembers the process it was made in.
class ForkGuard {
 public:
  ForkGuard();
  // True in a fork child of the process it was made in. One load.
  [[nodiscard]] bool in_child() const;
  // What every function answers there.
  static Status status();

 private:
  std::uint64_t generation_;
};

}  // namespace closeranks::communicator
