// The process's one engine, made when the first group is made.
//
// In a coordinated job it lives until stop(): leaving the job is final. In a plain job it lives as long as its groups,
// so that a script may initialise torch.distributed again, with another rank or world.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "closeranks/engine.h"

namespace closeranks::torch_binding {

// The engine of this process, started if there is none. `world_slot` and `world_slots` are torch's rank and world size;
// in a coordinated job they must be those the agent gave. Waits up to deadlines::connect; not with the GIL.
// Thread-safe.
Result<std::shared_ptr<Engine>> acquire_engine(Slot world_slot, std::uint32_t world_slots);

// The engine that the first group started. Fault::invalid_argument before that.
Result<std::shared_ptr<Engine>> running_engine();

// True under `closeranks run` (or with CLOSERANKS_COORDINATOR set).
bool job_is_coordinated();

// Says goodbye and stops, at the interpreter's exit; groups made later are refused. Not with the GIL. Idempotent.
void stop_engine(std::chrono::milliseconds grace);
bool engine_is_stopped();

}  // namespace closeranks::torch_binding
