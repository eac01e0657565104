// One arena per process: a memfd from which large tensors are allocated, mapped by every peer of the host, so that
// collectives read and write them in place. Sparse: it has the address space of the machine's memory, and takes memory
// as pages are touched. docs/arenas.md is about its use, docs/segment.md about its layout.
//
// Offsets count from the start of the memfd; the header page is not data, so 0 is never the offset of a block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/file_descriptor.h"
#include "closeranks/ids.h"
#include "closeranks/shared_memory.h"
#include "closeranks/status.h"
#include "transport/arena_allocator.h"
#include "transport/arena_capacity.h"
#include "transport/arena_layout.h"
#include "transport/arena_mapping.h"
#include "transport/fork_children.h"
#include "transport/mapping.h"

namespace closeranks::transport {

// What becomes of the pages that peers still have of a detached range, once its block is released.
enum class OldPages : std::uint8_t {
  kept,        // until the arena ends: a peer may go on reading them for an op that this process has given up alone
  given_back,  // nobody needs what is in them
};

// This process's own arena. Any thread, except where a function says more.
//
// A fork child has the arena's pages as a private mapping of the same memory: it reads what was there at the fork (and
// what its parent writes later), and its own writes are its own, so that it can disturb no collective. A block that is
// released while children are there which were forked from it is kept for them. It has no descriptor, and can allocate
// nothing.
class OwnArena : public SharedMemory {
 public:
  // `capacity` in bytes of data, rounded up to huge pages. When the system refuses that much address space, the arena
  // gets less, at last none: it then has a header alone, its allocate() gives nullptr, and one line is logged. 0 asks
  // for that, without the line. Fault::system: no memfd at all.
  static Result<std::shared_ptr<OwnArena>> create(const ArenaIdentity& identity, std::uint64_t capacity);
  // Precondition: no block is in use by anybody. In a fork child the memory stays mapped.
  ~OwnArena() override;
  OwnArena(const OwnArena&) = delete;
  OwnArena& operator=(const OwnArena&) = delete;

  [[nodiscard]] const FileDescriptor& descriptor() const { return descriptor_; }  // what peers get
  [[nodiscard]] const ArenaIdentity& identity() const { return identity_; }

  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* block) override;
  [[nodiscard]] bool contains(const void* data, std::size_t bytes) const override {
    return offset_of(data, bytes).has_value();
  }
  [[nodiscard]] Usage usage() const override;
  // No block is given from now on: the engine has stopped, or is about to. Blocks in use stay.
  void close();

  // Where peers find [data, data + bytes), or nullopt: not in the arena, detached in part, or in a fork child.
  // Lock-free while nothing has been detached. The answer holds until the next detach(): the caller keeps the two
  // apart.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* data, std::size_t bytes) const;
  // What peers see at [offset, offset + bytes), for the engine's own part of an op: the block itself, or, once any
  // range was detached, another view of the same pages. nullptr: not inside the arena's data.
  [[nodiscard]] std::byte* range(std::uint64_t offset, std::uint64_t bytes) const;

  // From its return on no peer can change a byte of [offset, offset + bytes) as this process sees it, nor does a peer
  // see what this process stores there: the pages become a private copy at the same address. For an op that has ended
  // here with an error while living peers may still write its output or read its input. Stores of this process's other
  // threads into the same pages are kept, also those made meanwhile. Peers keep the old pages, and so does another op
  // in flight on a neighbour within the same pages: what it has in them at its end is brought over by fetch(). The
  // range is rounded out to pages; its offsets are never handed out again. About 0.5 ms per MiB. Precondition: the
  // range lies in one block, not yet released. Fault::system: the kernel refuses (memory, number of mappings), and part
  // of the range may still be shared.
  Status detach(std::uint64_t offset, std::uint64_t bytes, OldPages old = OldPages::kept);
  // Copies what peers have written to those parts of [offset, offset + bytes) that are detached to where this process
  // sees them; nothing to do for others. True if anything was copied.
  bool fetch(std::uint64_t offset, std::uint64_t bytes);

 private:
  OwnArena(ArenaIdentity identity, FileDescriptor descriptor, ArenaMapping mapping, std::uint64_t capacity);
  [[nodiscard]] bool in_fork_child() const;
  friend struct LiveArenas;
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();
  void release_held();
  void free_block(std::uint64_t offset);
  void give_back(std::unique_lock<std::mutex>& lock);
  void retire(ArenaRange block);
  void punch(ArenaRange range) const;

  ArenaIdentity identity_;
  FileDescriptor descriptor_;
  ArenaMapping mapping_;  // the user's view; detached pages in it are private
  std::uint64_t capacity_ = 0;
  int process_ = 0;

  mutable std::mutex mutex_;  // of all below
  ArenaAllocator allocator_;
  bool closed_ = false;
  ForkChildren children_;
  std::unordered_map<std::uint64_t, std::uint64_t> born_;  // offset of each block in use -> forks at its allocation
  struct Held {
    std::uint64_t offset = 0;
    std::uint64_t born = 0;
  };
  std::vector<Held> held_;   // released, but inherited by children that are still there
  ArenaMapping peers_view_;  // made by the first detach()
  ArenaRanges detached_;     // whole pages
  ArenaRanges kept_;         // of those ever detached: never given back
  std::uint64_t given_back_ = 0;
  // Base of peers_view_, set before the first range is detached: lock-free readers look here first.
  std::atomic<std::byte*> peers_base_{nullptr};
};

// Another process's arena. Immutable after attach; any thread. Stays valid after the process has ended.
class PeerArena {
 public:
  // Maps the arena that came from a peer. Nothing in it is trusted: size, seals, magic, version and identity must fit,
  // else Fault::refused naming what differs. Fault::system when there is no address space for it.
  static Result<PeerArena> attach(FileDescriptor descriptor, const ArenaIdentity& expected,
                                  Access access = Access::read_write);

  // [offset, offset + bytes) of its data, or nullptr when it is not inside: offsets come from a peer's descriptor and
  // are checked before every use.
  [[nodiscard]] std::byte* range(std::uint64_t offset, std::uint64_t bytes) const;
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }  // 0: an arena without room
  [[nodiscard]] const ArenaIdentity& identity() const { return identity_; }
  [[nodiscard]] std::uint32_t pid() const { return pid_; }  // in the peer's own pid namespace

 private:
  PeerArena() = default;
  ArenaIdentity identity_;
  std::uint32_t pid_ = 0;
  std::uint64_t capacity_ = 0;
  ArenaMapping mapping_;
};

}  // namespace closeranks::transport
