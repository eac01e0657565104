#include "caller_stack.h"

#include <pybind11/pybind11.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "process_recorder.h"
#include "recorder/op_stack.h"
#include "recorder/ring_layout.h"
#include "recorder/ring_writer.h"

namespace py = pybind11;

namespace closeranks::torch_binding {
namespace {

bool wanted() {
  static const bool value = [] {
    const char* text = std::getenv("CLOSERANKS_RECORD_STACKS");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return value;
}

// torch's wrappers around the call say nothing of who made it.
bool is_wrapper(std::string_view file) { return file.find("/torch/distributed/") != std::string_view::npos; }

// As many frames as fit.
std::string stack_text() {
  std::string text;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const auto file = py::str(code.attr("co_filename")).cast<std::string>();
    if (!text.empty() || !is_wrapper(file)) {
      const auto function = py::str(code.attr("co_name")).cast<std::string>();
      if (!recorder::append_frame(text, {file, PyFrame_GetLineNumber(raw), function})) {
        break;
      }
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return text;
}

}  // namespace

std::uint32_t caller_stack_name() {
  if (!wanted() || Py_IsInitialized() == 0) {
    return recorder::no_name;
  }
  const auto ring = process_recorder();
  if (ring == nullptr) {
    return recorder::no_name;
  }
  const py::gil_scoped_acquire gil;
  try {
    return ring->text(stack_text());
  } catch (const std::exception&) {
    return recorder::no_name;  // a name that is no text: the op goes on without it
  }
}

}  // namespace closeranks::torch_binding
