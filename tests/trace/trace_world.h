// The world of a simulated trace: slots that run one program, ops that end when all members have come, and one fault.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "simulator/membership_random.h"
#include "trace_simulator.h"

namespace closeranks::trace {

using simulator::Random;

constexpr std::int64_t ms = 1'000'000;

struct Item {
  std::size_t group = 0;
  recorder::OpCall call;
};

// What the seed decides before anything runs.
struct Plan {
  std::uint32_t slots = 2;
  std::vector<std::vector<Slot>> groups;
  std::vector<Item> items;  // of a step
  std::uint64_t steps = 0;
  bool has_steps = false;   // marks them
  bool has_loader = false;  // marks its loading
  bool has_agent = false;
  bool reports_waits = false;
  bool finds_mismatches = false;  // as our engine does; else the members hang, as with other backends
  std::optional<std::int64_t> timeout;
  std::optional<std::int64_t> fence;  // a suspect is fenced after that long
  bool interrupted = false;           // somebody ends the job when it hangs
  std::int64_t watched = 0;           // how long the job hangs before its files are read
  SimulatedFault fault = SimulatedFault::none;
  Slot culprit;
  std::uint64_t fault_step = 0;
  std::size_t fault_item = 0;
  bool inside = false;  // the culprit has made the call
  std::optional<Slot> slow;
  std::optional<Slot> repaired;  // a death long before that the job went on after
  bool replaced = false;         // and another worker came into that slot
  std::uint64_t repaired_step = 0;
  std::optional<std::int64_t> read_at;  // the files are read while the job runs
};

Plan make_plan(Random& random);

class World {
 public:
  World(const Plan& plan, Random& random);
  recorder::JobTrace run();
  [[nodiscard]] bool faulted() const { return faulted_; }

 private:
  struct Arrival {
    std::int64_t at = 0;
    recorder::OpCall call;
  };
  struct Op {
    std::map<Slot, Arrival> arrivals;
    bool ended = false;
    bool mismatched = false;
  };
  struct Worker {
    recorder::WorkerTrace trace;
    std::uint64_t step = 0;
    std::size_t item = 0;
    bool gone = false;
    bool frozen = false;              // stopped, stuck, in the kernel, or starved
    std::vector<std::uint64_t> next;  // per group
    std::optional<std::pair<std::size_t, std::uint64_t>> in;
    bool poisoned = false;               // its input is not finite
    std::optional<std::size_t> swapped;  // the item that it owes, having done the next one first
  };

  void at(std::int64_t time, std::function<void()> action);
  void make_worker(Slot slot);
  void begin_step(Slot slot);
  void next_item(Slot slot);
  void do_item(Slot slot);
  bool strike(Slot slot, Item& item);  // true: the worker does not go on by itself
  void arrive(Slot slot, const Item& item);
  void settle(std::size_t group, std::uint64_t sequence);
  void complete(std::size_t group, std::uint64_t sequence);
  void fail(Slot slot, const std::string& why);
  void lose(Slot slot);  // its peers see that it is gone
  void leave(Slot slot, int wait_status, const std::string& exception);
  void freeze(Slot slot);
  void tell_wait(Slot slot, recorder::EventKind kind);
  void replace(Slot slot);
  void end_by_hand();
  [[nodiscard]] std::vector<Slot> present(std::size_t group) const;
  [[nodiscard]] std::vector<Slot> missing(std::size_t group, std::uint64_t sequence);
  Worker& worker(Slot slot) { return workers_[slot.value()]; }
  void note(recorder::WorkerTrace& to, recorder::EventKind kind,
            const std::function<void(recorder::Event&)>& fill = {});
  [[nodiscard]] bool is_member(std::size_t group, Slot slot) const;
  recorder::WorkerTrace& watcher_of(Slot slot);

  struct Pending {
    std::int64_t time;
    std::uint64_t order;
    std::function<void()> action;
    bool operator>(const Pending& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  const Plan& plan_;
  Random& random_;
  std::int64_t now_ = 0;
  std::uint64_t order_ = 0;
  std::priority_queue<Pending, std::vector<Pending>, std::greater<>> queue_;
  std::vector<Worker> workers_;
  std::vector<recorder::WorkerTrace> former_;
  recorder::WorkerTrace agent_;
  std::map<std::pair<std::size_t, std::uint64_t>, Op> ops_;
  std::uint64_t next_worker_ = 0;
  std::set<Slot> vacant_;
  bool faulted_ = false;
};

// Loses files, cuts them, overwrites rings, sets clocks apart; sets `all_files`.
void damage(SimulatedTrace& trace, const Plan& plan, Random& random);

}  // namespace closeranks::trace
