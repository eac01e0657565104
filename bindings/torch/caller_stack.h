// Where in Python the running thread is, for the flight recorder (`closeranks run --record-stacks`).
#pragma once

#include <cstdint>

namespace closeranks::torch_binding {

// Name of the running thread's Python stack in this process's recorder; recorder::no_name when stacks are not asked for
// (CLOSERANKS_RECORD_STACKS=1), nothing is recorded, or no Python function is being run: DDP's own ops are called by
// autograd's threads. Takes the GIL when they are asked for; the caller holds nothing that its holder may wait for.
std::uint32_t caller_stack_name();

}  // namespace closeranks::torch_binding
