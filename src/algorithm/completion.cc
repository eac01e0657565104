// How an entry ends: readiness, signatures, decisions, and the order of its last steps.
#include "algorithm/group_machine.h"
#include "base/assert.h"

namespace closeranks::algorithm {

namespace {

// A member outside the largest party of equal signatures; if no party has a majority, outside the lowest member's.
// Every member sees the same signatures, so all name the same culprit. Precondition: they are not all equal.
Rank minority(const Words& words, const Roster& roster, std::uint32_t members, std::uint64_t sequence) {
  const auto for_each_contributor = [&](auto&& visit) {
    for (std::uint32_t member = 0; member < members; ++member) {
      if (roster.contributes(Rank{member}, sequence)) {
        visit(Rank{member}, words.signature(Rank{member}, sequence));
      }
    }
  };
  // Boyer and Moore's vote, then a count, for a vote without a majority elects anybody.
  std::uint64_t elected = 0;
  std::uint32_t lead = 0;
  for_each_contributor([&](Rank, std::uint64_t signature) {
    if (lead == 0) {
      elected = signature;
    }
    lead += signature == elected ? 1 : -1;
  });
  std::uint32_t votes = 0;
  std::uint32_t voters = 0;
  for_each_contributor([&](Rank, std::uint64_t signature) {
    votes += signature == elected ? 1 : 0;
    ++voters;
  });
  if (votes * 2 <= voters) {
    elected = words.signature(roster.lowest_contributor(sequence), sequence);
  }
  std::optional<Rank> culprit;
  for_each_contributor([&](Rank member, std::uint64_t signature) {
    if (!culprit && signature != elected) {
      culprit = member;
    }
  });
  CR_ASSERT(culprit.has_value());
  return *culprit;
}

}  // namespace

Action GroupMachine::finish_lowest(const Words& words) {
  const std::uint64_t sequence = completed_;
  OpenEntry& lowest = open(sequence);
  const EntryPlan& plan = lowest.entry.plan;
  const bool swap_decides = policy_ == Policy::fail && options_->rules.decide_by_swap;
  if (policy_ != Policy::fail) {
    if (const std::optional<Rank> culprit = roster_->lost(plan, sequence, options_->lowest_member_is_root)) {
      return complete(Fault::peer_lost, *culprit);
    }
  }
  if (lost_ && swap_decides) {
    // Does the entry succeed all the same? Whoever swaps first says so.
    const std::uint64_t word = words.decision_word(sequence);
    if (DecisionWord::undecided(word, sequence)) {
      Action deciding = action(Action::Kind::decide, sequence);
      deciding.decision = Decision::failed;
      deciding.culprit = *lost_;
      return deciding;
    }
  }
  const Readiness ready = readiness(lowest, words);
  if (ready == Readiness::mismatched) {
    return fail_from_lowest(Fault::mismatch, lowest.culprit);
  }
  const bool finished = ready == Readiness::ready && (plan.inlined || all_distributed(lowest, words));
  if (policy_ == Policy::fail && (finished || lost_)) {
    if (!swap_decides) {
      if (!finished) {
        return fail_from_lowest(Fault::peer_lost, *lost_);
      }
    } else {
      const std::uint64_t word = words.decision_word(sequence);
      if (DecisionWord::undecided(word, sequence)) {
        Action deciding = action(Action::Kind::decide, sequence);
        deciding.decision = Decision::success;
        return deciding;
      }
      const DecisionWord decided = DecisionWord::unpack(word);
      if (decided.sequence == sequence && decided.decision == Decision::failed) {
        return fail_from_lowest(Fault::peer_lost, Rank{decided.culprit});
      }
    }
  }
  if (!finished) {
    return {};
  }
  if (const std::optional<Rank> missed = missing(lowest.entry)) {
    return complete(Fault::incomplete, *missed);
  }
  const bool for_root = plan.kind == OpKind::gather || plan.kind == OpKind::reduce;
  const bool has_output = plan.unit_bytes > 0 && (!for_root || plan.root == options_->self);
  if (plan.inlined && has_output && !combined_) {
    return action(Action::Kind::combine_inline, sequence);
  }
  return complete(Fault::none, Rank{});
}

// Policy exact: the lowest member that the entry's step counts on and that is not in the entry. Who contributes is
// final, so every survivor says the same of the entry.
std::optional<Rank> GroupMachine::missing(const Entry& entry) const {
  if (policy_ != Policy::exact || roster_->all_present()) {
    return std::nullopt;
  }
  for (std::uint32_t member = 0; member < options_->members; ++member) {
    if (!roster_->contributes(Rank{member}, entry.sequence) && roster_->expected(Rank{member}, entry.step_start)) {
      return Rank{member};
    }
  }
  return std::nullopt;
}

Action GroupMachine::complete(Fault outcome, Rank culprit) const {
  Action result = action(Action::Kind::complete, completed_);
  result.outcome = outcome;
  result.culprit = culprit;
  return result;
}

Action GroupMachine::fail_from_lowest(Fault outcome, Rank culprit) {
  failure_ = Failure{outcome, culprit, completed_};
  lost_.reset();
  work_ = Work{};
  return complete(outcome, culprit);
}

GroupMachine::Readiness GroupMachine::readiness(OpenEntry& entry, const Words& words) {
  if (entry.readiness != Readiness::waiting) {
    return entry.readiness;
  }
  const std::uint64_t sequence = entry.entry.sequence;
  const std::uint32_t members = options_->members;
  if (options_->rules.wait_for_contributors) {
    // An excluded member that counts has entered: that is why it counts.
    for (; entry.entered_cursor < members; ++entry.entered_cursor) {
      const Rank member{entry.entered_cursor};
      if (member != options_->self && roster_->present(member) && words.entered(member) <= sequence) {
        return Readiness::waiting;
      }
    }
  }
  entry.readiness = Readiness::ready;
  for (std::uint32_t member = 0; options_->rules.compare_signatures && member < members; ++member) {
    if (Rank{member} != options_->self && roster_->contributes(Rank{member}, sequence) &&
        words.signature(Rank{member}, sequence) != entry.entry.signature) {
      entry.readiness = Readiness::mismatched;
      entry.culprit = minority(words, *roster_, members, sequence);
      break;
    }
  }
  return entry.readiness;
}

bool GroupMachine::all_distributed(OpenEntry& entry, const Words& words) const {
  for (; entry.distributed_cursor < entry.entry.plan.blocks(); ++entry.distributed_cursor) {
    if (awaited(entry.entry, entry.distributed_cursor, words)) {
      return false;
    }
  }
  return true;
}

std::optional<Rank> GroupMachine::awaited(const Entry& entry, std::uint32_t block, const Words& words) const {
  if (entry.plan.style() == BlockStyle::take) {
    return awaited_taker(entry, Rank{block}, words);
  }
  const std::uint64_t word = words.block_word(home_of_words(entry.sequence), entry.sequence, block);
  if (BlockWord::unclaimed(word, entry.sequence)) {
    return options_->self;  // anybody may: so this member, as soon as it drives
  }
  const BlockWord found = BlockWord::unpack(word);
  const bool distributed = found.state == BlockState::distributed;
  return distributed ? std::nullopt : std::optional(roster_->seats().heir(Rank{found.holder}, block));
}

}  // namespace closeranks::algorithm
