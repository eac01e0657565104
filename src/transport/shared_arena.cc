#include "transport/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/log.h"
#include "transport/arena_capacity.h"

namespace closeranks::transport {
namespace {

constexpr std::uint64_t page = ArenaAllocator::page_bytes;

std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) { return value / unit * unit; }
std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return round_down(value + unit - 1, unit); }

// A private mapping of the same pages in a shared one's place: until a page is stored to, here or by
// take_private_copies, it is the shared page; from then on a copy. Copying first and exchanging the pages after would
// lose what other threads store between the two. To them the exchange is one instant: by system call, because the
// thread sanitizer takes mmap for a store.
bool map_private(std::byte* place, ArenaRange range, int descriptor) {
  return ::syscall(SYS_mmap, place, range.bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE, descriptor,
                   static_cast<off_t>(range.offset)) != -1;
}

// Every page of [begin, begin + bytes) of a private file mapping becomes this process's own copy. By a store that
// changes nothing, so that stores of other threads are kept.
void take_private_copies(std::byte* begin, std::uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) {
    return;
  }
#endif
  for (std::uint64_t at = 0; at < bytes; at += page) {
    std::atomic_ref<unsigned char>(reinterpret_cast<unsigned char&>(begin[at])).fetch_or(0, std::memory_order_relaxed);
  }
}

}  // namespace

Result<std::shared_ptr<OwnArena>> OwnArena::create(const ArenaIdentity& identity, std::uint64_t capacity) {
  capacity = round_up(capacity, huge_page_bytes);
  while (true) {
    auto descriptor =
        make_memfd("closeranks-arena-" + std::to_string(identity.slot.value()), arena_data_offset + capacity);
    if (!descriptor.ok()) {
      return descriptor.status();
    }
    auto mapping = ArenaMapping::map(descriptor.value(), arena_data_offset + capacity, Access::read_write,
                                     Inheritance::inherited, describe(identity));
    if (!mapping.ok()) {
      if (capacity == 0) {
        return mapping.status();
      }
      capacity = round_down(capacity / 2, huge_page_bytes);
      if (capacity < least_arena_capacity) {
        capacity = 0;
        say_without_arena(mapping.status().message());
      }
      continue;
    }
    new (mapping.value().data()) ArenaHeader(make_arena_header(identity, arena_data_offset + capacity));
    return std::shared_ptr<OwnArena>(
        new OwnArena(identity, std::move(descriptor.value()), std::move(mapping.value()), capacity));
  }
}

bool OwnArena::in_fork_child() const { return process_ != ::getpid(); }

std::byte* OwnArena::allocate(std::size_t bytes) {
  if (in_fork_child()) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  if (closed_) {
    return nullptr;
  }
  release_held();
  const auto offset = allocator_.allocate(bytes);
  if (!offset.has_value()) {
    return nullptr;
  }
  born_.emplace(*offset, children_.forks());
  return mapping_.data() + *offset;
}

void OwnArena::release(std::byte* block) {
  if (block == nullptr || in_fork_child()) {
    return;
  }
  std::unique_lock lock(mutex_);
  release_held();
  const auto offset = static_cast<std::uint64_t>(block - mapping_.data());
  const auto born = born_.find(offset);
  CR_ASSERT(born != born_.end());
  if (children_.any_since(born->second)) {
    held_.push_back({offset, born->second});
  } else {
    free_block(offset);
  }
  born_.erase(born);
  give_back(lock);
}

// What children that have ended meanwhile were the last to need.
void OwnArena::release_held() {
  if (children_.forget_ended()) {
    std::erase_if(held_, [this](const Held& held) {
      if (children_.any_since(held.born)) {
        return false;
      }
      free_block(held.offset);
      return true;
    });
  }
}

void OwnArena::free_block(std::uint64_t offset) {
  const ArenaRange block{offset, allocator_.block_bytes(offset)};
  allocator_.release(offset);
  retire(block);
}

