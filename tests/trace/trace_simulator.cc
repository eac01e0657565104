#include "trace_simulator.h"

#include <algorithm>
#include <array>

#include "trace_world.h"

namespace closeranks::trace {

using recorder::Event;
using recorder::GroupTrace;
using recorder::OpTrace;
using recorder::Role;
using recorder::WorkerTrace;

namespace {

std::set<Kind> right_kinds(SimulatedFault fault) {
  switch (fault) {
    case SimulatedFault::none:
      return {Kind::ok, Kind::no_culprit, Kind::killed};  // killed: see simulate_trace
    case SimulatedFault::killed:
    case SimulatedFault::out_of_memory:
      return {Kind::killed};
    case SimulatedFault::exception:
      return {Kind::exception};
    case SimulatedFault::status:
      return {Kind::exception, Kind::killed};  // os._exit without an agent looks like a kill
    case SimulatedFault::stopped:
      return {Kind::stopped};
    case SimulatedFault::stuck:
      return {Kind::stuck};
    case SimulatedFault::uninterruptible:
      return {Kind::uninterruptible};
    // One call later the members' calls are like those of a worker that is wrong about one call: what the files show.
    case SimulatedFault::missing_call:
      return {Kind::missing_call, Kind::wrong_op,    Kind::wrong_shape, Kind::wrong_dtype,
              Kind::wrong_root,   Kind::wrong_order, Kind::left_early};
    case SimulatedFault::wrong_order:
      return {Kind::wrong_order, Kind::missing_call, Kind::wrong_op,
              Kind::wrong_shape, Kind::wrong_dtype,  Kind::wrong_root};
    case SimulatedFault::wrong_op:
      return {Kind::wrong_op};
    case SimulatedFault::wrong_shape:
      return {Kind::wrong_shape};
    case SimulatedFault::wrong_dtype:
      return {Kind::wrong_dtype};
    case SimulatedFault::wrong_root:
      return {Kind::wrong_root};
    case SimulatedFault::left_early:
      return {Kind::left_early};
    case SimulatedFault::nan:
      return {Kind::nan};
    case SimulatedFault::data_starved:
      return {Kind::data_starved};
  }
  return {};
}

void shift(WorkerTrace& worker, std::int64_t by) {
  const auto move = [by](std::optional<std::int64_t>& time) {
    if (time.has_value()) *time += by;
  };
  const auto move_op = [&](OpTrace& op) {
    move(op.issued_ns);
    move(op.entered_ns);
    move(op.finished_ns);
  };
  for (OpTrace& op : worker.ops) move_op(op);
  for (GroupTrace& group : worker.groups) {
    if (group.current.has_value()) move_op(*group.current);
  }
  for (Event& event : worker.events) event.at_ns += by;
  worker.last_written_ns += by;
}

// The ring has lost all but its newest records.
void overwrite(WorkerTrace& worker, std::size_t kept) {
  if (worker.ops.size() > kept) {
    worker.overwritten += worker.ops.size() - kept;
    worker.ops.erase(worker.ops.begin(), worker.ops.end() - static_cast<std::ptrdiff_t>(kept));
  }
  if (worker.events.size() > kept) {
    worker.overwritten += worker.events.size() - kept;
    worker.events.erase(worker.events.begin(), worker.events.end() - static_cast<std::ptrdiff_t>(kept));
  }
}

// The file was cut: its words and records are gone.
void cut(WorkerTrace& worker, Random& random) {
  worker.remarks.emplace_back("cut short");
  if (random.chance(50)) worker.groups.clear();
  worker.ops.clear();
  worker.events.clear();
}

void tear(WorkerTrace& worker, Random& random) {
  for (std::size_t at = worker.ops.size(); at-- > 0;) {
    if (!random.chance(10)) continue;
    worker.ops.erase(worker.ops.begin() + static_cast<std::ptrdiff_t>(at));
    ++worker.damaged;
  }
}

}  // namespace

void damage(SimulatedTrace& trace, const Plan& plan, Random& random) {
  auto& workers = trace.job.workers;
  if (random.chance(30)) {
    // Hosts' clocks, as well as an offset tells them.
    std::array<std::int64_t, 3> offsets{};
    for (std::int64_t& offset : offsets) {
      offset = static_cast<std::int64_t>(random.between(0, 4'000'000)) - 2'000'000;
    }
    for (WorkerTrace& worker : workers) {
      shift(worker, worker.role == Role::agent ? offsets[2] : offsets.at(worker.slot->value() / 4));
    }
  }
  if (random.chance(60)) return;
  trace.all_files = false;
  if (random.chance(30)) std::erase_if(workers, [](const WorkerTrace& worker) { return worker.role == Role::agent; });
  if (random.chance(40)) std::erase_if(workers, [&](const WorkerTrace&) { return random.chance(30); });
  const std::size_t kept = random.between(1, 40);
  for (WorkerTrace& worker : workers) {
    if (worker.role == Role::agent) continue;
    if (random.chance(50)) overwrite(worker, kept);
    if (random.chance(10)) cut(worker, random);
    if (random.chance(10)) tear(worker, random);
    // Another machine's files: whether their processes run is not known.
    if (plan.watched % 3 == 0) worker.running.reset();
  }
  if (plan.watched % 3 == 0) trace.job.read_ns = 0;
}

SimulatedTrace simulate_trace(std::uint64_t seed) {
  Random random(seed);
  const Plan plan = make_plan(random);
  World world(plan, random);
  SimulatedTrace trace;
  trace.job = world.run();
  trace.fault = world.faulted() ? plan.fault : SimulatedFault::none;
  if (trace.fault != SimulatedFault::none) trace.culprits = {plan.culprit};
  // Read in the very moment of a death that the job will go on after, its files cannot tell that it will.
  if (plan.read_at.has_value() && plan.repaired.has_value()) trace.culprits.insert(*plan.repaired);
  trace.kinds = right_kinds(trace.fault);
  trace.story = std::string(name_of(trace.fault)) + " of slot " + std::to_string(plan.culprit.value()) + " in step " +
                std::to_string(plan.fault_step) + " at item " + std::to_string(plan.fault_item);
  damage(trace, plan, random);
  return trace;
}

std::string_view name_of(SimulatedFault fault) {
  static constexpr std::array<std::string_view, simulated_faults> names{
      "none",        "killed",          "out_of_memory", "exception", "status",      "stopped",
      "stuck",       "uninterruptible", "missing_call",  "wrong_op",  "wrong_order", "wrong_shape",
      "wrong_dtype", "wrong_root",      "left_early",    "nan",       "data_starved"};
  return names.at(static_cast<std::size_t>(fault));
}

void print(std::ostream& to, const recorder::JobTrace& job) {
  const auto time = [](std::optional<std::int64_t> ns) {
    return ns.has_value() ? std::to_string(*ns / 1000) : std::string("-");
  };
  const auto print_op = [&](const OpTrace& op, const char* what) {
    to << "    " << what << " g" << op.group << "#" << op.sequence << " " << op.call.kind << " " << op.call.dtype
       << op.call.shape << " " << time(op.issued_ns) << ".." << time(op.finished_ns) << " " << op.failure << "\n";
  };
  for (const WorkerTrace& worker : job.workers) {
    to << worker.file << " slot " << (worker.slot.has_value() ? std::to_string(worker.slot->value()) : "-")
       << (worker.ended_in_order ? " ended" : "") << (worker.running == true ? " runs" : "")
       << (worker.remarks.empty() ? "" : " cut") << " damaged " << worker.damaged << " overwritten "
       << worker.overwritten << "\n";
    for (const GroupTrace& group : worker.groups) {
      to << "  " << group.name << " entered " << group.entered << " members";
      for (const Slot slot : group.members) to << " " << slot.value();
      to << "\n";
      if (group.current.has_value()) print_op(*group.current, "in");
    }
    const std::size_t from = worker.ops.size() > 8 ? worker.ops.size() - 8 : 0;
    for (std::size_t at = from; at < worker.ops.size(); ++at) print_op(worker.ops[at], "op");
    for (const Event& event : worker.events) {
      to << "    event " << static_cast<int>(event.kind) << " at " << event.at_ns / 1000 << " slots";
      for (const Slot slot : event.slots) to << " " << slot.value();
      to << " number " << event.number << " " << event.detail << "\n";
    }
  }
  to << "read at " << job.read_ns / 1000 << "\n";
}

}  // namespace closeranks::trace
