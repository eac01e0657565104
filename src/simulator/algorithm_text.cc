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
    case Action::Kind::claim_block:
      return "claims " + block;
    case Action::Kind::reduce_block:
      return "reduces " + block;
    case Action::Kind::publish_block:
      return "publishes " + block + (action.state == algorithm::BlockState::final ? " final" : " distributed");
    case Action::Kind::copy_block:
      return "copies " + block + " from the scratch of member " + std::to_string(action.source.value()) +
             " to member " + std::to_string(action.destination.value());
    case Action::Kind::take_block:
    case Action::Kind::take_reduced: {
      const std::string source = std::to_string(action.source.value());
      const std::string what = action.kind == Action::Kind::take_reduced ? "the reduction"
                               : action.zeros                            ? "zeros for member " + source
                                                                         : "the input of member " + source;
      return "takes " + what + ", bytes " + std::to_string(action.offset) + " to " +
             std::to_string(action.offset + action.bytes) + entry;
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
                              : action.outcome == Fault::timeout    ? ": given up"
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
    case Step::Kind::give_up:
      return member + "'s op times out";
    case Step::Kind::restart:
      return "coordinator restarts and proposes view " + number;
  }
  CR_ASSERT(!"a step outside its enum");
}

}  // namespace closeranks::simulator
