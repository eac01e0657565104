// The questions that verdicts ask of a JobTrace, answered once: who was last in a slot, what each worker was in at the
// end, how far it was in each group. Holds pointers into the trace, which must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "recorder/trace.h"

namespace closeranks::trace {

bool is_point_to_point(const recorder::OpCall& call);

// One worker in one group.
struct Standing {
  const recorder::WorkerTrace* worker = nullptr;
  const recorder::GroupTrace* group = nullptr;
  std::vector<const recorder::OpTrace*> ops;  // collectives, by sequence, `current` among them
  // What it was in at the end, or the first of the failures that it ended with. No collective: see point_to_point.
  const recorder::OpTrace* pending = nullptr;
  const recorder::OpTrace* point_to_point = nullptr;  // the same of sends and receives

  // It has made the call of this number.
  [[nodiscard]] bool arrived(std::uint64_t sequence) const;
  [[nodiscard]] const recorder::OpTrace* op(std::uint64_t sequence) const;  // null: not known
  [[nodiscard]] std::uint64_t next() const;                                 // the number of its next call
};

// One group, as all its members' files know it.
struct GroupIndex {
  std::string name;
  std::vector<Slot> members;          // in rank order; as the fullest file has them
  std::map<Slot, Standing> standing;  // of the last worker of each slot that knows the group
};

struct SeenEvent {
  const recorder::Event* event = nullptr;
  const recorder::WorkerTrace* by = nullptr;
};

class JobIndex {
 public:
  explicit JobIndex(const recorder::JobTrace& job);

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  // The file of the newest worker of a slot; null: there is none.
  [[nodiscard]] const recorder::WorkerTrace* last(Slot slot) const;
  [[nodiscard]] bool is_last(const recorder::WorkerTrace& worker) const;
  [[nodiscard]] const std::vector<const recorder::WorkerTrace*>& workers() const { return workers_; }
  // By time.
  [[nodiscard]] const std::vector<SeenEvent>& events() const { return events_; }
  // Every event about a slot's last worker: its own, and what others saw of it.
  [[nodiscard]] std::vector<SeenEvent> events_about(Slot slot) const;
  [[nodiscard]] const std::vector<GroupIndex>& groups() const { return groups_; }
  // The moment up to which the files know anything.
  [[nodiscard]] std::int64_t latest_ns() const { return latest_ns_; }
  // The file says all that it should: what it does not name did not happen.
  [[nodiscard]] static bool is_whole(const recorder::WorkerTrace& worker);
  // The last thing the worker itself did: an op's end, an event.
  [[nodiscard]] static std::int64_t last_action_ns(const recorder::WorkerTrace& worker);

 private:
  void add_groups();

  std::vector<const recorder::WorkerTrace*> workers_;
  std::map<Slot, const recorder::WorkerTrace*> last_;
  std::vector<Slot> slots_;
  std::vector<SeenEvent> events_;
  std::vector<GroupIndex> groups_;
  std::int64_t latest_ns_ = 0;
};

// When the caller made the call, as far as it is known.
std::optional<std::int64_t> arrival_ns(const recorder::OpTrace& op);

}  // namespace closeranks::trace
