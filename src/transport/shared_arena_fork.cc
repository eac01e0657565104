// What a fork does to an arena: before it all locks are taken, so that the child finds everything whole; after it the
// child's mapping becomes private.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/shared_arena.h"

namespace closeranks::transport {

// The arenas of this process, for the handlers of fork: pthread_atfork takes no argument. Leaked, so that no exit
// handler outlives it. Its lock comes before those of the arenas.
struct LiveArenas {
  std::mutex mutex;
  std::vector<OwnArena*> arenas;

  static LiveArenas& instance() {
    static auto* made = [] {
      if (::pthread_atfork(before_fork, in_parent, in_child) != 0) {
        log::warning("no handler for fork could be registered: forked children must not use tensors that they inherit");
      }
      return new LiveArenas;
    }();
    return *made;
  }
  static void before_fork() {
    instance().mutex.lock();
    for (OwnArena* arena : instance().arenas) arena->before_fork();
  }
  static void in_parent() {
    for (OwnArena* arena : instance().arenas) arena->after_fork_in_parent();
    instance().mutex.unlock();
  }
  static void in_child() {
    for (OwnArena* arena : instance().arenas) arena->after_fork_in_child();
    instance().mutex.unlock();
  }
};

OwnArena::OwnArena(ArenaIdentity identity, FileDescriptor descriptor, ArenaMapping mapping, std::uint64_t capacity)
    : identity_(std::move(identity)),
      descriptor_(std::move(descriptor)),
      mapping_(std::move(mapping)),
      capacity_(capacity),
      process_(::getpid()),
      allocator_(arena_data_offset, capacity) {
  // A fork child needs it for a moment, and closes it itself.
  keep_in_fork_child(descriptor_.get());
  LiveArenas& live = LiveArenas::instance();
  const std::lock_guard lock(live.mutex);
  live.arenas.push_back(this);
}

OwnArena::~OwnArena() {
  LiveArenas& live = LiveArenas::instance();
  const std::lock_guard lock(live.mutex);
  std::erase(live.arenas, this);
}

void OwnArena::before_fork() {
  mutex_.lock();
  if (descriptor_.valid()) {
    children_.before_fork();
  }
}

void OwnArena::after_fork_in_parent() {
  if (descriptor_.valid()) {
    children_.in_parent();
  }
  mutex_.unlock();
}

// A child of the child finds no descriptor, and everything as its parent had it.
void OwnArena::after_fork_in_child() {
  if (descriptor_.valid()) {
    children_.in_child();
    // From shared to private: what is detached is so already. Refused only where the system promises no more memory
    // than it has; then the child's writes are seen by its parent.
    for (const ArenaRange gap : detached_.gaps_in({0, mapping_.bytes()})) {
      static_cast<void>(::mmap(mapping_.data() + gap.offset, gap.bytes, PROT_READ | PROT_WRITE,
                               MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE, descriptor_.get(),
                               static_cast<off_t>(gap.offset)));
    }
    descriptor_.reset();
  }
  mutex_.unlock();
}

}  // namespace closeranks::transport
