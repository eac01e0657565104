// The packed words: sequence in the upper 40 bits, then 8 bits of state, then 16 of a rank.
#include "algorithm/group_machine.h"
#include "base/assert.h"

namespace closeranks::algorithm {

namespace {

constexpr unsigned sequence_shift = 24;
constexpr unsigned state_shift = 16;
constexpr std::uint64_t state_mask = 0xff;
constexpr std::uint64_t rank_mask = 0xffff;

std::uint64_t pack_word(std::uint64_t sequence, std::uint8_t state, std::uint32_t rank) {
  CR_ASSERT(sequence < (std::uint64_t{1} << 40) && rank <= rank_mask);
  return sequence << sequence_shift | std::uint64_t{state} << state_shift | rank;
}

std::uint8_t state_of(std::uint64_t word) { return static_cast<std::uint8_t>(word >> state_shift & state_mask); }

}  // namespace

std::uint64_t BlockWord::pack() const { return pack_word(sequence, static_cast<std::uint8_t>(state), holder); }

BlockWord BlockWord::unpack(std::uint64_t word) {
  return {word >> sequence_shift, static_cast<BlockState>(state_of(word)),
          static_cast<std::uint32_t>(word & rank_mask)};
}

bool BlockWord::unclaimed(std::uint64_t word, std::uint64_t sequence) {
  const BlockWord current = unpack(word);
  return current.sequence < sequence || current.state == BlockState::open;
}

std::uint64_t DecisionWord::pack() const { return pack_word(sequence, static_cast<std::uint8_t>(decision), culprit); }

DecisionWord DecisionWord::unpack(std::uint64_t word) {
  return {word >> sequence_shift, static_cast<Decision>(state_of(word)), static_cast<std::uint32_t>(word & rank_mask)};
}

// Epochs have the numbers of views, which start at term 1: none is packed into the 1 of a group as it was made.
std::uint64_t connected_word(ViewNumber epoch) {
  if (epoch == ViewNumber{}) {
    return 1;
  }
  CR_ASSERT(epoch.term > 0 && epoch.n < (std::uint64_t{1} << 40));
  return (std::uint64_t{epoch.term} << 40 | epoch.n) + 1;
}

bool DecisionWord::undecided(std::uint64_t word, std::uint64_t sequence) {
  const DecisionWord current = unpack(word);
  return current.sequence < sequence || (current.sequence == sequence && current.decision == Decision::undecided);
}

}  // namespace closeranks::algorithm
