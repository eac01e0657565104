#include "transport/life.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "base/blocked_signals.h"
#include "base/priority.h"
#include "transport/fixed_text.h"

namespace closeranks::transport {
namespace {

constexpr std::uint64_t life_magic = 0x3145464c524b4c43;  // "CLKRLFE1"
constexpr std::uint32_t life_version = 2;
// Value of a life word after an orderly leave. The kernel never writes it: it keeps FUTEX_OWNER_DIED.
constexpr std::uint32_t departed_value = 0;

struct LifeHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t header_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t worker = 0;
  std::uint32_t slot = 0;
  std::uint32_t pid = 0;
  std::uint32_t watchers = 0;
  std::uint32_t alive_value = 0;  // of every life word, while the keeper lives
  std::array<char, 64> job{};
  std::array<std::uint64_t, 2> reserved{};
};
static_assert(sizeof(LifeHeader) == 128);

// One line per watcher: each is waited on by another process.
struct alignas(64) LifeLine {
  std::atomic<std::uint32_t> word{0};
};
static_assert(sizeof(LifeLine) == 64);

struct LifeFront {
  LifeHeader header;
  DoorbellWords doorbell;
};
static_assert(sizeof(LifeFront) == 256);

// The wait board has pages of its own: where nobody is ever blocked for long, they are never touched.
constexpr std::uint64_t board_offset(std::uint32_t watchers) {
  constexpr std::uint64_t page = 4096;
  return (sizeof(LifeFront) + sizeof(LifeLine) * watchers + page - 1) / page * page;
}
constexpr std::uint64_t life_bytes(std::uint32_t watchers) { return board_offset(watchers) + sizeof(WaitBoardWords); }
LifeFront* front_of(const Mapping& mapping) { return reinterpret_cast<LifeFront*>(mapping.data()); }
LifeLine* lines_of(const Mapping& mapping) { return reinterpret_cast<LifeLine*>(front_of(mapping) + 1); }
WaitBoardWords* board_of(const Mapping& mapping) {
  return reinterpret_cast<WaitBoardWords*>(mapping.data() + mapping.bytes() - sizeof(WaitBoardWords));
}

// The kernel finds a robust word at a fixed distance from its list node. The nodes are private memory with the
// stride of the shared lines, so that no peer can write into a list that the kernel walks for us.
struct alignas(64) RobustNode {
  ::robust_list list{};
};
static_assert(sizeof(RobustNode) == sizeof(LifeLine));

std::string describe(const LifeIdentity& identity) {
  return "the life words of slot " + std::to_string(identity.slot.value()) + " (worker " +
         std::to_string(identity.worker.value()) + ")";
}

Status refuse(const LifeIdentity& identity, const std::string& why) {
  Status status(Fault::refused, Move::give_up, describe(identity) + " are refused: " + why);
  status.slot = identity.slot;
  status.worker = identity.worker;
  return status;
}

}  // namespace

struct OwnLife::State {
  LifeIdentity identity;
  std::uint32_t watchers = 0;
  FileDescriptor descriptor;
  Mapping mapping;
  OwnWaitBoard board;
  std::vector<RobustNode> nodes;
  ::robust_list_head head{};
  std::atomic<std::uint32_t> leave{0};
  std::thread keeper;
  pid_t process = ::getpid();

  void keep(std::promise<int> started);
  void hold_words();
  void release_words();
};

// Takes all words as their owner. They are not locked by anybody: the owner's death is all they are for.
void OwnLife::State::hold_words() {
  const auto tid = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  // FUTEX_WAITERS is set from the start: the kernel wakes at death only where it is set, and watchers that sleep in
  // futex_waitv do not set it.
  const std::uint32_t alive_value = tid | FUTEX_WAITERS;
  LifeLine* lines = lines_of(mapping);
  for (std::uint32_t i = 0; i < watchers; ++i) {
    lines[i].word.store(alive_value, std::memory_order_release);
    nodes[i].list.next = i + 1 < watchers ? &nodes[i + 1].list : &head.list;
  }
  front_of(mapping)->header.alive_value = alive_value;
  head.futex_offset = reinterpret_cast<std::intptr_t>(&lines[0].word) - reinterpret_cast<std::intptr_t>(&nodes[0].list);
  head.list.next = &nodes[0].list;
}

