#include "base/file_descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "base/log.h"

namespace closeranks {
namespace {

// Slots hold descriptor + 1; 0 is free. Plain atomics: the handler runs in a fork child, where locks may be held by
// threads that do not exist there.
std::array<std::atomic<int>, fork_table_size> fork_table{};
// Highest slot ever used: the common close of an unlisted descriptor looks at a few words only.
std::atomic<int> fork_table_used{0};

void close_listed() {
  const int used = fork_table_used.load(std::memory_order_relaxed);
  for (int i = 0; i < used; ++i) {
    const int listed = fork_table[static_cast<std::size_t>(i)].exchange(0, std::memory_order_relaxed);
    if (listed > 0) {
      ::close(listed - 1);
    }
  }
}

}  // namespace

void close_in_fork_child(int descriptor) {
  static std::once_flag registered;
  std::call_once(registered, [] {
    if (pthread_atfork(nullptr, nullptr, &close_listed) != 0) {
      log::warning("no handler for fork could be registered: forked children will keep closeranks' sockets open");
    }
  });
  keep_in_fork_child(descriptor);  // listed twice, it would outlive its close
  for (int i = 0; i < fork_table_size; ++i) {
    int expected = 0;
    if (fork_table[static_cast<std::size_t>(i)].compare_exchange_strong(expected, descriptor + 1)) {
      int used = fork_table_used.load();
      while (used <= i && !fork_table_used.compare_exchange_weak(used, i + 1)) {
      }
      return;
    }
  }
  static std::once_flag warned;
  std::call_once(warned, [] {
    log::warning("more than " + std::to_string(fork_table_size) +
                 " descriptors to close in fork children; further ones stay open there");
  });
}

void keep_in_fork_child(int descriptor) {
  const int used = fork_table_used.load();
  for (int i = 0; i < used; ++i) {
    int expected = descriptor + 1;
    if (fork_table[static_cast<std::size_t>(i)].compare_exchange_strong(expected, 0)) {
      return;
    }
  }
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = other.release();
  }
  return *this;
}

void FileDescriptor::reset() {
  if (descriptor_ >= 0) {
    keep_in_fork_child(descriptor_);
    ::close(descriptor_);
    descriptor_ = -1;
  }
}

FileDescriptor FileDescriptor::duplicate() const { return FileDescriptor(::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0)); }

}  // namespace closeranks
