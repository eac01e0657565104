#include "agent/job_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "agent/control_socket.h"
#include "agent/log_folder.h"

namespace closeranks::agent {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Status wrong(const std::string& sentence) { return {Fault::invalid_argument, Move::fix_call, sentence}; }

int fail(const std::string& sentence, int status) {
  std::cerr << "closeranks: " << sentence << "\n";
  return status;
}

void print_status(const json& status) {
  std::cout << "job " << status.value("job", "") << " on " << status.value("host", "")
            << (status.value("ending", false) ? ", ending" : "") << "; "
            << (status.value("in_session", false) ? "in a Session: lost workers are replaced"
                                                  : "no Session: lost workers are not replaced")
            << "\n";
  for (const json& slot : status.value("slots", json::array())) {
    std::cout << "  slot " << slot.value("slot", 0) << "  " << slot.value("state", "") << "  worker "
              << slot.value("worker", 0);
    if (slot.contains("pid")) std::cout << ", pid " << slot["pid"];
    if (slot.contains("reason")) std::cout << ", " << slot.value("reason", "");
    std::cout << "\n";
  }
  for (const json& spare : status.value("spares", json::array())) {
    std::cout << "  spare   " << (spare.value("ready", false) ? "ready" : "starting") << "  worker "
              << spare.value("worker", 0) << ", pid " << spare.value("pid", 0) << ", "
              << (spare.value("memory_bytes", std::uint64_t{0}) >> 20) << " MiB\n";
  }
}

}  // namespace

Result<std::string> find_job_folder(const std::string& root, const std::string& id) {
  std::vector<std::string> running;
  std::error_code error;
  for (fs::directory_iterator entry(root, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path folder = entry->path();
    if (!is_job_folder(folder.filename()) || !is_running(folder)) continue;
    const std::string job = folder.filename().string().substr(job_id_at);
    const bool fits = id.empty() || job == id || job.starts_with(id) || job.ends_with(id);
    if (fits) running.push_back(folder);
  }
  // Their names begin with the time.
  std::sort(running.begin(), running.end());
  if (running.empty()) {
    return wrong((id.empty() ? "no job runs" : "no job " + id + " runs") + " with its logs in " + root +
                 "; --log-dir names another folder");
  }
  if (!id.empty() && running.size() > 1) {
    return wrong("--job " + id + " fits " + std::to_string(running.size()) + " running jobs; give more of its id");
  }
  return running.back();
}

int job_command(std::span<const std::string> arguments) {
  std::string id;
  std::string root = default_log_root();
  bool as_json = false;
  std::uint32_t present = 0;
  CLI::App app("Asks a running job of this host: how it is, or to grow and shrink.", "closeranks job");
  app.require_subcommand(1);
  CLI::App* status = app.add_subcommand("status", "slots, workers and spares");
  CLI::App* resize = app.add_subcommand("resize", "how many slots are to be filled, at the next boundaries");
  resize->add_option("workers", present, "how many")->required();
  for (CLI::App* command : {status, resize}) {
    command->add_option("--job", id, "id of the job, or the beginning or end of it (default: the newest that runs)");
    command->add_option("--log-dir", root, "as given to closeranks run");
    command->add_flag("--json", as_json, "print the answer as one JSON object");
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    std::cout << (status->parsed() ? status->help() : resize->parsed() ? resize->help() : app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    return fail(error.what(), 2);
  }
  const auto folder = find_job_folder(root, id);
  if (!folder.ok()) return fail(folder.status().message(), 1);
  json request{{"command", status->parsed() ? "status" : "resize"}};
  if (resize->parsed()) request["present"] = present;
  const auto answered = ask_job(folder.value(), request.dump());
  if (!answered.ok()) return fail(answered.status().message(), 1);
  const json answer = json::parse(answered.value(), nullptr, false);
  if (!answer.is_object()) return fail("the job answered something else than JSON", 1);
  if (as_json) std::cout << answered.value() << "\n";
  if (answer.contains("error")) return as_json ? 1 : fail(answer.value("error", ""), 1);
  if (as_json) return 0;
  if (status->parsed()) {
    print_status(answer);
  } else {
    std::cout << "from " << answer.value("before", 0) << " to " << answer.value("present", 0)
              << " workers, at the next boundaries\n";
  }
  return 0;
}

}  // namespace closeranks::agent
