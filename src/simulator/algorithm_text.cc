#include "simulator/algorithm_text.h"

#include "base/assert.h"

namespace closeranks::simulator {

using algorithm::Action;

std::string describe(const Action& action) {
  const std::string entry = " of entry " + std::to_string(action.sequence);
  const std::string block = "block " + std::to_string(action.block) + entry;
  switch (action.kind) {
    case Action::Kind::none:
      return "does nothing";
    case Action::Kind::reduce_block:
      return "reduces " + block;
    case Action::Kind::publish_block:
      return "publishes " + block + (action.word.state == algorithm::BlockState::final ? " final" : " distributed");
    case Action::Kind::copy_block: {
      const std::string source = std::to_string(action.source.value());
      const std::string from = action.from_scratch ? "the scratch of member " + source
                               : action.zeros      ? "zeros"
                                                   : "the region of member " + source;
      return "copies " + block + " from " + from + " to member " + std::to_string(action.destination.value());
    }
    case Action::Kind::combine_inline:
      return "combines the payloads" + entry;
    case Action::Kind::decide:
      return std::string("decides ") + (action.decision == algorithm::Decision::success ? "success" : "failure") +
             entry;
    case Action::Kind::complete: {
      const std::string culprit = std::to_string(action.culprit.value());
      const std::string how = action.outcome == Fault::none         ? ""
                              : action.outcome == Fault::peer_lost  ? ": peer " + culprit + " lost"
                              : action.outcome == Fault::incomplete ? ": lacks the input of " + culprit
                              : action.outcome == Fault::mismatch   ? ": mismatch, member " + culprit
                                                                    : ": failed";
      return "completes entry " + std::to_string(action.sequence) + how;
    }
    case Action::Kind::publish_completed:
      return "publishes completed " + std::to_string(action.sequence + 1);
  }
  CR_ASSERT(!"an action outside its enum");
}

std::string describe(const Step& step, ViewNumber view) {
  const std::string member = "member " + std::to_string(step.member);
  const std::string number = std::to_string(view.term) + "." + std::to_string(view.n);
  switch (step.kind) {
    case Step::Kind::act:
      return member + " acts";
    case Step::Kind::enter:
      return member + " enters";
    case Step::Kind::connect:
      return member + " gets hold of the memory of all who live";
    case Step::Kind::lose:
      return member + " notices the loss of a peer";
    case Step::Kind::freeze:
      return member + " freezes for view " + number + " and answers";
    case Step::Kind::install:
      return member + " installs its view";
    case Step::Kind::propose:
      return "coordinator proposes view " + number;
    case Step::Kind::join:
      return "a newcomer takes the place of " + member + ": the coordinator decides view " + number;
    case Step::Kind::pass:
      return "the boundary is passed without a newcomer";
    case Step::Kind::fence:
      return member + " is killed, long after it was suspected";
    case Step::Kind::crash:
      return member + " dies";
    case Step::Kind::suspect:
      return member + " is suspected";
    case Step::Kind::restart:
      return "coordinator restarts and proposes view " + number;
  }
  CR_ASSERT(!"a step outside its enum");
}

std::uint32_t input_cells_of(const algorithm::EntryPlan& plan, std::uint32_t members) {
  const bool list = plan.kind == OpKind::reduce_scatter || plan.kind == OpKind::scatter;
  return 2 * plan.blocks_per_unit * (list ? members : 1);
}

std::uint32_t input_block(const algorithm::EntryPlan& plan, std::uint32_t block) {
  const bool list = plan.kind == OpKind::reduce_scatter || plan.kind == OpKind::scatter;
  return list ? block : block % plan.blocks_per_unit;
}

std::uint32_t output_block(const algorithm::EntryPlan& plan, std::uint32_t block) {
  const bool list = plan.kind == OpKind::all_gather || plan.kind == OpKind::gather;
  return list ? block : block % plan.blocks_per_unit;
}

}  // namespace closeranks::simulator
