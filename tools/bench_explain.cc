#include "bench_explain.h"

#include <optional>

#include "algorithm/plan.h"
#include "communicator/call_shape.h"
#include "communicator/group.h"
#include "communicator/in_place.h"

namespace closeranks::bench {
namespace {

using algorithm::BlockStyle;
using algorithm::EntryPlan;

std::string size(std::uint64_t bytes) {
  if (bytes >= (1U << 20) && bytes % (1U << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes >= (1U << 10) && bytes % (1U << 10) == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

std::string side_of(const std::optional<Buffer>& place, const SharedMemory& memory) {
  if (!place) return "staged (not one aligned stretch, or it overlaps the other side)";
  if (memory.contains(place->data, place->bytes)) return "in place (registered memory)";
  return "staged (private memory)";
}

std::string small(const EntryPlan& plan, std::uint32_t members) {
  return "small: " + size(plan.unit_bytes * plan.units) + " per member are within the " +
         size(algorithm::inline_bytes) + " that a descriptor carries; each member combines all " +
         std::to_string(members) + " for itself, with one wait";
}

// How the entry's work is divided.
std::string work_of(const EntryPlan& plan, std::uint32_t members, Rank self) {
  if (plan.style() == BlockStyle::share) {
    return "shared out: an entry of " + size(plan.unit_bytes) + " has " + std::to_string(plan.blocks()) +
           " blocks of up to " + size(plan.block_bytes) + ", dealt to the " + std::to_string(members) +
           " members; an owner reduces its block from all inputs and writes it to " +
           (plan.kind == OpKind::reduce ? "the root" : "every member");
  }
  const algorithm::TakePlan take = algorithm::take_plan(plan, plan.root, self);
  if (take.nothing) return "taken: the others take their parts from this member's input, this one takes nothing";
  const std::string from = take.reduced       ? "reduces its unit of every input into its own output"
                           : take.all_sources ? "copies its unit of every member's input"
                                              : "copies from rank " + std::to_string(take.source.value()) + "'s input";
  return "taken: each member " + from + ", in stretches of up to " + size(algorithm::take_bytes);
}

}  // namespace

std::string explain(const Call& call, std::uint32_t members, Rank self, const SharedMemory& memory) {
  if (call.kind == OpKind::send || call.kind == OpKind::recv) {
    return "a message: two halves of a slot in the sender's segment take turns, copied in and out";
  }
  const communicator::GroupFacts facts{members, self, false, communicator::entry_budget_bytes};
  const Result<communicator::CallShape> shape = communicator::shape_of(call, facts);
  if (!shape.ok()) return shape.status().message();
  communicator::CallShape cut = shape.value();
  if (call.kind == OpKind::all_to_all) {
    // As if every pair were as long as this member's longest: in the bench they are.
    std::uint64_t longest = 0;
    for (const std::uint64_t bytes : call.input_bytes) longest = std::max(longest, bytes);
    cut = communicator::cut(call.kind, call.dtype, longest, facts);
  }
  const EntryPlan plan = algorithm::make_plan(call.kind, call.dtype, call.reduce, call.root,
                                              std::min(cut.piece_unit_bytes, cut.unit_bytes), members);
  if (plan.inlined) return small(plan, members);
  const communicator::InPlace places = communicator::in_place(call, shape.value(), facts);
  std::string text = work_of(plan, members, self);
  text += "; " + std::to_string(cut.pieces) + (cut.pieces == 1 ? " entry" : " entries of " + size(plan.unit_bytes)) +
          ", so that what is staged of one stays within " + size(facts.entry_budget_bytes);
  if (call.kind == OpKind::all_to_all) text += ", after one in which all tell each other their sizes";
  if (communicator::gives_input(call.kind, call.root, facts)) text += "; input " + side_of(places.input, memory);
  if (plan.style() == BlockStyle::share && !call.outputs.empty()) {
    text += "; output " + side_of(places.output, memory);
  } else if (!call.outputs.empty()) {
    text += "; output written where it lies";
  }
  return text;
}

}  // namespace closeranks::bench
