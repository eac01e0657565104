#include "coordinator/events.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"

namespace closeranks::coordinator {

std::string_view name_of(EventKind kind) {
  switch (kind) {
    case EventKind::job_started:
      return "job_started";
    case EventKind::worker_started:
      return "worker_started";
    case EventKind::worker_exited:
      return "worker_exited";
    case EventKind::job_failing:
      return "job_failing";
    case EventKind::job_interrupted:
      return "job_interrupted";
    case EventKind::job_finished:
      return "job_finished";
    case EventKind::coordinator_started:
      return "coordinator_started";
    case EventKind::agent_connected:
      return "agent_connected";
    case EventKind::agent_lost:
      return "agent_lost";
    case EventKind::connection_refused:
      return "connection_refused";
    case EventKind::worker_registered:
      return "worker_registered";
    case EventKind::worker_left:
      return "worker_left";
    case EventKind::worker_suspected:
      return "worker_suspected";
    case EventKind::worker_fenced:
      return "worker_fenced";
    case EventKind::fence_overdue:
      return "fence_overdue";
    case EventKind::view_proposed:
      return "view_proposed";
    case EventKind::worker_excluded:
      return "worker_excluded";
    case EventKind::view_installed:
      return "view_installed";
    case EventKind::op_repaired:
      return "op_repaired";
    case EventKind::session_started:
      return "session_started";
    case EventKind::worker_joined:
      return "worker_joined";
    case EventKind::join_pending:
      return "join_pending";
    case EventKind::join_cancelled:
      return "join_cancelled";
    case EventKind::first_step:
      return "first_step";
    case EventKind::worker_hung:
      return "worker_hung";
    case EventKind::draining:
      return "draining";
    case EventKind::spare_started:
      return "spare_started";
    case EventKind::slot_given_up:
      return "slot_given_up";
    case EventKind::gave_up:
      return "gave_up";
    case EventKind::superseded:
      return "superseded";
  }
  return "unknown";
}

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string to_json_line(const Event& event) {
  // Ordered as a person reads it: when, what, who, where, why.
  nlohmann::ordered_json line;
  if (event.slot) line["slot"] = event.slot->value();
  if (event.worker) line["worker"] = event.worker->value();
  if (event.pid) line["pid"] = *event.pid;
  if (!event.host.empty()) line["host"] = event.host;
  if (event.view) {
    line["view"] = event.view->n;
    line["term"] = event.view->term;
  }
  if (!event.reason.empty()) line["reason"] = event.reason;
  if (!event.detail.empty()) line["detail"] = event.detail;
  const std::string rest = line.is_null() ? "}" : line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // The time is written by hand: a double keeps microseconds of today's unix time, but its shortest form may not show
  // all six digits.
  char head[64];
  std::snprintf(head, sizeof head, "{\"time\":%lld.%06lld,\"event\":\"",
                static_cast<long long>(event.time_us / 1'000'000), static_cast<long long>(event.time_us % 1'000'000));
  std::string text = head;
  text += name_of(event.kind);
  text += rest == "}" ? "\"" : "\",";
  text += rest == "}" ? rest : rest.substr(1);
  return text;
}

Result<std::unique_ptr<EventFile>> EventFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return Status(
        Fault::system, Move::fix_call,
        "cannot open the events file " + path + ": " + std::strerror(errno) + "; name a file that can be written");
  }
  return std::unique_ptr<EventFile>(new EventFile(descriptor, path));
}

EventFile::EventFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}

EventFile::~EventFile() { ::close(descriptor_); }

void EventFile::emit(Event event) {
  if (event.time_us == 0) event.time_us = now_us();
  const std::string line = to_json_line(event) + "\n";
  const std::lock_guard lock(mutex_);
  // What a full disk cut short becomes a line of its own, so that this one stays whole.
  const std::string text = torn_ ? "\n" + line : line;
  ssize_t written = 0;
  do {
    written = ::write(descriptor_, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) {
    torn_ = false;
    if (std::exchange(failing_, false)) {
      log::warning("the events file " + path_ + " can be written again; " + std::to_string(lost_) +
                   " events are missing in it");
    }
    return;
  }
  const std::string why = written < 0 ? std::strerror(errno) : "the disk is full";
  if (written > 0) torn_ = true;
  ++lost_;
  if (!std::exchange(failing_, true)) {
    log::warning("the events file " + path_ + " cannot be written: " + why + "; the job goes on, its events are lost");
  }
}

std::uint64_t EventFile::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

EventFan::EventFan(std::vector<EventSink*> sinks) : sinks_(std::move(sinks)) {}

void EventFan::emit(Event event) {
  if (event.time_us == 0) event.time_us = now_us();
  for (EventSink* sink : sinks_) sink->emit(event);
}

EventFunction::EventFunction(std::function<void(const Event&)> action) : action_(std::move(action)) {}

void EventFunction::emit(Event event) {
  if (event.time_us == 0) event.time_us = now_us();
  action_(event);
}

}  // namespace closeranks::coordinator
