// Knowing at once that a process died. Each process has one "life" memfd with one robust futex word per watcher, held
// by a sleeping thread of the process (the keeper). When the process dies, by whatever cause, exec included, the
// kernel marks every word "owner died" and wakes its waiter, before it tears down the process's memory: 0.1 ms when
// idle, long before a pidfd or a closed socket speaks. A word per watcher, because the kernel wakes one waiter per
// word. The memfd also holds the process's doorbell (doorbell.h) and its wait board (wait_board.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/file_descriptor.h"
#include "closeranks/ids.h"
#include "closeranks/status.h"
#include "transport/doorbell.h"
#include "transport/futex.h"
#include "transport/mapping.h"
#include "transport/wait_board.h"

namespace closeranks::transport {

// Watchers of a job of N slots: watcher s is the worker of slot s, then the agent, then spare observers (demo, tests).
inline constexpr std::uint32_t spare_observers = 8;
inline constexpr std::uint32_t watchers_of(std::uint32_t slots) { return slots + 1 + spare_observers; }
inline constexpr std::uint32_t agent_watcher(std::uint32_t slots) { return slots; }
inline constexpr std::uint32_t observer_watcher(std::uint32_t slots, std::uint32_t i) { return slots + 1 + i; }
// The kernel follows at most 2048 robust words of one thread.
inline constexpr std::uint32_t max_watchers = 2000;

struct LifeIdentity {
  std::string job;  // first 63 bytes count
  WorkerId worker;
  Slot slot;
};

enum class LifeState : std::uint8_t {
  alive,
  departed,  // left in order (OwnLife::depart)
  died,      // killed, crashed, exited or called exec without departing
};

// This process's own life. Threads: create and destroy on one thread; doorbell(), wait_board() and descriptor() from
// any.
class OwnLife {
 public:
  // Makes the memfd and starts the keeper thread (all signals blocked, sleeps until depart()).
  // Precondition: 1 <= watchers <= max_watchers, else Fault::invalid_argument. Fault::system when the kernel refuses.
  static Result<std::unique_ptr<OwnLife>> create(const LifeIdentity& identity, std::uint32_t watchers);
  // Departs if depart() was not called. In a fork child (which has no keeper and no mapping) it does nothing.
  ~OwnLife();
  OwnLife(const OwnLife&) = delete;
  OwnLife& operator=(const OwnLife&) = delete;

  // Says goodbye: every watcher sees `departed` from now on, whatever becomes of the process. Joins the keeper.
  void depart();
  [[nodiscard]] const FileDescriptor& descriptor() const;  // what peers get
  [[nodiscard]] Doorbell doorbell() const;
  // Threads: as OwnWaitBoard says.
  [[nodiscard]] OwnWaitBoard& own_wait_board() const;
  [[nodiscard]] WaitBoard wait_board() const;
  [[nodiscard]] const LifeIdentity& identity() const;

 private:
  struct State;
  explicit OwnLife(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Another process's life, seen by one watcher. Immutable after attach; any thread. Stays valid after the death.
class PeerLife {
 public:
  // Maps the life memfd of a peer. Trusts nothing: size, seals, magic, version and identity must fit, and `watcher`
  // must be below its count, else Fault::refused. `access` read_only: an observer that cannot ring.
  static Result<PeerLife> attach(FileDescriptor descriptor, const LifeIdentity& expected, std::uint32_t watcher,
                                 Access access = Access::read_write);

  [[nodiscard]] LifeState state() const;  // one load
  [[nodiscard]] bool died() const { return state() == LifeState::died; }
  [[nodiscard]] FutexWord futex() const;  // to sleep on; `expected` is the value while it is alive
  // Precondition: attached read_write.
  [[nodiscard]] Doorbell doorbell() const;
  [[nodiscard]] WaitBoard wait_board() const;
  [[nodiscard]] const LifeIdentity& identity() const { return identity_; }
  [[nodiscard]] std::uint32_t pid() const { return pid_; }  // in the peer's own pid namespace

 private:
  PeerLife() = default;
  [[nodiscard]] std::atomic<std::uint32_t>& word() const;
  LifeIdentity identity_;
  std::uint32_t watcher_ = 0;
  std::uint32_t pid_ = 0;
  std::uint32_t alive_value_ = 0;
  Access access_ = Access::read_only;
  Mapping mapping_;
};

}  // namespace closeranks::transport
