// The simulated shared memory of one group: every member's words, descriptors, scratch and regions in one flat array,
// so that a branch of the search copies and hashes it at once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "algorithm/group_machine.h"
#include "simulator/algorithm_scenario.h"
#include "simulator/algorithm_values.h"

namespace closeranks::simulator {

// A scenario with what follows from it.
struct AlgorithmSetting {
  explicit AlgorithmSetting(AlgorithmScenario scenario);
  AlgorithmScenario scenario;
  std::vector<algorithm::EntryPlan> plans;  // [entries]
  std::uint32_t blocks = 0;                 // of the largest entry
  std::uint32_t input_cells = 0;            // halves of parts of the largest input
  std::uint32_t output_cells = 0;
  std::uint32_t member_words = 0;  // length of a member's share of the array
  [[nodiscard]] std::uint64_t signature(Rank member, std::uint64_t sequence) const;
  // Halves of parts in a unit.
  [[nodiscard]] std::uint32_t cells(std::uint64_t sequence) const { return 2 * scenario.calls[sequence].parts; }
};

// Units in a member's input (scatter: the root's), and in its output (gather: the root's).
std::uint32_t inputs_of(OpKind kind, std::uint32_t members);
std::uint32_t outputs_of(OpKind kind, std::uint32_t members);

class AlgorithmMemory {
 public:
  explicit AlgorithmMemory(std::shared_ptr<const AlgorithmSetting> setting);

  std::uint64_t& entered(Rank member) { return at(member, 0); }
  std::uint64_t& completed(Rank member) { return at(member, 1); }
  std::uint64_t& connected(Rank member) { return at(member, 2); }
  std::uint64_t& scratch(Rank member, std::uint32_t half) { return at(member, 3 + half); }
  std::uint64_t& signature(Rank member, std::uint64_t sequence);
  std::uint64_t& payload(Rank member, std::uint64_t sequence, std::uint32_t unit);
  std::uint64_t& block_word(Rank member, std::uint64_t sequence, std::uint32_t block);
  std::uint64_t& decision_word(std::uint64_t sequence);  // in rank 0's segment
  // Half a part of a unit of the memory that `member` uses for `sequence`. Outputs lie in the inputs where they may.
  Value& input(Rank member, std::uint64_t sequence, std::uint32_t unit, std::uint32_t cell);
  Value& output(Rank member, std::uint64_t sequence, std::uint32_t unit, std::uint32_t cell);
  // The caller of `sequence` has it back, and writes into all of it.
  void reuse(Rank member, std::uint64_t sequence);

  // A newcomer's memory: all zeros.
  void clear(Rank member);

  [[nodiscard]] const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  std::uint64_t& at(Rank member, std::uint32_t offset) {
    return words_[member.value() * setting_->member_words + offset];
  }
  [[nodiscard]] std::uint32_t ring_slot(std::uint64_t sequence) const;
  [[nodiscard]] std::uint32_t region_offset(std::uint64_t sequence) const;

  std::shared_ptr<const AlgorithmSetting> setting_;
  std::vector<std::uint64_t> words_;
};

// What `reader` sees. Members whose bit is set in `unmapped` read as 0.
class MemoryView : public algorithm::Words {
 public:
  MemoryView(AlgorithmMemory& memory, std::uint32_t unmapped) : memory_(memory), unmapped_(unmapped) {}
  std::uint64_t entered(Rank member) const override;
  std::uint64_t completed(Rank member) const override;
  std::uint64_t block_word(Rank owner, std::uint64_t sequence, std::uint32_t block) const override;
  std::uint64_t signature(Rank member, std::uint64_t sequence) const override;
  std::uint64_t decision_word(std::uint64_t sequence) const override;

 private:
  [[nodiscard]] bool held(Rank member) const { return (unmapped_ >> member.value() & 1) == 0; }
  AlgorithmMemory& memory_;
  std::uint32_t unmapped_;
};

}  // namespace closeranks::simulator
