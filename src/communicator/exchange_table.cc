#include "communicator/exchange_table.h"

#include <algorithm>

#include "base/assert.h"

namespace closeranks::communicator {
namespace {

algorithm::Range part_of(std::uint64_t pair_bytes, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t from = std::min(offset, pair_bytes);
  return {from, std::min(bytes, pair_bytes - from)};
}

// Where each of the parts begins when they lie one after the other.
std::vector<std::uint64_t> starts_of(const std::uint64_t* parts, std::uint32_t count) {
  std::vector<std::uint64_t> starts(count);
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    starts[i] = next;
    next += parts[i];
  }
  return starts;
}

}  // namespace

ExchangeTable::ExchangeTable(Rank self, const std::vector<std::uint64_t>& input_bytes,
                             const std::vector<std::uint64_t>& output_bytes)
    : members_(static_cast<std::uint32_t>(input_bytes.size())), self_(self), row_(input_bytes) {
  CR_ASSERT(input_bytes.size() == output_bytes.size() && self.value() < members_);
  row_.insert(row_.end(), output_bytes.begin(), output_bytes.end());
  rows_.resize(std::size_t{2} * members_ * members_);
  row_buffer_ = {{row_.data(), row_bytes(members_)}};
  rows_buffer_ = {{rows_.data(), row_bytes(members_) * members_}};
}

void ExchangeTable::settle(const std::vector<bool>& contributes) {
  CR_ASSERT(!settled_ && contributes[self_.value()]);
  settled_ = true;
  to_self_.resize(members_);
  source_offset_.resize(members_);
  for (std::uint32_t source = 0; source < members_; ++source) {
    std::uint64_t before = 0;  // of the source's inputs
    for (std::uint32_t destination = 0; destination < members_; ++destination) {
      if (!contributes[source] && !contributes[destination]) continue;
      const std::uint64_t sent = contributes[source] ? sends(source, destination) : 0;
      const std::uint64_t expected = contributes[destination] ? expects(destination, source) : sent;
      const std::uint64_t pair = contributes[source] ? sent : expected;
      if (pair != expected && !disagreement_) disagreement_ = {Rank{source}, Rank{destination}, sent, expected};
      longest_pair_bytes_ = std::max(longest_pair_bytes_, pair);
      if (destination == self_.value()) {
        to_self_[source] = pair;
        source_offset_[source] = before;
      }
      before += sent;
    }
  }
  input_offset_ = starts_of(row_.data(), members_);
  output_offset_ = starts_of(row_.data() + members_, members_);
}

algorithm::Range ExchangeTable::to_self(Rank source, std::uint64_t offset, std::uint64_t bytes) const {
  CR_ASSERT(settled_);
  return part_of(to_self_[source.value()], offset, bytes);
}

algorithm::Range ExchangeTable::from_self(Rank destination, std::uint64_t offset, std::uint64_t bytes) const {
  CR_ASSERT(settled_);
  return part_of(row_[destination.value()], offset, bytes);
}

}  // namespace closeranks::communicator
