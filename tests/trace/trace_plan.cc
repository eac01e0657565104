// What a seed decides before its job runs.
#include <algorithm>

#include "trace_world.h"

namespace closeranks::trace {
namespace {

recorder::OpCall random_call(Random& random, std::size_t members) {
  static const char* const kinds[] = {"all_reduce", "all_reduce", "all_reduce", "broadcast", "all_gather", "barrier"};
  static const char* const dtypes[] = {"float32", "bfloat16", "int64"};
  recorder::OpCall call;
  call.kind = kinds[random.below(6)];
  if (call.kind == "barrier") return call;
  call.dtype = dtypes[random.below(3)];
  call.shape = "[" + std::to_string(1 + random.below(64)) + ", 3]";
  call.bytes = 8 + random.below(1000);
  if (call.kind == "all_reduce") call.reduce = "sum";
  if (call.kind == "broadcast") call.root = Rank(static_cast<std::uint32_t>(random.below(members)));
  return call;
}

bool holds(const std::vector<Slot>& members, Slot slot) {
  return std::find(members.begin(), members.end(), slot) != members.end();
}

// The item can take the fault.
bool fits(const Plan& plan, std::size_t at) {
  const Item& item = plan.items[at];
  const auto& members = plan.groups[item.group];
  if (!holds(members, plan.culprit)) return false;
  switch (plan.fault) {
    case SimulatedFault::wrong_root:
      return item.call.kind == "broadcast";
    case SimulatedFault::wrong_shape:
    case SimulatedFault::wrong_dtype:
      return item.call.kind != "barrier";
    case SimulatedFault::nan:
      return item.call.kind == "all_reduce" && item.call.dtype != "int64";
    case SimulatedFault::wrong_order: {
      if (at + 1 == plan.items.size() || plan.items[at + 1].group == item.group) return false;
      const auto& next = plan.groups[plan.items[at + 1].group];
      // Without another that owes both calls there is no deadlock.
      const auto common = std::count_if(members.begin(), members.end(), [&](Slot slot) { return holds(next, slot); });
      return holds(next, plan.culprit) && common >= 2;
    }
    default:
      return true;
  }
}

}  // namespace

Plan make_plan(Random& random) {
  Plan plan;
  plan.slots = static_cast<std::uint32_t>(random.between(2, 8));
  std::vector<Slot> world;
  for (std::uint32_t slot = 0; slot < plan.slots; ++slot) world.emplace_back(slot);
  plan.groups.push_back(world);
  const std::uint64_t more = random.below(3);
  for (std::uint64_t i = 0; i < more; ++i) {
    std::vector<Slot> members;
    for (const Slot slot : world) {
      if (random.chance(60)) members.push_back(slot);
    }
    if (members.size() >= 2) plan.groups.push_back(members);
  }
  const std::uint64_t items = random.between(1, 6);
  for (std::uint64_t i = 0; i < items; ++i) {
    Item item;
    item.group = random.below(plan.groups.size());
    item.call = random_call(random, plan.groups[item.group].size());
    plan.items.push_back(item);
  }
  plan.items.front().group = 0;
  plan.steps = random.between(1, 12);
  plan.has_steps = random.chance(50);
  plan.has_loader = random.chance(50);
  plan.has_agent = random.chance(70);
  plan.reports_waits = random.chance(70);
  plan.finds_mismatches = random.chance(60);
  if (random.chance(60)) plan.timeout = static_cast<std::int64_t>(random.between(5'000, 30'000)) * ms;
  if (plan.has_agent && random.chance(40)) plan.fence = static_cast<std::int64_t>(random.between(3'000, 10'000)) * ms;
  plan.interrupted = plan.has_agent && random.chance(30);
  plan.watched = static_cast<std::int64_t>(random.between(3'000, 60'000)) * ms;
  if (random.chance(30)) plan.slow = world[random.below(plan.slots)];
  plan.fault = static_cast<SimulatedFault>(random.below(simulated_faults));
  plan.culprit = world[random.below(plan.slots)];
  plan.inside = random.chance(50);
  plan.fault_step = random.below(plan.steps);
  if (random.chance(20) && plan.slots > 2 && plan.steps > 2) {
    plan.repaired = world[random.below(plan.slots)];
    plan.repaired_step = random.below(plan.steps - 1);
    plan.replaced = random.chance(60);
    if (plan.fault_step <= plan.repaired_step) plan.fault_step = plan.repaired_step + 1;
    if (!plan.replaced && plan.repaired == plan.culprit) plan.repaired.reset();
  }
  std::vector<std::size_t> fitting;
  for (std::size_t at = 0; at < plan.items.size(); ++at) {
    if (fits(plan, at)) fitting.push_back(at);
  }
  if (fitting.empty()) {
    plan.fault = SimulatedFault::none;
  } else {
    plan.fault_item = fitting[random.below(fitting.size())];
  }
  if (plan.fault == SimulatedFault::none && random.chance(60)) {
    plan.read_at = static_cast<std::int64_t>(random.between(1, 800)) * ms;
  }
  return plan;
}

}  // namespace closeranks::trace
