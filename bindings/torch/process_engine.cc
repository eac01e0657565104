#include "process_engine.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "arena_allocator.h"
#include "process_recorder.h"

namespace closeranks::torch_binding {
namespace {

// The one global of the plugin (its lock and the engine's handle); leaked, so that no exit handler outlives it.
struct ProcessEngine {
  std::mutex mutex;
  std::weak_ptr<Engine> engine;
  std::shared_ptr<Engine> kept;  // coordinated: until stop
  std::atomic<bool> stopped{false};
  std::atomic<bool> inherited{false};  // by a forked child, which must make no groups with it
};

ProcessEngine& process_engine() {
  static auto* instance = [] {
    auto* made = new ProcessEngine;
    // Reads one counter and sets one flag: another thread may have held the lock at the moment of the fork.
    pthread_atfork(nullptr, nullptr, [] {
      if (!process_engine().engine.expired()) {
        process_engine().inherited.store(true);
      }
    });
    return made;
  }();
  return *instance;
}

Status forked_child() {
  return {Fault::closed, Move::give_up,
          "this process was forked from a closeranks worker and cannot take part in its job; start workers with the "
          "spawn method, or make their groups before any in the parent"};
}

Status wrong_world(const EngineOptions& options, Slot slot, std::uint32_t slots) {
  Status status(Fault::invalid_argument, Move::fix_call,
                "torch.distributed was initialised as rank " + std::to_string(slot.value()) + " of " +
                    std::to_string(slots) + ", but this worker is slot " + std::to_string(options.slot.value()) +
                    " of " + std::to_string(options.slots) + "; use the RANK and WORLD_SIZE of the environment");
  status.slot = options.slot;
  return status;
}

}  // namespace

bool job_is_coordinated() { return Engine::options_from_environment().has_value(); }

Result<std::shared_ptr<Engine>> acquire_engine(Slot world_slot, std::uint32_t world_slots) {
  ProcessEngine& process = process_engine();
  if (process.inherited.load()) {
    return forked_child();
  }
  const std::lock_guard lock(process.mutex);
  if (process.stopped.load()) {
    return Status(Fault::closed, Move::give_up, "the interpreter is exiting: no new group can be made");
  }
  if (auto engine = process.engine.lock()) {
    const EngineOptions& options = engine->options();
    if (options.slot != world_slot || options.slots != world_slots) {
      return wrong_world(options, world_slot, world_slots);
    }
    return engine;
  }
  auto options = Engine::options_from_environment();
  const bool coordinated = options.has_value();
  if (coordinated) {
    if (options->slot != world_slot || options->slots != world_slots) {
      return wrong_world(*options, world_slot, world_slots);
    }
  } else {
    options.emplace();
    options->slot = world_slot;
    options->slots = world_slots;
    options->worker = WorkerId(world_slot.value());
    const char* run = std::getenv("TORCHELASTIC_RUN_ID");
    options->job = run == nullptr ? "plain" : run;
    options->member_word = "rank";
  }
  // If there can be no file it has been said once.
  options->recorder = open_process_recorder(*options);
  options->records = options->recorder != nullptr;
  auto started = Engine::start(std::move(*options));
  if (started.ok()) {
    if (sharing_is_wanted(coordinated)) {
      share_large_tensors(started.value()->shared_memory());
    }
    process.engine = started.value();
    if (coordinated) {
      process.kept = started.value();
    }
  }
  return started;
}

Result<std::shared_ptr<Engine>> running_engine() {
  ProcessEngine& process = process_engine();
  if (process.inherited.load()) {
    return forked_child();
  }
  const std::lock_guard lock(process.mutex);
  if (auto engine = process.engine.lock()) {
    return engine;
  }
  return Status(Fault::invalid_argument, Move::fix_call,
                "no group of closeranks has been made in this process yet: call closeranks.init() or "
                "torch.distributed.init_process_group first");
}

void stop_engine(std::chrono::milliseconds grace) {
  ProcessEngine& process = process_engine();
  if (process.inherited.load()) {
    return;
  }
  std::unique_lock lock(process.mutex);
  process.stopped.store(true);
  auto engine = process.engine.lock();
  process.kept.reset();
  lock.unlock();
  if (engine) {
    engine->stop(grace);
  }
}

bool engine_is_stopped() { return process_engine().stopped.load(); }

}  // namespace closeranks::torch_binding
