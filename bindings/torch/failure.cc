#include "failure.h"

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>

#include "failure_verdict.h"

namespace py = pybind11;

namespace closeranks::torch_binding {
namespace {

// The status python_type() was last asked about on this thread: torch's translation raises type(message) right after
// it, and the new exception asks for its facts by that message.
thread_local std::optional<Status> last_translated;

const char* move_name(Move move) {
  switch (move) {
    case Move::none:
      return "none";
    case Move::retry:
      return "retry";
    case Move::repair_group:
      return "repair_group";
    case Move::fix_call:
      return "fix_call";
    case Move::give_up:
      return "give_up";
    case Move::outcome_unknown:
      return "outcome_unknown";
  }
  return "none";
}

template <class Number>
py::object number_or_none(const std::optional<Number>& number) {
  if (!number.has_value()) {
    return py::none();
  }
  return py::int_(number->value());
}

py::object text_or_none(const std::string& text) {
  if (text.empty()) {
    return py::none();
  }
  return py::str(text);
}

py::dict facts_of(const Status& status) {
  py::dict facts;
  facts["slot"] = number_or_none(status.slot);
  facts["worker"] = number_or_none(status.worker);
  facts["host"] = text_or_none(status.host);
  facts["group"] = text_or_none(status.group);
  facts["op"] = text_or_none(status.op);
  facts["sequence"] = status.sequence.has_value() ? py::object(py::int_(*status.sequence)) : py::none();
  facts["view"] = status.view.has_value() ? py::object(py::make_tuple(status.view->term, status.view->n)) : py::none();
  facts["move"] = move_name(status.move());
  return facts;
}

py::object class_of(Fault fault) { return py::module_::import("closeranks.errors").attr(class_name(fault)); }

}  // namespace

Failure::Failure(Status status) : Failure(with_verdict(std::move(status)), Told{}) {}

Failure::Failure(Status status, Told) : torch::PyTorchError(status.message()), status_(std::move(status)) {}

PyObject* Failure::python_type() {
  last_translated = status_;
  // The module keeps the class alive, so the borrowed pointer stays valid.
  return class_of(status_.fault()).ptr();
}

const char* class_name(Fault fault) {
  switch (fault) {
    case Fault::peer_lost:
      return "PeerLost";
    case Fault::evicted:
      return "Evicted";
    case Fault::incomplete:
      return "Incomplete";
    case Fault::mismatch:
      return "Mismatch";
    case Fault::timeout:
      return "Timeout";
    case Fault::closed:
      return "Closed";
    case Fault::invalid_argument:
      return "InvalidCall";
    case Fault::unsupported:
      return "Unsupported";
    case Fault::refused:
      return "Refused";
    case Fault::system:
    case Fault::none:
      return "SystemFault";
  }
  return "SystemFault";
}

void throw_unless_ok(const Status& status) {
  if (!status.ok()) {
    throw Failure(status);
  }
}

void throw_invalid_call(const std::string& message) {
  throw Failure(Status(Fault::invalid_argument, Move::fix_call, message));
}

void throw_unsupported(const std::string& message) {
  throw Failure(Status(Fault::unsupported, Move::fix_call, message));
}

void bind_failure(py::module_& module) {
  // The last translator registered is asked first, so ours comes before torch's. It must not be a local one: the
  // functions that raise our failures (Work.wait, Future.wait) belong to torch's module.
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) {
        std::rethrow_exception(std::move(pointer));
      }
    } catch (const Failure& failure) {
      const py::object type = class_of(failure.status().fault());
      const py::object value = type(failure.status().message(), **facts_of(failure.status()));
      PyErr_SetObject(type.ptr(), value.ptr());
    }
  });
  module.def(
      "failure_facts",
      [](const std::string& message) -> py::object {
        if (last_translated.has_value() && last_translated->message() == message) {
          return facts_of(*last_translated);
        }
        return py::none();
      },
      py::arg("message"),
      "The facts of the failure with this message that was last translated on this thread, or None.");
}

}  // namespace closeranks::torch_binding
