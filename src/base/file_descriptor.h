// A file descriptor with one owner, closed on destruction; and the table of those a fork child must not keep.
#pragma once

#include <utility>

namespace closeranks {

// Move-only. -1 means none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { reset(); }

  [[nodiscard]] int get() const { return descriptor_; }
  [[nodiscard]] bool valid() const { return descriptor_ >= 0; }
  // Gives the descriptor away; the caller closes it.
  [[nodiscard]] int release() { return std::exchange(descriptor_, -1); }
  // Closes now (and takes it out of the fork table).
  void reset();
  // A second descriptor of the same open file, close-on-exec; invalid when the system refuses (errno).
  [[nodiscard]] FileDescriptor duplicate() const;

 private:
  int descriptor_ = -1;
};

// A forked child (a data loader) that keeps one of our sockets hides our death from the peers: they see no end of
// file (protocol rule 24). Descriptors in this table are closed in every child of fork(); exec closes them by
// close-on-exec. Any thread. The table holds `fork_table_size` descriptors; beyond that a warning is logged once and
// the descriptor stays open in children.
// A table in the process, not an object, because pthread_atfork takes no argument.
inline constexpr int fork_table_size = 4096;
void close_in_fork_child(int descriptor);
// Must be called before `descriptor` is closed by other means than FileDescriptor::reset().
void keep_in_fork_child(int descriptor);

}  // namespace closeranks
