// The flight recorder of this process, opened as soon as the process knows which worker it is: when closeranks is
// imported under a launcher, else with the first group. And what Python tells it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string_view>

#include "closeranks/communicator.h"
#include "closeranks/engine.h"
#include "recorder/ring_writer.h"

namespace closeranks::torch_binding {

// nullptr: there is none (yet).
std::shared_ptr<recorder::RingWriter> process_recorder();
// Opens it for the worker that `options` describes, unless there is one already. nullptr: none is wanted, or can be.
std::shared_ptr<recorder::RingWriter> open_process_recorder(const EngineOptions& options);

void bind_recorder(pybind11::module_& module);

}  // namespace closeranks::torch_binding
