// What `closeranks job` asks of a running job, and the answers.
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/job_state.h"
#include "agent/spare_process.h"

namespace closeranks::agent {
namespace {

using nlohmann::ordered_json;

std::string text(const ordered_json& answer) {
  return answer.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string refusal(const std::string& sentence) { return text({{"error", sentence}}); }

}  // namespace

std::string Job::answer(const std::string& request) {
  const auto asked = nlohmann::json::parse(request, nullptr, false);
  if (!asked.is_object() || !asked.contains("command") || !asked["command"].is_string()) {
    return refusal("a request is a JSON object with a command");
  }
  const std::string command = asked["command"].get<std::string>();
  if (command == "status") return status();
  if (command == "resize" && asked.contains("present") && asked["present"].is_number_unsigned()) {
    const auto present = asked["present"].get<std::uint64_t>();
    if (present >= 1 && present <= options_.workers) return resize(static_cast<std::uint32_t>(present));
    return refusal("a job of " + std::to_string(options_.workers) + " slots can have 1 to " +
                   std::to_string(options_.workers) + " workers, not " + std::to_string(present));
  }
  return refusal("there is no request '" + command + "'; status, and resize with the number of workers as present");
}

std::string Job::resize(std::uint32_t present) {
  const std::uint32_t before = replacements_.wanted();
  if (ending_ != Ending::no || replacements_.stopped()) return refusal("the job is ending");
  if (!in_session_) {
    return refusal("workers join and leave at the boundaries of a closeranks.Session, and no worker has begun one");
  }
  if (present > before && options_.max_replacements == 0) {
    return refusal("no workers are started in this job (--max-replacements 0)");
  }
  if (present < options_.min_present) {
    return refusal("the job may not have fewer than " + std::to_string(options_.min_present) +
                   " workers (--min-present)");
  }
  output_->say("resize: " + std::to_string(present) + " of " + std::to_string(options_.workers) +
               " slots are to be filled (before: " + std::to_string(before) + ")");
  replacements_.resize(present, Clock::now());
  // Also when growing: the coordinator may still be waiting for some to leave.
  send(membership::Resize{present});
  replace();
  return text({{"present", present}, {"before", before}});
}

std::string Job::status() const {
  ordered_json answer{
      {"job", facts_.job},
      {"host", host_},
      {"in_session", in_session_},
      {"ending", ending_ != Ending::no},
      {"coordinator", facts_.coordinator},
      {"trace", ring_ ? facts_.trace_folder : ""},
      {"wanted", replacements_.wanted()},
      {"slots", ordered_json::array()},
      {"spares", ordered_json::array()},
  };
  for (const WorkerId id : in_slot_) {
    const auto found = workers_.find(id);
    if (found == workers_.end()) continue;  // it could not be started, and the job is about to end
    const Worker& worker = found->second;
    const bool in_view = verdict_.has_joined(id) && !verdict_.is_excluded(id);
    const char* state = worker.out                 ? "vacant"
                        : worker.exited && in_view ? "ended"
                        : in_view                  ? "present"
                        : worker.exited            ? "vacant"
                                                   : "joining";
    ordered_json entry{{"slot", worker.slot->value()}, {"state", state}, {"worker", id.value()}};
    if (!worker.exited) entry["pid"] = worker.pid;
    if (worker.exited) entry["reason"] = worker.reason;
    answer["slots"].push_back(std::move(entry));
  }
  for (const auto& [id, worker] : workers_) {
    if (worker.slot.has_value() || worker.exited) continue;
    answer["spares"].push_back({{"worker", id.value()},
                                {"pid", worker.pid},
                                {"ready", worker.ready},
                                {"memory_bytes", resident_bytes(worker.pid)}});
  }
  return text(answer);
}

}  // namespace closeranks::agent
