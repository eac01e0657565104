// Whom an op waits for, as far as it takes a call of theirs; and the group's end when such waits form a circle.
#include <algorithm>

#include "communicator/group.h"
#include "communicator/issuers.h"

namespace closeranks::communicator {
namespace {

bool is_message(const Operation& operation) {
  return operation.call().kind == OpKind::send || operation.call().kind == OpKind::recv;
}

}  // namespace

std::uint64_t Group::epoch_word() const { return algorithm::connected_word(machine_.epoch()); }

// nullptr: its line is not held, or counts another epoch's calls.
const transport::IssuerLine* Group::line_of(Rank member) const {
  const transport::Segment* segment = members_.segment(member);
  if (segment == nullptr || segment->connected().load(std::memory_order_acquire) != epoch_word()) return nullptr;
  return &segment->issuers();
}

std::vector<std::uint32_t> Group::callers(Rank member) const {
  const transport::IssuerLine* line = line_of(member);
  return line == nullptr ? std::vector<std::uint32_t>{} : read_issuers(*line).threads;
}

Group::Awaited Group::awaited_by(const Operation& operation) const {
  Awaited awaited;
  if (broken_ || operation.done()) return awaited;
  const algorithm::RankSet& present = machine_.present();
  std::vector<Rank> others;
  for (std::uint32_t r = 0; r < members_.size(); ++r) {
    if (present[r] && Rank{r} != members_.self()) others.push_back(Rank{r});
  }
  if (!is_message(operation)) {
    for (const Rank rank : others) {
      const transport::IssuerLine* line = line_of(rank);
      if (line != nullptr && !has_called(read_issuers(*line).collectives, operation.place)) {
        awaited.members.push_back(rank);
      }
    }
    return awaited;
  }
  const auto transfer = std::find_if(transfers_.begin(), transfers_.end(),
                                     [&operation](const auto& one) { return one.second.get() == &operation; });
  if (transfer == transfers_.end() || !point_to_point_.untouched(transfer->first)) return awaited;
  awaited.any = operation.call().any_source;
  awaited.members = awaited.any ? others : std::vector<Rank>{operation.call().root};
  return awaited;
}

std::uint32_t Group::lowest_place() const {
  if (!entries_.empty()) return entries_.front().operation->place;
  return queue_.empty() ? issuers_.collectives() : queue_.front()->place;
}

std::shared_ptr<Operation> Group::stuck_without(const std::vector<std::optional<std::uint32_t>>& failed_at) const {
  std::shared_ptr<Operation> lowest = !entries_.empty() ? entries_.front().operation
                                      : queue_.empty()  ? nullptr
                                                        : queue_.front();
  for (const std::optional<std::uint32_t>& place : failed_at) {
    // What a member finished before it failed, will be finished here.
    if (lowest != nullptr && place && static_cast<std::int32_t>(lowest->place - *place) >= 0) return lowest;
  }
  for (const auto& [id, operation] : transfers_) {
    if (!operation->call().any_source) {
      if (failed_at[operation->call().root.value()]) return operation;
      continue;
    }
    bool all = members_.size() > 1;
    for (std::uint32_t r = 0; r < members_.size(); ++r) {
      all = all && (Rank{r} == members_.self() || !machine_.present()[r] || failed_at[r]);
    }
    if (all) return operation;
  }
  return nullptr;
}

std::string Group::call_text(const Operation& operation) const {
  return describe_op(operation) + " of group '" + options_.name + "'";
}

Status Group::circle_status(const std::string& sentence, const Operation* operation) const {
  const std::string what = operation == nullptr ? "All ops of group '" + options_.name + "' fail from here on"
                                                : call_text(*operation) + " and all later ops of the group fail";
  Status status(
      Fault::mismatch, Move::fix_call,
      sentence + ". They wait for each other for ever: make these calls in the same order on every member. " + what);
  status.group = options_.name;
  if (operation == nullptr) return status;
  status.op = describe_op(*operation);
  status.sequence = operation->sequence();
  return status;
}

}  // namespace closeranks::communicator
