// What closeranks.Session needs of the engine: boundaries, the state transfer to newcomers, pauses, leaving.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace closeranks::torch_binding {

// Adds StateTransfer, Transfer and the functions of the process's engine to `module`.
void bind_session(pybind11::module_& module);

}  // namespace closeranks::torch_binding