// Detached pages of a block that is released.
void OwnArena::retire(ArenaRange block) {
  for (const ArenaRange range : detached_.parts_in(block)) {
    detached_.erase(range);
    allocator_.retire(range);
    // The private copy goes, its addresses stay ours.
    static_cast<void>(::mmap(mapping_.data() + range.offset, range.bytes, PROT_NONE,
                             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (const ArenaRange part : kept_.gaps_in(range)) {
      punch(part);
    }
  }
}

void OwnArena::punch(ArenaRange range) const {
  if (::fallocate(descriptor_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.offset),
                  static_cast<off_t>(range.bytes)) != 0) {
    log::warning("memory of " + describe(identity_) + " cannot be given back: " + system_error("", errno).message());
  }
}

void OwnArena::give_back(std::unique_lock<std::mutex>& lock) {
  while (const auto surplus = allocator_.take_surplus()) {
    // Giving back a GiB takes 100 ms: not under the lock. The range is in nobody's hands meanwhile.
    lock.unlock();
    punch(*surplus);
    lock.lock();
    allocator_.given_back(*surplus);
    given_back_ += surplus->bytes;
  }
}

SharedMemory::Usage OwnArena::usage() const {
  Usage usage{.capacity_bytes = capacity_};
  if (in_fork_child()) {
    return usage;
  }
  const std::lock_guard lock(mutex_);
  usage.in_use_bytes = allocator_.in_use_bytes();
  usage.blocks = born_.size();
  for (const Held& held : held_) {
    usage.held_bytes += allocator_.block_bytes(held.offset);
  }
  usage.idle_bytes = allocator_.idle_bytes();
  usage.given_back_bytes = given_back_;
  usage.retired_bytes = allocator_.retired_bytes();
  struct stat status{};
  if (::fstat(descriptor_.get(), &status) == 0) {
    usage.resident_bytes = static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  return usage;
}

void OwnArena::close() {
  if (!in_fork_child()) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
}

std::optional<std::uint64_t> OwnArena::offset_of(const void* data, std::size_t bytes) const {
  const auto offset = reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(mapping_.data());
  if (!inside_arena(capacity_, offset, bytes)) {
    return std::nullopt;
  }
  if (peers_base_.load(std::memory_order_acquire) != nullptr) {
    const std::lock_guard lock(mutex_);
    if (!detached_.parts_in({offset, bytes}).empty()) {
      return std::nullopt;
    }
  }
  return offset;
}

std::byte* OwnArena::range(std::uint64_t offset, std::uint64_t bytes) const {
  if (!inside_arena(capacity_, offset, bytes)) {
    return nullptr;
  }
  std::byte* base = peers_base_.load(std::memory_order_acquire);
  return (base != nullptr ? base : mapping_.data()) + offset;
}

Status OwnArena::detach(std::uint64_t offset, std::uint64_t bytes, OldPages old) {
  CR_ASSERT(!in_fork_child() && inside_arena(capacity_, offset, bytes));
  const std::lock_guard lock(mutex_);
  if (peers_base_.load(std::memory_order_relaxed) == nullptr) {
    auto view = ArenaMapping::map(descriptor_, mapping_.bytes(), Access::read_write, Inheritance::withheld,
                                  describe(identity_) + " a second time");
    if (!view.ok()) {
      return view.status();
    }
    peers_view_ = std::move(view.value());
    peers_base_.store(peers_view_.data(), std::memory_order_release);
  }
  const std::uint64_t begin = round_down(offset, page);
  const ArenaRange pages{begin, round_up(offset + bytes, page) - begin};
  if (old == OldPages::kept) {
    for (const ArenaRange part : kept_.gaps_in(pages)) {
      kept_.insert(part);
    }
  }
  for (const ArenaRange part : detached_.gaps_in(pages)) {
    std::byte* place = mapping_.data() + part.offset;
    if (!map_private(place, part, descriptor_.get())) {
      return system_error("cannot detach " + std::to_string(part.bytes) + " bytes of " + describe(identity_), errno);
    }
    detached_.insert(part);
    take_private_copies(place, part.bytes);
  }
  return {};
}

bool OwnArena::fetch(std::uint64_t offset, std::uint64_t bytes) {
  CR_ASSERT(inside_arena(capacity_, offset, bytes));
  const std::byte* base = peers_base_.load(std::memory_order_acquire);
  if (base == nullptr) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  const std::vector<ArenaRange> found = detached_.parts_in({offset, bytes});
  for (const ArenaRange part : found) {
    std::memcpy(mapping_.data() + part.offset, base + part.offset, part.bytes);
  }
  return !found.empty();
}

Result<PeerArena> PeerArena::attach(FileDescriptor descriptor, const ArenaIdentity& expected, Access access) {
  auto bytes = sealed_bytes(descriptor, describe(expected));
  if (!bytes.ok()) {
    return bytes.status();
  }
  if (const Status status = check_arena_size(expected, bytes.value()); !status.ok()) {
    return status;
  }
  auto mapping = ArenaMapping::map(descriptor, bytes.value(), access, Inheritance::withheld, describe(expected));
  if (!mapping.ok()) {
    return mapping.status();
  }
  ArenaHeader header;
  std::memcpy(static_cast<void*>(&header), mapping.value().data(), sizeof(header));
  if (const Status status = check_arena_header(header, expected, bytes.value()); !status.ok()) {
    return status;
  }
  PeerArena arena;
  arena.identity_ = expected;
  arena.pid_ = header.pid;
  arena.capacity_ = bytes.value() - arena_data_offset;
  arena.mapping_ = std::move(mapping.value());
  return arena;
}

std::byte* PeerArena::range(std::uint64_t offset, std::uint64_t bytes) const {
  return inside_arena(capacity_, offset, bytes) ? mapping_.data() + offset : nullptr;
}

}  // namespace closeranks::transport
