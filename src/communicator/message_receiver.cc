#include "communicator/message_receiver.h"

#include <algorithm>
#include <utility>

namespace closeranks::communicator {

using transport::InboundWords;
using transport::MessageSlot;
using transport::Segment;

namespace {

// The type a peer wrote: any byte, perhaps none of ours.
std::string dtype_text(DType dtype) {
  return dtype > DType::bytes ? "unknown type " + std::to_string(static_cast<int>(dtype)) : std::string(name_of(dtype));
}

}  // namespace

MessageReceiver::MessageReceiver(TransferReport& report, PointToPoint::SegmentOf segment_of)
    : report_(report), segment_of_(std::move(segment_of)) {}

std::vector<Rank> MessageReceiver::sources_of(const Transfer& transfer) const {
  if (transfer.peer.has_value()) {
    return {*transfer.peer};
  }
  std::vector<Rank> all;
  for (std::uint32_t rank = 0; rank < report_.options().slots.size(); ++rank) {
    all.emplace_back(rank);
  }
  return all;
}

void MessageReceiver::receive(Transfer transfer) {
  for (const Rank rank : sources_of(transfer)) {
    sources_.try_emplace(rank);
  }
  pending_.push_back({.transfer = std::move(transfer), .asked = {}, .shaken_by = {}});
}

bool MessageReceiver::busy() const {
  return !pending_.empty() ||
         std::any_of(sources_.begin(), sources_.end(), [](const auto& source) { return !source.second.flows.empty(); });
}

void MessageReceiver::drive() {
  const Segment* own = segment_of_(report_.options().self);
  if (own == nullptr || !busy()) {
    return;
  }
  for (auto& [rank, source] : sources_) {
    if (const Segment* theirs = segment_of_(rank); theirs != nullptr) {
      look(source, *theirs);
    }
  }
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    if (match(*pending)) {
      pending = pending_.erase(pending);
      continue;
    }
    if (const auto lost = doomed_by(*pending); lost.has_value()) {
      report_.finish(pending->transfer, report_.lost(pending->transfer, *lost, sources_[*lost].reason));
      pending = pending_.erase(pending);
      continue;
    }
    for (const Rank rank : sources_of(pending->transfer)) {
      ask(*pending, rank, *own);
    }
    ++pending;
  }
  for (auto& [rank, source] : sources_) {
    if (const Segment* theirs = segment_of_(rank); theirs != nullptr && !source.flows.empty()) {
      flow(rank, source, *theirs, *own);
    }
  }
}

// Notes every message announced since the last look. Their headers are complete and stay: only we free their slots.
void MessageReceiver::look(Source& source, const Segment& theirs) {
  const Rank self = report_.options().self;
  const std::uint64_t announced = theirs.outbound(self).announced.load(std::memory_order_acquire);
  if (announced <= source.announced) {
    return;
  }
  source.consumed.resize(theirs.shape().message_slots);
  std::vector<std::pair<std::int32_t, Arrived>> found;
  for (std::uint32_t slot = 0; slot < theirs.shape().message_slots; ++slot) {
    const MessageSlot& header = theirs.message_slot(self, slot);
    const std::uint64_t message = header.message.load(std::memory_order_acquire);
    if (message > source.announced && message <= announced) {
      found.emplace_back(header.tag.load(std::memory_order_relaxed),
                         Arrived{.slot = slot,
                                 .message = message,
                                 .bytes = header.bytes.load(std::memory_order_relaxed),
                                 .dtype = static_cast<DType>(header.dtype.load(std::memory_order_relaxed))});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& left, const auto& right) { return left.second.message < right.second.message; });
  for (const auto& [tag, message] : found) {
    source.arrived[tag].push_back(message);
  }
  source.announced = announced;
}

bool MessageReceiver::match(Pending& pending) {
  const std::vector<Rank> candidates = sources_of(pending.transfer);
  return std::any_of(candidates.begin(), candidates.end(), [&](Rank rank) { return match(pending, rank); });
}

// True: the recv has its message (or its error) and is no longer pending.
bool MessageReceiver::match(Pending& pending, Rank rank) {
  Source& source = sources_[rank];
  const auto queue = source.arrived.find(pending.transfer.tag);
  if (queue == source.arrived.end()) {
    return false;
  }
  const Segment* theirs = segment_of_(rank);
  Flow flow;
  flow.message = queue->second.front();
  flow.bytes_left = flow.message.bytes;
  flow.pieces_left = pieces_of(flow.message.bytes, theirs->shape().message_half_bytes);
  queue->second.pop_front();
  if (queue->second.empty()) {
    source.arrived.erase(queue);
  }
  const Transfer& transfer = pending.transfer;
  const bool same_type =
      transfer.dtype == flow.message.dtype || transfer.dtype == DType::bytes || flow.message.dtype == DType::bytes;
  if (flow.message.bytes != transfer.bytes.left() || !same_type) {
    // Compared before any byte moves; the message is dropped.
    const std::string sent =
        std::to_string(flow.message.bytes) + " bytes" + (same_type ? "" : " of " + dtype_text(flow.message.dtype));
    report_.finish(transfer,
                   report_.failure(transfer, rank, Fault::mismatch, Move::fix_call,
                                   report_.name_of(rank) + " sent " + sent + ", this call expects " +
                                       std::to_string(transfer.bytes.left()) + " bytes" +
                                       (same_type ? "" : " of " + std::string(name_of(transfer.dtype)))),
                   rank);
  } else {
    flow.transfer = std::move(pending.transfer);
  }
  source.flows.push_back(std::move(flow));
  return true;
}

