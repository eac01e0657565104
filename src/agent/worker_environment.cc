#include "agent/worker_environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "agent/temporary_folder.h"

namespace closeranks::agent {
namespace {

// Left behind by an outer job or an earlier launch, these would send a worker to a rendezvous of nobody.
constexpr std::string_view scrubbed[] = {
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CLOSERANKS_COORDINATOR",
    "CLOSERANKS_TOKEN",
    "CLOSERANKS_WORKER",
    "CLOSERANKS_JOB",
    "CLOSERANKS_POLICY",
    "CLOSERANKS_ORPHAN_TIMEOUT",
    "CLOSERANKS_STACK_FILE",
    "CLOSERANKS_OUTPUT_FILES",
    "CLOSERANKS_TEMPORARY_FOLDER",
    "CLOSERANKS_COORDINATOR_PROCESS",
    "CLOSERANKS_TRACE_DIR",
    "CLOSERANKS_TRACE_BYTES",
    "CLOSERANKS_TRACE_PROCESS",
    "CLOSERANKS_CHECK_NAN",
    "CLOSERANKS_RECORD_STACKS",
};

bool is_scrubbed(std::string_view name) {
  return name.starts_with("TORCHELASTIC_") ||
         std::find(std::begin(scrubbed), std::end(scrubbed), name) != std::end(scrubbed);
}

bool is_set(std::span<const std::string> environment, std::string_view name) {
  return std::any_of(environment.begin(), environment.end(), [name](const std::string& entry) {
    return entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=';
  });
}

}  // namespace

std::string log_name(Slot slot, WorkerId worker) {
  const std::string name = "slot-" + std::to_string(slot.value());
  return worker.value() == slot.value() ? name : name + ".worker-" + std::to_string(worker.value());
}

std::string trace_folder(const LaunchOptions& options, const std::string& log_folder) {
  if (!options.trace_dir.empty()) return options.trace_dir;
  return log_folder.empty() ? "" : log_folder + "/trace";
}

std::vector<Variable> worker_variables(const LaunchOptions& options, const JobFacts& facts, Slot slot,
                                       WorkerId worker) {
  const std::string rank = std::to_string(slot.value());
  const std::string size = std::to_string(options.workers);
  std::vector<Variable> variables{
      {"RANK", rank},
      {"LOCAL_RANK", rank},
      {"GROUP_RANK", "0"},
      {"ROLE_RANK", rank},
      {"ROLE_NAME", options.role},
      {"LOCAL_WORLD_SIZE", size},
      {"WORLD_SIZE", size},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_WORLD_SIZE", size},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(facts.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
      {"TORCHELASTIC_RUN_ID", options.run_id.empty() ? facts.job : options.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"CLOSERANKS_COORDINATOR", facts.coordinator},
      {"CLOSERANKS_TOKEN", facts.token},
      {"CLOSERANKS_WORKER", std::to_string(worker.value())},
      {"CLOSERANKS_JOB", facts.job},
      {"CLOSERANKS_POLICY", options.shrink ? "repair" : "fail"},
      {"CLOSERANKS_ORPHAN_TIMEOUT", std::to_string(options.orphan_timeout.count())},
      {"CLOSERANKS_COORDINATOR_PROCESS", facts.process},
  };
  // Where a script decorated with torch's @record leaves its exception.
  if (!facts.log_folder.empty()) {
    const std::string own_files = facts.log_folder + "/" + log_name(slot, worker);
    variables.emplace_back("TORCHELASTIC_ERROR_FILE", own_files + ".error.json");
    // Where its Python stacks go when it hangs.
    variables.emplace_back("CLOSERANKS_STACK_FILE", own_files + ".stack.log");
    // Where its output goes when the agent, which writes it there, is no more.
    variables.emplace_back("CLOSERANKS_OUTPUT_FILES", own_files);
  }
  if (!facts.trace_folder.empty()) {
    variables.emplace_back("CLOSERANKS_TRACE_DIR", facts.trace_folder);
    variables.emplace_back("CLOSERANKS_TRACE_BYTES", std::to_string(options.trace_bytes));
  }
  if (options.check_nan) variables.emplace_back("CLOSERANKS_CHECK_NAN", "1");
  if (options.record_stacks) variables.emplace_back("CLOSERANKS_RECORD_STACKS", "1");
  if (!facts.temporary_folder.empty()) {
    variables.emplace_back("CLOSERANKS_TEMPORARY_FOLDER", TemporaryFolder::name_in(facts.temporary_folder, worker));
  }
  return variables;
}

namespace {

// What does not depend on the slot.
std::vector<std::string> common_environment(const LaunchOptions& options, std::span<const std::string> inherited) {
  std::vector<std::string> environment;
  for (const std::string& entry : inherited) {
    if (!is_scrubbed(std::string_view(entry).substr(0, entry.find('=')))) environment.push_back(entry);
  }
  if (options.workers > 1 && !is_set(inherited, "OMP_NUM_THREADS")) environment.emplace_back("OMP_NUM_THREADS=1");
  if (!is_set(inherited, "TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    environment.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  }
  return environment;
}

}  // namespace

std::vector<std::string> worker_environment(const LaunchOptions& options, const JobFacts& facts, Slot slot,
                                            WorkerId worker, std::span<const std::string> inherited) {
  std::vector<std::string> environment = common_environment(options, inherited);
  for (auto& [name, value] : worker_variables(options, facts, slot, worker)) {
    environment.push_back(std::move(name.append("=").append(value)));
  }
  return environment;
}

std::vector<std::string> spare_environment(const LaunchOptions& options, std::span<const std::string> inherited) {
  return common_environment(options, inherited);
}

std::string find_python(std::span<const std::string> tool_folders) {
  for (const std::string& folder : tool_folders) {
    const std::string candidate = folder + "/python";
    if (!folder.empty() && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  const char* chosen = std::getenv("PYTHON_EXEC");
  return chosen != nullptr && *chosen != '\0' ? chosen : "python3";
}

std::vector<std::string> worker_command(const LaunchOptions& options, const std::string& python) {
  std::vector<std::string> command;
  // -u: output reaches the agent line by line, also from a worker that is killed.
  if (!options.no_python) command = {python, "-u"};
  if (options.module) command.emplace_back("-m");
  command.insert(command.end(), options.script.begin(), options.script.end());
  return command;
}

std::vector<std::string> spare_command(const std::string& python) {
  return {python, "-u", "-c", "from closeranks.spare import main; main()"};
}

std::vector<std::string> spare_orders(const LaunchOptions& options) {
  std::vector<std::string> orders;
  if (options.module) orders.emplace_back("-m");
  orders.insert(orders.end(), options.script.begin(), options.script.end());
  return orders;
}

}  // namespace closeranks::agent
