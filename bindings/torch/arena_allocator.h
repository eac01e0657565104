// Torch's allocator of CPU memory, with the large blocks taken from memory that the peers of this host work on in
// place. docs/arenas.md has what follows from it for a script.
#pragma once

#include <cstddef>
#include <memory>

#include "closeranks/shared_memory.h"

namespace at {
class Tensor;
}
namespace pybind11 {
class module_;
}

namespace closeranks::torch_binding {

// Blocks of this size and more are shared. Below it a collective gains little, and a block has whole pages to itself.
inline constexpr std::size_t least_shared_bytes = std::size_t{1} << 20;

// CLOSERANKS_SHARED_ARENAS: 1 yes, 0 no; not set: under `closeranks run` only. Read at each call.
bool sharing_is_wanted(bool coordinated);

// From now on torch takes CPU blocks of least_shared_bytes and more from `memory`, until it has no more room or its
// last other owner lets go of it, and everything else from the allocator that was there before. Blocks keep their
// memory alive, so tensors may outlive the engine. A later call exchanges `memory`. Call before other threads of a
// first group's process allocate, as c10::SetAllocator asks; otherwise thread-safe.
void share_large_tensors(const std::shared_ptr<SharedMemory>& memory);

// True if all bytes of the storage of `tensor` are in the memory that was last handed to share_large_tensors.
bool in_shared_memory(const at::Tensor& tensor);

// Usage of that memory; all zero before.
SharedMemory::Usage shared_memory_usage();

// in_shared_memory(tensor) and shared_memory_usage() of the extension module.
void bind_shared_memory(pybind11::module_& module);

}  // namespace closeranks::torch_binding
