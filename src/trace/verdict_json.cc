#include "trace/verdict_json.h"

#include <nlohmann/json.hpp>

namespace closeranks::trace {

using nlohmann::ordered_json;

std::string to_json(const Verdict& verdict, const recorder::JobTrace& job) {
  ordered_json about;
  about["kind"] = name_of(verdict.kind);
  about["slot"] = verdict.slot.has_value() ? ordered_json(verdict.slot->value()) : ordered_json();
  about["worker"] = verdict.worker.has_value() ? ordered_json(verdict.worker->value()) : ordered_json();
  about["host"] = verdict.host;
  about["group"] = verdict.group;
  about["sequence"] = verdict.sequence.has_value() ? ordered_json(*verdict.sequence) : ordered_json();
  about["sentence"] = verdict.sentence;
  about["evidence"] = verdict.evidence;
  ordered_json all;
  all["verdict"] = about;
  all["files"] = ordered_json::array();
  for (const recorder::WorkerTrace& worker : job.workers) {
    ordered_json one;
    one["file"] = worker.file;
    one["writer"] = worker.writer;
    one["slot"] = worker.slot.has_value() ? ordered_json(worker.slot->value()) : ordered_json();
    one["worker"] = worker.worker.has_value() ? ordered_json(worker.worker->value()) : ordered_json();
    one["running"] = worker.running.has_value() ? ordered_json(*worker.running) : ordered_json();
    one["overwritten"] = worker.overwritten;
    one["damaged"] = worker.damaged;
    one["remarks"] = worker.remarks;
    all["files"].push_back(one);
  }
  all["remarks"] = job.remarks;
  // Files hold whatever bytes their writers put there.
  return all.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace closeranks::trace