void OwnLife::State::release_words() {
  LifeLine* lines = lines_of(mapping);
  for (std::uint32_t i = 0; i < watchers; ++i) {
    lines[i].word.store(departed_value, std::memory_order_release);
    futex_wake_all(lines[i].word);
  }
  // Words we no longer own are skipped by the kernel's walk; the list is emptied before its memory goes away.
  head.list.next = &head.list;
}

void OwnLife::State::keep(std::promise<int> started) {
  ::pthread_setname_np(::pthread_self(), "closeranks-life");
  head.list.next = &head.list;
  // Replaces the list glibc registered for this thread; it uses no robust mutex.
  if (::syscall(SYS_set_robust_list, &head, sizeof(head)) != 0) {
    started.set_value(errno);
    return;
  }
  hold_words();
  // When the process is killed, this thread's end is what its watchers wait for.
  raise_own_priority();
  started.set_value(0);
  // The one wait without a deadline: sleeping until the process ends is this thread's purpose.
  while (leave.load(std::memory_order_acquire) == 0) {
    leave.wait(0, std::memory_order_acquire);
  }
  release_words();
}

OwnLife::OwnLife(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<OwnLife>> OwnLife::create(const LifeIdentity& identity, std::uint32_t watchers) {
  if (watchers < 1 || watchers > max_watchers) {
    return Status(Fault::invalid_argument, Move::fix_call,
                  describe(identity) + " cannot have " + std::to_string(watchers) + " watchers; 1 to " +
                      std::to_string(max_watchers) + " are possible");
  }
  auto state = std::make_unique<State>();
  state->identity = identity;
  state->watchers = watchers;
  state->nodes.resize(watchers);
  auto descriptor = make_memfd("closeranks-life-" + std::to_string(identity.slot.value()), life_bytes(watchers));
  if (!descriptor.ok()) {
    return descriptor.status();
  }
  state->descriptor = std::move(descriptor.value());
  auto mapping = Mapping::map(state->descriptor, life_bytes(watchers), Access::read_write, describe(identity));
  if (!mapping.ok()) {
    return mapping.status();
  }
  state->mapping = std::move(mapping.value());

  state->board = OwnWaitBoard(board_of(state->mapping));
  LifeFront* front = new (state->mapping.data()) LifeFront;
  LifeHeader& header = front->header;
  header.magic = life_magic;
  header.version = life_version;
  header.header_bytes = sizeof(LifeHeader);
  header.total_bytes = life_bytes(watchers);
  header.worker = identity.worker.value();
  header.slot = identity.slot.value();
  header.pid = static_cast<std::uint32_t>(::getpid());
  header.watchers = watchers;
  write_fixed_text(header.job, identity.job);

  std::promise<int> started;
  std::future<int> outcome = started.get_future();
  int error = 0;
  try {
    const BlockedSignals blocked;
    state->keeper =
        std::thread([raw = state.get()](std::promise<int> told) { raw->keep(std::move(told)); }, std::move(started));
  } catch (const std::system_error& refused) {
    error = refused.code().value();
  }
  if (state->keeper.joinable()) {
    error = outcome.get();
  }
  if (error != 0) {
    if (state->keeper.joinable()) {
      state->keeper.join();
    }
    return system_error("cannot hold " + describe(identity), error);
  }
  return std::unique_ptr<OwnLife>(new OwnLife(std::move(state)));
}

OwnLife::~OwnLife() {
  if (state_->process != ::getpid()) {
    // A fork child: the keeper is not in it, nothing is mapped.
    state_->keeper.detach();
    return;
  }
  depart();
}

void OwnLife::depart() {
  if (state_->process != ::getpid() || !state_->keeper.joinable()) {
    return;
  }
  state_->leave.store(1, std::memory_order_release);
  state_->leave.notify_all();
  state_->keeper.join();
}

const FileDescriptor& OwnLife::descriptor() const { return state_->descriptor; }
Doorbell OwnLife::doorbell() const { return Doorbell(&front_of(state_->mapping)->doorbell); }
OwnWaitBoard& OwnLife::own_wait_board() const { return state_->board; }
WaitBoard OwnLife::wait_board() const { return WaitBoard(board_of(state_->mapping)); }
const LifeIdentity& OwnLife::identity() const { return state_->identity; }

Result<PeerLife> PeerLife::attach(FileDescriptor descriptor, const LifeIdentity& expected, std::uint32_t watcher,
                                  Access access) {
  auto bytes = sealed_bytes(descriptor, describe(expected));
  if (!bytes.ok()) {
    return bytes.status();
  }
  if (bytes.value() < life_bytes(1) || bytes.value() > life_bytes(max_watchers)) {
    return refuse(expected, "they have " + std::to_string(bytes.value()) + " bytes");
  }
  auto mapping = Mapping::map(descriptor, bytes.value(), access, describe(expected));
  if (!mapping.ok()) {
    return mapping.status();
  }
  LifeHeader header;
  std::memcpy(static_cast<void*>(&header), mapping.value().data(), sizeof(header));
  if (header.magic != life_magic) {
    return refuse(expected, "they are no closeranks life words (magic number)");
  }
  if (header.version != life_version) {
    return refuse(expected, "their layout version is " + std::to_string(header.version) + ", expected " +
                                std::to_string(life_version));
  }
  if (header.header_bytes != sizeof(LifeHeader) || header.total_bytes != bytes.value() ||
      header.total_bytes != life_bytes(header.watchers)) {
    return refuse(expected, "their sizes do not fit together");
  }
  std::array<char, 64> job;
  write_fixed_text(job, expected.job);
  if (read_fixed_text(header.job) != read_fixed_text(job)) {
    return refuse(expected, "they belong to job " + printable_text(read_fixed_text(header.job)) + ", not to " +
                                read_fixed_text(job));
  }
  if (header.worker != expected.worker.value() || header.slot != expected.slot.value()) {
    return refuse(expected,
                  "they belong to worker " + std::to_string(header.worker) + " in slot " + std::to_string(header.slot));
  }
  if ((header.alive_value & FUTEX_TID_MASK) == 0 || (header.alive_value & FUTEX_OWNER_DIED) != 0) {
    return refuse(expected, "nobody has taken them yet");
  }
  if (watcher >= header.watchers) {
    return refuse(expected, "they have " + std::to_string(header.watchers) + " watchers, this one would be number " +
                                std::to_string(watcher));
  }
  PeerLife peer;
  peer.identity_ = expected;
  peer.watcher_ = watcher;
  peer.pid_ = header.pid;
  peer.alive_value_ = header.alive_value;
  peer.access_ = access;
  peer.mapping_ = std::move(mapping.value());
  return peer;
}

std::atomic<std::uint32_t>& PeerLife::word() const { return lines_of(mapping_)[watcher_].word; }

LifeState PeerLife::state() const {
  const std::uint32_t now = word().load(std::memory_order_acquire);
  if (now == alive_value_) {
    return LifeState::alive;
  }
  return now == departed_value ? LifeState::departed : LifeState::died;
}

FutexWord PeerLife::futex() const { return {&word(), alive_value_}; }

Doorbell PeerLife::doorbell() const {
  CR_ASSERT(access_ == Access::read_write);
  return Doorbell(&front_of(mapping_)->doorbell);
}

WaitBoard PeerLife::wait_board() const { return WaitBoard(board_of(mapping_)); }

}  // namespace closeranks::transport
