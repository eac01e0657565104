// Which fork children of this process are still there. A child inherits the arena's pages, and after the fork its
// parent goes on using them: a block must not be handed out again while a child that was forked from it may still read
// it there. (Private memory needs no such care: the kernel keeps a copy for the child.)
//
// Each child holds the writing end of a pipe, which the kernel closes when it ends or calls exec; its own children
// inherit the end with the pages. A child that closes all its descriptors is taken for gone.
#pragma once

#include <cstdint>
#include <vector>

#include "base/file_descriptor.h"

namespace closeranks::transport {

// Threads: one at a time, as its owner's lock has it.
class ForkChildren {
 public:
  // Around each fork, in the order of pthread_atfork.
  void before_fork();
  void in_parent();
  // The child has no use for any of it but to hold its end of the pipe.
  void in_child();

  // Forks up to now.
  [[nodiscard]] std::uint64_t forks() const { return forks_; }
  // Forgets those that have ended. True if there were any. A system call while there are children, else nothing.
  bool forget_ended();
  // True while a child may be there that was forked after `forks` were counted.
  [[nodiscard]] bool any_since(std::uint64_t forks) const;

 private:
  struct Child {
    std::uint64_t number = 0;  // of its fork: 1, 2, ...
    FileDescriptor alive;      // reads end-of-file once it is gone; invalid: that cannot be told, it stays for good
  };
  std::uint64_t forks_ = 0;
  std::vector<Child> children_;
  FileDescriptor parents_end_;
  FileDescriptor childs_end_;
};

}  // namespace closeranks::transport
