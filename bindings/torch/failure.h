// A Status on its way to Python: the exception every op of this backend fails with.
//
// Python sees closeranks.PeerLost and its kin (python/closeranks/errors.py), with the status's facts as attributes.
// Two roads lead there. Calls bound by pybind11 pass the translator registered below, which builds the whole object.
// torch's own bindings (backward(), above all) know nothing of it, but ask a PyTorchError for its Python type; the
// class then fetches the facts through failure_facts().
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <string>

#include "closeranks/status.h"

namespace closeranks::torch_binding {

class Failure : public torch::PyTorchError {
 public:
  // Precondition: !status.ok(). Where the job's recorders tell, its text gets the verdict (failure_verdict.h).
  explicit Failure(Status status);
  [[nodiscard]] const Status& status() const { return status_; }
  // The Python class of the status's fault. Called with the GIL held.
  PyObject* python_type() override;

 private:
  struct Told {};
  Failure(Status status, Told);
  Status status_;
};

// The fault by the name its Python class has, e.g. "PeerLost".
const char* class_name(Fault fault);

// Throws Failure unless `status` is ok.
void throw_unless_ok(const Status& status);
// A call that is wrong in itself; `message` says which one, why, and what to do.
[[noreturn]] void throw_invalid_call(const std::string& message);
[[noreturn]] void throw_unsupported(const std::string& message);

// Adds the translator, and `failure_facts(message)` to `module`. With the GIL.
void bind_failure(pybind11::module_& module);

}  // namespace closeranks::torch_binding
