// The event log: what happened to the job, one JSON object per line (docs/events.md has each event with an example).
// An event is a typed record first; sinks make lines, live output or test assertions of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "closeranks/ids.h"
#include "closeranks/status.h"

namespace closeranks::coordinator {

// Up to job_finished they are the agent's, the others the coordinator's (membership::EventKind, under the same names).
enum class EventKind : std::uint8_t {
  job_started,
  worker_started,
  worker_exited,
  spare_started,    // a warm process waits to become the next worker
  slot_given_up,    // no more workers are started for this slot
  job_failing,      // the first root cause is known; the other workers are being ended
  job_interrupted,  // SIGINT or SIGTERM to the agent
  job_finished,
  coordinator_started,
  agent_connected,
  agent_lost,
  connection_refused,
  worker_registered,
  worker_left,
  worker_suspected,
  worker_fenced,
  fence_overdue,
  view_proposed,
  worker_excluded,
  view_installed,
  op_repaired,
  session_started,
  worker_joined,
  join_pending,
  join_cancelled,
  first_step,
  worker_hung,
  draining,
  gave_up,
  superseded,
};
// The event's name in the log.
std::string_view name_of(EventKind kind);

// What applies is set. `time` is unix time in microseconds; 0: emit() fills it in.
struct Event {
  EventKind kind = EventKind::job_started;
  std::int64_t time_us = 0;
  std::optional<Slot> slot;
  std::optional<WorkerId> worker;
  std::optional<std::uint32_t> pid;
  std::string host;
  std::optional<ViewNumber> view;  // keys "view" (n) and "term"
  std::string reason;
  std::string detail;
};

// One line of JSON without the newline. Bytes that are no UTF-8 are replaced.
std::string to_json_line(const Event& event);
// Unix time now, in microseconds.
std::int64_t now_us();

// Takes events from any thread, without waiting for anybody but the file system.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void emit(Event event) = 0;
};

// Appends to a file: each event whole, with one write(2) under O_APPEND, at once. FILE may exist. When a write fails
// (disk full, file system read-only) the job goes on: one warning, and another line in the log when writing works
// again. A line that was cut short by a full disk is closed with a newline before the next one.
class EventFile : public EventSink {
 public:
  // Creates the file (0644) when it does not exist. Fault::system when it cannot be opened.
  static Result<std::unique_ptr<EventFile>> open(const std::string& path);
  ~EventFile() override;
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  void emit(Event event) override;
  // Events that could not be written whole.
  [[nodiscard]] std::uint64_t lost() const;

 private:
  EventFile(int descriptor, std::string path);
  mutable std::mutex mutex_;
  int descriptor_;
  std::string path_;
  std::uint64_t lost_ = 0;
  bool failing_ = false;
  bool torn_ = false;  // the last line is incomplete
};

// Hands every event to several sinks, in order. Sinks are not owned and must outlive it.
class EventFan : public EventSink {
 public:
  explicit EventFan(std::vector<EventSink*> sinks);
  void emit(Event event) override;

 private:
  std::vector<EventSink*> sinks_;
};

// Calls a function for each event, on the emitting thread. The function must be safe to call from any thread.
class EventFunction : public EventSink {
 public:
  explicit EventFunction(std::function<void(const Event&)> action);
  void emit(Event event) override;

 private:
  std::function<void(const Event&)> action_;
};

}  // namespace closeranks::coordinator
