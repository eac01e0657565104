// The sizes of an all_to_all: every member's row of bytes to and from each, given to all by the op's first entry. What
// follows from them (do they fit together, how long is the longest pair, where does a pair lie) is the same on all
// members. Not thread-safe (drive lock).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "algorithm/plan.h"
#include "closeranks/communicator.h"
#include "closeranks/ids.h"

namespace closeranks::communicator {

class ExchangeTable {
 public:
  // `input_bytes`, `output_bytes`: of this member's call, one number for each of the group.
  ExchangeTable(Rank self, const std::vector<std::uint64_t>& input_bytes,
                const std::vector<std::uint64_t>& output_bytes);

  // Input and output of the table's entry, an all_gather: this member's row, and everybody's rows.
  [[nodiscard]] static std::uint64_t row_bytes(std::uint32_t members) { return std::uint64_t{16} * members; }
  [[nodiscard]] const std::vector<Buffer>& row() const { return row_buffer_; }
  [[nodiscard]] const std::vector<Buffer>& rows() const { return rows_buffer_; }

  // The entry is complete. Nothing of the following may be asked before. Rows of members that do not contribute are not
  // looked at: nobody sends anything from there, and who expects something gets zeros.
  void settle(const std::vector<bool>& contributes);
  [[nodiscard]] bool settled() const { return settled_; }

  // The first pair, in rank order, whose members do not agree on its length.
  struct Disagreement {
    Rank source;
    Rank destination;
    std::uint64_t sent_bytes = 0;
    std::uint64_t expected_bytes = 0;
  };
  [[nodiscard]] const std::optional<Disagreement>& disagreement() const { return disagreement_; }
  [[nodiscard]] std::uint64_t longest_pair_bytes() const { return longest_pair_bytes_; }

  // The part of [offset, offset + bytes) that there is of the pair from `source` to this member.
  [[nodiscard]] algorithm::Range to_self(Rank source, std::uint64_t offset, std::uint64_t bytes) const;
  // The same of the pair from this member to `destination`.
  [[nodiscard]] algorithm::Range from_self(Rank destination, std::uint64_t offset, std::uint64_t bytes) const;
  // Where the pair from `source` to this member begins in the source's inputs, and in this member's outputs; where the
  // pair from this member to `destination` begins in this member's inputs.
  [[nodiscard]] std::uint64_t source_offset(Rank source) const { return source_offset_[source.value()]; }
  [[nodiscard]] std::uint64_t output_offset(Rank source) const { return output_offset_[source.value()]; }
  [[nodiscard]] std::uint64_t input_offset(Rank destination) const { return input_offset_[destination.value()]; }

 private:
  [[nodiscard]] std::uint64_t sends(std::uint32_t source, std::uint32_t destination) const {
    return rows_[std::size_t{2} * members_ * source + destination];
  }
  [[nodiscard]] std::uint64_t expects(std::uint32_t destination, std::uint32_t source) const {
    return rows_[std::size_t{2} * members_ * destination + members_ + source];
  }

  std::uint32_t members_;
  Rank self_;
  std::vector<std::uint64_t> row_;   // [2n]: to each, from each
  std::vector<std::uint64_t> rows_;  // [n][2n]
  std::vector<Buffer> row_buffer_;
  std::vector<Buffer> rows_buffer_;
  bool settled_ = false;
  std::optional<Disagreement> disagreement_;
  std::uint64_t longest_pair_bytes_ = 0;
  std::vector<std::uint64_t> to_self_;        // [n] bytes of the pair
  std::vector<std::uint64_t> source_offset_;  // [n]
  std::vector<std::uint64_t> output_offset_;  // [n]
  std::vector<std::uint64_t> input_offset_;   // [n]
};

}  // namespace closeranks::communicator