void MessageReceiver::flow(Rank rank, Source& source, const Segment& theirs, const Segment& own) {
  std::vector<Flow> going;
  for (Flow& flow : source.flows) {
    if (take(rank, source, flow, theirs, own)) {
      going.push_back(std::move(flow));
    }
  }
  source.flows = std::move(going);
}

bool MessageReceiver::take(Rank rank, Source& source, Flow& flow, const Segment& theirs, const Segment& own) {
  const Rank self = report_.options().self;
  const MessageSlot& header = theirs.message_slot(self, flow.message.slot);
  // Before `posted`: whatever was posted until the sender gave up is then seen.
  const bool aborted = header.aborted.load(std::memory_order_acquire) == flow.message.message;
  const std::uint64_t posted = header.posted.load(std::memory_order_acquire);
  std::uint64_t& consumed = source.consumed[flow.message.slot];
  while (flow.pieces_left > 0 && consumed < posted) {
    const std::uint64_t bytes = std::min(flow.bytes_left, theirs.shape().message_half_bytes);
    if (flow.transfer.has_value()) {
      flow.transfer->bytes.write(theirs.message_half(self, flow.message.slot, static_cast<std::uint32_t>(consumed % 2)),
                                 bytes);
    }
    flow.bytes_left -= bytes;
    --flow.pieces_left;
    ++consumed;
    own.consumed(rank, flow.message.slot).store(consumed, std::memory_order_release);
    report_.touch(rank);
  }
  if (flow.pieces_left == 0) {
    if (flow.transfer.has_value()) {
      report_.finish(*flow.transfer, {}, rank);
    }
    return false;
  }
  if (!aborted && !source.gone) {
    return true;
  }
  if (flow.transfer.has_value()) {
    report_.finish(*flow.transfer,
                   aborted ? report_.failure(*flow.transfer, rank, Fault::closed, Move::repair_group,
                                             report_.name_of(rank) + " gave up sending in the middle of the message")
                           : report_.lost(*flow.transfer, rank, source.reason),
                   rank);
  }
  return false;
}

// Asks the source for a message of this tag, when it has messages in line that were not there at the last time.
void MessageReceiver::ask(Pending& pending, Rank rank, const Segment& own) {
  const Segment* theirs = segment_of_(rank);
  Source& source = sources_[rank];
  if (theirs == nullptr || source.gone) {
    return;
  }
  const transport::OutboundWords& words = theirs->outbound(report_.options().self);
  const std::uint64_t backlog = words.backlog.load(std::memory_order_acquire);
  std::uint64_t& asked = pending.asked[rank];
  if (backlog <= asked || words.answered.load(std::memory_order_acquire) != source.query) {
    return;
  }
  asked = backlog;
  InboundWords& question = own.inbound(rank);
  question.query_tag.store(pending.transfer.tag, std::memory_order_relaxed);
  question.query.store(++source.query, std::memory_order_release);
  report_.touch(rank);
}

std::optional<Rank> MessageReceiver::doomed_by(const Pending& pending) const {
  if (pending.transfer.peer.has_value()) {
    const Rank peer = *pending.transfer.peer;
    return sources_.at(peer).gone ? std::optional(peer) : std::nullopt;
  }
  if (pending.shaken_by.has_value()) {
    return pending.shaken_by;
  }
  std::optional<Rank> lost;
  for (const Rank rank : sources_of(pending.transfer)) {
    if (rank == report_.options().self) {
      continue;
    }
    if (!sources_.at(rank).gone) {
      return std::nullopt;
    }
    lost = rank;
  }
  return lost;
}

void MessageReceiver::member_gone(Rank member, PointToPoint::Departure departure, const std::string& reason) {
  Source& source = sources_[member];
  source.gone = true;
  source.reason = reason;
  if (departure == PointToPoint::Departure::left) return;
  for (Pending& pending : pending_) {
    if (!pending.transfer.peer.has_value() && !pending.shaken_by.has_value()) {
      pending.shaken_by = member;
    }
  }
}

void MessageReceiver::member_joined(Rank member) {
  const auto found = sources_.find(member);
  if (found != sources_.end()) found->second = Source{};
  for (Pending& pending : pending_) pending.asked.erase(member);
}

bool MessageReceiver::cancel(std::uint64_t id, const Status& status) {
  const auto waiting = std::find_if(pending_.begin(), pending_.end(),
                                    [id](const Pending& pending) { return pending.transfer.id == id; });
  if (waiting != pending_.end()) {
    report_.finish(waiting->transfer, status);
    pending_.erase(waiting);
    return true;
  }
  for (auto& [rank, source] : sources_) {
    for (Flow& flow : source.flows) {
      if (flow.transfer.has_value() && flow.transfer->id == id) {
        report_.finish(*std::exchange(flow.transfer, std::nullopt), status, rank);
        return true;
      }
    }
  }
  return false;
}

void MessageReceiver::fail_all(const Status& status) {
  for (const Pending& pending : std::exchange(pending_, {})) {
    report_.finish(pending.transfer, status);
  }
  for (auto& [rank, source] : sources_) {
    for (Flow& flow : source.flows) {
      if (flow.transfer.has_value()) {
        report_.finish(*std::exchange(flow.transfer, std::nullopt), status, rank);
      }
    }
  }
}

bool MessageReceiver::untouched(std::uint64_t id) const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [id](const Pending& pending) { return pending.transfer.id == id; });
}

void MessageReceiver::add_waiting_for(std::vector<bool>& members) const {
  for (const Pending& pending : pending_) {
    for (const Rank rank : sources_of(pending.transfer)) {
      members[rank.value()] = true;
    }
  }
  for (const auto& [rank, source] : sources_) {
    if (!source.flows.empty()) {
      members[rank.value()] = true;
    }
  }
}

}  // namespace closeranks::communicator
