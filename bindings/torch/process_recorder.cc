#include "process_recorder.h"

#include <pybind11/stl.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "failure.h"
#include "recorder/environment.h"

namespace py = pybind11;

namespace closeranks::torch_binding {
namespace {

using recorder::EventKind;
using recorder::NameUse;

// Beside the engine the plugin's only global; leaked, as that is.
struct ProcessRecorder {
  std::mutex mutex;
  std::shared_ptr<recorder::RingWriter> ring;
  bool tried = false;
};

ProcessRecorder& process() {
  static auto* instance = new ProcessRecorder;
  return *instance;
}

template <class Number>
std::optional<Number> number_from(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return std::nullopt;
  }
  const std::string_view digits(text);
  Number number{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc{} && end == digits.data() + digits.size() ? std::optional(number) : std::nullopt;
}

// As a launcher says it: ours, or torchrun.
void open_under_launcher() {
  auto options = Engine::options_from_environment();
  if (!options.has_value()) {
    const auto slot = number_from<std::uint32_t>("RANK");
    const auto slots = number_from<std::uint32_t>("WORLD_SIZE");
    if (!slot.has_value() || !slots.has_value()) {
      return;
    }
    options.emplace();
    options->slot = Slot(*slot);
    options->slots = *slots;
    options->worker = WorkerId(*slot);
    const char* run = std::getenv("TORCHELASTIC_RUN_ID");
    options->job = run == nullptr ? "plain" : run;
  }
  open_process_recorder(*options);
}

struct Named {
  const char* name;
  EventKind kind;
  NameUse use;
};

constexpr std::array<Named, 6> told_by_python{{
    {"mark", EventKind::mark, NameUse::free_text},
    {"step", EventKind::step, NameUse::ordinary},
    {"loading", EventKind::loading, NameUse::ordinary},
    {"exception", EventKind::exception, NameUse::last_words},
    {"stack", EventKind::stack, NameUse::ordinary},
    {"state_transfer", EventKind::state_transfer, NameUse::ordinary},
}};

// Of the slot itself. Nothing happens without a recorder.
void record(const std::string& kind, std::uint64_t number, std::string_view detail, std::string_view stack) {
  const auto ring = process_recorder();
  if (ring == nullptr) {
    return;
  }
  for (const Named& known : told_by_python) {
    if (kind == known.name) {
      ring->event({.kind = known.kind, .number = number, .detail = detail, .stack = stack, .use = known.use});
      return;
    }
  }
  throw_invalid_call("there is no event '" + kind + "'");
}

}  // namespace

std::shared_ptr<recorder::RingWriter> process_recorder() {
  const std::lock_guard lock(process().mutex);
  return process().ring;
}

std::shared_ptr<recorder::RingWriter> open_process_recorder(const EngineOptions& options) {
  const std::lock_guard lock(process().mutex);
  if (!std::exchange(process().tried, true)) {
    process().ring = recorder::open_from_environment(options);
  }
  return process().ring;
}

void bind_recorder(py::module_& module) {
  module.def("open_recorder", [] {
    open_under_launcher();
    const auto ring = process_recorder();
    return ring == nullptr ? std::nullopt : std::optional(ring->path());
  });
  module.def("recorder_path", [] {
    const auto ring = process_recorder();
    return ring == nullptr ? std::nullopt : std::optional(ring->path());
  });
  module.def("record", &record, py::arg("kind"), py::arg("number") = 0, py::arg("detail") = "", py::arg("stack") = "");
  module.def(
      "record_end",
      [](std::string_view how) {
        if (const auto ring = process_recorder()) {
          ring->end(how);
        }
      },
      py::arg("how"));
}

}  // namespace closeranks::torch_binding
