// The process's one engine: owns the communicators, the segments it shares with its peers, its life words, and (in a
// coordinated job) the control connection. Held by a handle; destroyed with the last one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/communicator.h"

namespace closeranks {

// How a plain job (no coordinator) exchanges addresses: the torch store, or a map in a test. Both may block up to the
// given deadline and are called from the thread that calls Engine::create_group only.
struct AddressBook {
  std::function<Status(const std::string& key, const std::string& value)> set;
  std::function<Result<std::string>(const std::string& key, std::chrono::milliseconds deadline)> get;
};

struct EngineOptions {
  Slot slot;                // of this worker
  std::uint32_t slots = 1;  // N of the job
  // Coordinated job; empty: plain job (fixed members, policy fail only). "host:port".
  std::string coordinator;
  std::string token;  // shared secret of the job; plain jobs draw one and share it through the address book
  WorkerId worker;    // given by the agent; plain: equal to the slot
  std::string job;    // id of the job, for logs and names
  std::chrono::milliseconds orphan_timeout{60000};
  // How errors name a member: "slot 2" in a coordinated job, "rank 2" in a plain one.
  std::string member_word = "slot";
};

class Engine {
 public:
  // Starts the engine's thread, the segment server and, if coordinated, joins the job (deadline: connect_timeout).
  static Result<std::shared_ptr<Engine>> start(EngineOptions options);
  // Options from the environment `closeranks run` sets (CLOSERANKS_COORDINATOR, CLOSERANKS_TOKEN, CLOSERANKS_WORKER,
  // CLOSERANKS_JOB, RANK, WORLD_SIZE, ...); nullopt outside of a coordinated job.
  static std::optional<EngineOptions> options_from_environment();

  virtual ~Engine() = default;
  // Makes the group's communicator. Plain: collective over its members, waits for all of them up to the group's
  // timeout and names those missing. Coordinated: returns at once, members meet in the first op.
  // `book` is used by plain jobs only.
  virtual Result<std::shared_ptr<Communicator>> create_group(GroupOptions options, const AddressBook* book) = 0;
  [[nodiscard]] virtual const EngineOptions& options() const = 0;
  // The installed view: its number and the present slots. Plain: {0,0} and all.
  [[nodiscard]] virtual ViewNumber view() const = 0;
  [[nodiscard]] virtual std::vector<Slot> present() const = 0;
  // Says goodbye to the coordinator and stops. Ops in flight end with Fault::closed.
  virtual void stop(std::chrono::milliseconds grace) = 0;
};

}  // namespace closeranks
