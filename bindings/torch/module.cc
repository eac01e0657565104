// The extension module closeranks._closeranks: what Python sees of the plugin. Its stub is
// python/closeranks/_closeranks.pyi.
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>
#include <vector>

#include "arena_allocator.h"
#include "backend.h"
#include "contributors_hook.h"
#include "failure.h"
#include "options.h"
#include "process_engine.h"
#include "process_recorder.h"
#include "session_bindings.h"
#include "tensors.h"
#include "work.h"

namespace py = pybind11;

namespace closeranks::torch_binding {
namespace {

using std::chrono::milliseconds;

Policy policy_by_name(const std::string& name) {
  for (const Policy policy : {Policy::fail, Policy::repair, Policy::exact}) {
    if (name == name_of(policy)) {
      return policy;
    }
  }
  throw_invalid_call("policy is '" + name + "'; it may be 'fail', 'repair' or 'exact'");
}

c10::intrusive_ptr<c10d::Backend> create_backend(const c10d::DistributedBackendOptions& options,
                                                 const c10::intrusive_ptr<GroupSettings>& settings,
                                                 std::uint32_t world_rank, std::uint32_t world_size) {
  return CloseranksBackend::create(options, settings, Slot(world_rank), world_size);
}

void answer_broadcasts(CloseranksBackend& self, const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::byte>> answers;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_cpu() || !tensor.is_contiguous()) {
      throw_invalid_call("answer_broadcasts takes contiguous tensors on the CPU");
    }
    const auto* bytes = static_cast<const std::byte*>(tensor.data_ptr());
    answers.emplace_back(bytes, bytes + tensor.nbytes());
  }
  throw_unless_ok(self.communicator().answer_broadcasts(std::move(answers)));
}

void bind_settings(py::module_& module) {
  py::class_<GroupSettings, c10::intrusive_ptr<GroupSettings>, c10d::Backend::Options>(module, "Options")
      .def(py::init([](const std::optional<std::string>& policy, bool lowest_member_is_root) {
             auto settings = c10::make_intrusive<GroupSettings>();
             if (policy.has_value()) {
               settings->policy = policy_by_name(*policy);
             }
             settings->lowest_member_is_root = lowest_member_is_root;
             return settings;
           }),
           py::arg("policy") = py::none(), py::arg("lowest_member_is_root") = false)
      .def_property_readonly("policy",
                             [](const GroupSettings& settings) -> std::optional<std::string> {
                               if (!settings.policy.has_value()) {
                                 return std::nullopt;
                               }
                               return std::string(name_of(*settings.policy));
                             })
      .def_readonly("lowest_member_is_root", &GroupSettings::lowest_member_is_root);
}

void bind_work(py::module_& module) {
  py::class_<CloseranksWork, c10::intrusive_ptr<CloseranksWork>, c10d::Work>(module, "Work")
      .def("contributors", [](CloseranksWork& work) { return slot_numbers(work.contributors().slots); })
      .def("contributors_in_all", [](CloseranksWork& work) { return slot_numbers(work.contributors().slots_in_all); });
}

void bind_finished_op(py::module_& module) {
  py::class_<FinishedOp>(module, "FinishedOp")
      .def_readonly("sequence", &FinishedOp::sequence)
      .def_property_readonly("kind", [](const FinishedOp& op) { return std::string(name_of(op.kind)); })
      .def_readonly("bytes", &FinishedOp::bytes)
      .def_property_readonly("time",
                             [](const FinishedOp& op) { return static_cast<double>(op.finished_unix_ns) / 1e9; })
      .def_property_readonly("contributors", [](const FinishedOp& op) { return slot_numbers(op.contributors.slots); })
      .def_property_readonly("in_all", [](const FinishedOp& op) { return slot_numbers(op.contributors.slots_in_all); });
}

void bind_backend(py::module_& module) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<CloseranksBackend, c10::intrusive_ptr<CloseranksBackend>, c10d::Backend>(module, "Backend")
      // Asked of non-members when a device is bound; a split of ours needs nothing of them.
      .def("perform_nocolor_split", [](CloseranksBackend& /*self*/, const py::object& /*device*/) {})
      .def_property_readonly(
          "policy", [](CloseranksBackend& self) { return std::string(name_of(self.communicator().options().policy)); })
      .def(
          "set_policy",
          [](CloseranksBackend& self, const std::string& name) {
            throw_unless_ok(self.communicator().set_policy(policy_by_name(name)));
          },
          py::arg("policy"), without_gil)
      .def("last_contributors",
           [](CloseranksBackend& self) { return slot_numbers(self.communicator().last_contributors().slots); })
      .def("present", [](CloseranksBackend& self) { return slot_numbers(self.communicator().present()); })
      .def(
          "recent_ops",
          [](CloseranksBackend& self, std::int64_t after) { return self.communicator().recent_ops(after); },
          py::arg("after") = -1)
      .def(
          "set_weight",
          [](CloseranksBackend& self, double weight) { throw_unless_ok(self.communicator().set_weight(weight)); },
          py::arg("weight"), without_gil)
      .def("answer_broadcasts", &answer_broadcasts, py::arg("tensors"), without_gil)
      .def("alone", [](CloseranksBackend& self) { return self.communicator().alone(); });
}

}  // namespace

PYBIND11_MODULE(_closeranks, module) {
  // Their classes are the bases of ours.
  py::module_::import("torch");
  py::module_::import("torch.distributed");
  bind_failure(module);
  bind_settings(module);
  bind_work(module);
  bind_finished_op(module);
  bind_backend(module);
  bind_session(module);
  bind_recorder(module);
  bind_shared_memory(module);
  module.def("create_backend", &create_backend, py::arg("options"), py::arg("settings"), py::arg("world_rank"),
             py::arg("world_size"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "average_over_contributors",
      [](const std::shared_ptr<c10d::Reducer>& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
         const std::vector<at::Tensor>& parameters) {
        reducer->register_comm_hook(std::make_unique<ContributorsHook>(group, parameters));
      },
      py::arg("reducer"), py::arg("group"), py::arg("parameters"));
  module.def("job_is_coordinated", &job_is_coordinated);
  module.def(
      "stop", [](double grace_seconds) { stop_engine(milliseconds(static_cast<std::int64_t>(grace_seconds * 1000))); },
      py::arg("grace_seconds"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace closeranks::torch_binding
