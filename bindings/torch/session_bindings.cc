#include "session_bindings.h"

#include <ATen/ATen.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "closeranks/engine.h"
#include "failure.h"
#include "process_engine.h"
#include "tensors.h"

namespace py = pybind11;

namespace closeranks::torch_binding {
namespace {

using std::chrono::milliseconds;

constexpr std::int32_t state_tag = 0;

std::shared_ptr<Engine> engine() {
  auto running = running_engine();
  throw_unless_ok(running.status());
  return std::move(running.value());
}

std::pair<std::uint32_t, std::uint64_t> pair_of(ViewNumber number) { return {number.term, number.n}; }

// Negative and not finite seconds count as none.
milliseconds duration_of(double seconds) {
  constexpr double longest = 1e9;
  if (!(seconds > 0)) {
    return milliseconds{0};
  }
  return milliseconds(static_cast<std::int64_t>(std::ceil(std::min(seconds, longest) * 1000)));
}

class Transfer {
 public:
  explicit Transfer(std::shared_ptr<Op> op) : op_(std::move(op)) {}
  [[nodiscard]] bool done() const { return op_->done(); }
  void wait(double timeout) { throw_unless_ok(op_->wait(duration_of(timeout))); }

 private:
  std::shared_ptr<Op> op_;
};

// One round's state on its way. Used by the training thread alone.
class StateTransferHandle {
 public:
  StateTransferHandle(std::shared_ptr<Engine> engine, StateTransfer transfer)
      : engine_(std::move(engine)), transfer_(std::move(transfer)) {}

  [[nodiscard]] const StateTransfer& transfer() const { return transfer_; }
  [[nodiscard]] Transfer move(OpKind kind, std::uint32_t slot, const at::Tensor& tensor) const {
    const char* name = kind == OpKind::send ? "send" : "receive";
    if (!transfer_.group) {
      throw_invalid_call(std::string(name) + " after finish(): the transfer is over");
    }
    const std::vector<Slot>& members = transfer_.group->options().members;
    const auto found = std::find(members.begin(), members.end(), Slot(slot));
    if (found == members.end()) {
      throw_invalid_call(std::string(name) + ": slot " + std::to_string(slot) + " takes no part in this transfer");
    }
    if (!tensor.is_cpu() || !tensor.is_contiguous()) {
      throw_invalid_call(std::string(name) + " takes contiguous tensors on the CPU; call cpu().contiguous() first");
    }
    Call call;
    call.kind = kind;
    call.dtype = DType::bytes;
    call.tag = state_tag;
    call.root = Rank(static_cast<std::uint32_t>(found - members.begin()));
    const Buffer memory{tensor.data_ptr(), tensor.nbytes()};
    (kind == OpKind::send ? call.inputs : call.outputs).push_back(memory);
    call.keep_alive = std::make_shared<at::Tensor>(tensor);
    return Transfer(transfer_.group->issue(std::move(call)));
  }
  bool finish(bool ok, const std::string& reason) {
    Status outcome;
    if (!ok) {
      outcome = Status(Fault::system, Move::retry, reason.empty() ? "the state transfer has failed" : reason);
    }
    const Result<bool> installed = engine_->finish_transfer(transfer_.round, outcome);
    transfer_.group.reset();
    throw_unless_ok(installed.status());
    return installed.value();
  }

 private:
  std::shared_ptr<Engine> engine_;
  StateTransfer transfer_;
};

std::pair<std::string, std::optional<StateTransferHandle>> at_boundary(std::uint64_t step, double patience) {
  const std::shared_ptr<Engine> running = engine();
  Result<BoundaryResult> result = running->at_boundary(step, duration_of(patience));
  throw_unless_ok(result.status());
  switch (result.value().boundary) {
    case Boundary::passed:
      return {"passed", std::nullopt};
    case Boundary::leave:
      return {"leave", std::nullopt};
    case Boundary::transfer:
      return {"transfer", StateTransferHandle(running, std::move(*result.value().transfer))};
  }
  return {"passed", std::nullopt};
}

StateTransferHandle request_join() {
  const std::shared_ptr<Engine> running = engine();
  Result<StateTransfer> transfer = running->request_join();
  throw_unless_ok(transfer.status());
  return {running, std::move(transfer.value())};
}

void bind_transfers(py::module_& module) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<Transfer>(module, "Transfer")
      .def("done", &Transfer::done)
      .def("wait", &Transfer::wait, py::arg("timeout") = 0.0, without_gil);
  py::class_<StateTransferHandle>(module, "StateTransfer")
      .def_property_readonly("round", [](const StateTransferHandle& self) { return pair_of(self.transfer().round); })
      .def_property_readonly("step", [](const StateTransferHandle& self) { return self.transfer().step; })
      .def_property_readonly("newcomers",
                             [](const StateTransferHandle& self) { return slot_numbers(self.transfer().newcomers); })
      .def_property_readonly("sources",
                             [](const StateTransferHandle& self) { return slot_numbers(self.transfer().sources); })
      .def(
          "send",
          [](const StateTransferHandle& self, std::uint32_t slot, const at::Tensor& tensor) {
            return self.move(OpKind::send, slot, tensor);
          },
          py::arg("slot"), py::arg("tensor"), without_gil)
      .def(
          "receive",
          [](const StateTransferHandle& self, std::uint32_t slot, const at::Tensor& tensor) {
            return self.move(OpKind::recv, slot, tensor);
          },
          py::arg("slot"), py::arg("tensor"), without_gil)
      .def("finish", &StateTransferHandle::finish, py::arg("ok"), py::arg("reason") = "", without_gil);
}

}  // namespace

void bind_session(py::module_& module) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  bind_transfers(module);
  module.def("job_is_newcomer", [] { return engine()->newcomer(); }, without_gil);
  module.def("job_slot", [] { return engine()->options().slot.value(); }, without_gil);
  module.def("job_view", [] { return pair_of(engine()->view()); }, without_gil);
  module.def("job_present", [] { return slot_numbers(engine()->present()); }, without_gil);
  module.def("at_boundary", &at_boundary, py::arg("step"), py::arg("patience") = 0.0, without_gil);
  module.def("request_join", &request_join, without_gil);
  module.def("step_finished", [](std::uint64_t step) { engine()->step_finished(step); }, py::arg("step"), without_gil);
  module.def(
      "pause", [](std::string what, double seconds) { engine()->pause(std::move(what), duration_of(seconds)); },
      py::arg("what"), py::arg("seconds"), without_gil);
  module.def("leave", [](const std::string& reason) { engine()->leave(reason); }, py::arg("reason"), without_gil);
}

}  // namespace closeranks::torch_binding
