#include "communicator/message_sender.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace closeranks::communicator {

using transport::MessageSlot;
using transport::OutboundWords;
using transport::Segment;

MessageSender::MessageSender(TransferReport& report, PointToPoint::SegmentOf segment_of)
    : report_(report), segment_of_(std::move(segment_of)) {}

MessageSender::Destination& MessageSender::destination(Rank rank) { return destinations_[rank]; }

void MessageSender::send(Transfer transfer) {
  Destination& to = destination(*transfer.peer);
  ++unfinished_;
  if (to.gone) {
    finish(transfer, report_.lost(transfer, *transfer.peer, to.reason));
    return;
  }
  to.waiting.push_back(std::move(transfer));
}

void MessageSender::finish(const Transfer& transfer, Status status) {
  --unfinished_;
  report_.finish(transfer, std::move(status), report_.options().self);
}

void MessageSender::drive() {
  const Segment* own = segment_of_(report_.options().self);
  if (unfinished_ == 0 || own == nullptr) {
    return;
  }
  for (auto& [rank, to] : destinations_) {
    if (!to.gone) {
      drive(rank, to, *own);
    }
  }
}

// The receiver's count of pieces of ours it has taken out of `slot`; 0 while its segment is not held: the first two
// pieces need no word of it.
std::uint64_t MessageSender::consumed(Rank rank, std::uint32_t slot) const {
  const Segment* theirs = segment_of_(rank);
  return theirs == nullptr ? 0 : theirs->consumed(report_.options().self, slot).load(std::memory_order_acquire);
}

void MessageSender::drive(Rank rank, Destination& to, const Segment& own) {
  to.slots.resize(own.shape().message_slots);
  for (std::uint32_t slot = 0; slot < to.slots.size(); ++slot) {
    Use& use = to.slots[slot];
    if (use.taken) {
      const std::uint64_t seen = consumed(rank, slot);
      if (use.posting) {
        post(rank, use, slot, own, seen);
      }
      use.taken = use.posting || seen != use.posted;
    }
  }
  const auto slots = static_cast<std::uint32_t>(to.slots.size());
  const std::uint32_t general = slots >= 2 * asked_slots ? slots - asked_slots : slots;
  while (!to.waiting.empty() && assign(rank, to, own, to.waiting.begin(), 0, general)) {
  }
  OutboundWords& words = own.outbound(rank);
  if (!to.waiting.empty() && to.backlog < to.waiting.back().id) {
    // Ids only grow, so this grows whenever another message joins the line: the receiver asks again.
    to.backlog = to.waiting.back().id;
    words.backlog.store(to.backlog, std::memory_order_release);
    report_.touch(rank);
  }
  answer(rank, to, own);
}

// Gives the message a free slot in [first, until), announces it and posts what fits. False: none is free.
bool MessageSender::assign(Rank rank, Destination& to, const Segment& own,
                           const std::deque<Transfer>::iterator& message, std::uint32_t first, std::uint32_t until) {
  const auto free =
      std::find_if(to.slots.begin() + first, to.slots.begin() + until, [](const Use& use) { return !use.taken; });
  if (free == to.slots.begin() + until) {
    return false;
  }
  const auto slot = static_cast<std::uint32_t>(free - to.slots.begin());
  Use& use = *free;
  use.taken = use.posting = true;
  use.transfer = std::move(*message);
  to.waiting.erase(message);
  use.message = ++to.announced;
  use.pieces_left = pieces_of(use.transfer.bytes.left(), own.shape().message_half_bytes);
  MessageSlot& header = own.message_slot(rank, slot);
  header.bytes.store(use.transfer.bytes.left(), std::memory_order_relaxed);
  header.tag.store(use.transfer.tag, std::memory_order_relaxed);
  header.dtype.store(static_cast<std::uint32_t>(use.transfer.dtype), std::memory_order_relaxed);
  header.first_piece.store(use.posted, std::memory_order_relaxed);
  header.message.store(use.message, std::memory_order_release);
  // The receiver believes headers of announced messages only: it then finds all earlier ones of the tag as well.
  own.outbound(rank).announced.store(to.announced, std::memory_order_release);
  report_.touch(rank);
  post(rank, use, slot, own, consumed(rank, slot));
  return true;
}

// Copies the pieces for which there is room: two halves, filled in turn.
void MessageSender::post(Rank rank, Use& use, std::uint32_t slot, const Segment& own, std::uint64_t seen) {
  const std::uint64_t half_bytes = own.shape().message_half_bytes;
  // `seen` is a peer's word: a count beyond what was posted makes no room.
  while (use.pieces_left > 0 && seen <= use.posted && use.posted - seen < 2) {
    const std::uint64_t bytes = std::min(use.transfer.bytes.left(), half_bytes);
    use.transfer.bytes.read(own.message_half(rank, slot, static_cast<std::uint32_t>(use.posted % 2)), bytes);
    own.message_slot(rank, slot).posted.store(++use.posted, std::memory_order_release);
    --use.pieces_left;
    report_.touch(rank);
  }
  if (use.pieces_left == 0) {
    use.posting = false;
    finish(std::exchange(use.transfer, {}), {});
  }
}

// Looks for the message the receiver asks for, among those that wait for a slot.
void MessageSender::answer(Rank rank, Destination& to, const Segment& own) {
  const Segment* theirs = segment_of_(rank);
  if (theirs == nullptr) {
    return;
  }
  transport::InboundWords& words = theirs->inbound(report_.options().self);
  const std::uint64_t query = words.query.load(std::memory_order_acquire);
  if (query == to.answered) {
    return;
  }
  const std::int64_t tag = words.query_tag.load(std::memory_order_relaxed);
  const auto wanted = std::find_if(to.waiting.begin(), to.waiting.end(),
                                   [tag](const Transfer& transfer) { return transfer.tag == tag; });
  const auto slots = static_cast<std::uint32_t>(to.slots.size());
  if (wanted != to.waiting.end() && slots >= 2 * asked_slots &&
      !assign(rank, to, own, wanted, slots - asked_slots, slots)) {
    return;  // answered when one of the two is free again: their messages were asked for, they are being received
  }
  to.answered = query;
  own.outbound(rank).answered.store(query, std::memory_order_release);
  report_.touch(rank);
}

void MessageSender::abort(Rank rank, Use& use, std::uint32_t slot, const Status& status) {
  use.posting = false;
  use.pieces_left = 0;
  if (const Segment* own = segment_of_(report_.options().self); own != nullptr) {
    own->message_slot(rank, slot).aborted.store(use.message, std::memory_order_release);
    report_.touch(rank);
  }
  finish(std::exchange(use.transfer, {}), status);
}

void MessageSender::member_gone(Rank member, const std::string& reason) {
  Destination& to = destination(member);
  to.gone = true;
  to.reason = reason;
  for (Transfer& transfer : std::exchange(to.waiting, {})) {
    finish(transfer, report_.lost(transfer, member, reason));
  }
  for (Use& use : to.slots) {
    if (std::exchange(use.posting, false)) {
      const Transfer transfer = std::exchange(use.transfer, {});
      finish(transfer, report_.lost(transfer, member, reason));
    }
  }
}

bool MessageSender::cancel(std::uint64_t id, const Status& status) {
  for (auto& [rank, to] : destinations_) {
    const auto waiting = std::find_if(to.waiting.begin(), to.waiting.end(),
                                      [id](const Transfer& transfer) { return transfer.id == id; });
    if (waiting != to.waiting.end()) {
      const Transfer transfer = std::move(*waiting);
      to.waiting.erase(waiting);
      finish(transfer, status);
      return true;
    }
    for (std::uint32_t slot = 0; slot < to.slots.size(); ++slot) {
      if (to.slots[slot].posting && to.slots[slot].transfer.id == id) {
        abort(rank, to.slots[slot], slot, status);
        return true;
      }
    }
  }
  return false;
}

// Nothing is left of it: a gone destination has no transfers.
void MessageSender::member_joined(Rank member) { destinations_.erase(member); }

void MessageSender::fail_all(const Status& status) {
  for (auto& [rank, to] : destinations_) {
    for (Transfer& transfer : std::exchange(to.waiting, {})) {
      finish(transfer, status);
    }
    for (std::uint32_t slot = 0; slot < to.slots.size(); ++slot) {
      if (to.slots[slot].posting) {
        abort(rank, to.slots[slot], slot, status);
      }
    }
  }
}

bool MessageSender::untouched(std::uint64_t id) const {
  const Segment* own = segment_of_(report_.options().self);
  for (const auto& [rank, to] : destinations_) {
    for (const Transfer& transfer : to.waiting) {
      if (transfer.id == id) return true;
    }
    for (std::uint32_t slot = 0; slot < to.slots.size(); ++slot) {
      const Use& use = to.slots[slot];
      if (!use.posting || use.transfer.id != id || own == nullptr) continue;
      return consumed(rank, slot) <= own->message_slot(rank, slot).first_piece.load(std::memory_order_relaxed);
    }
  }
  return false;
}

void MessageSender::add_waiting_for(std::vector<bool>& members) const {
  for (const auto& [rank, to] : destinations_) {
    const bool posting = std::any_of(to.slots.begin(), to.slots.end(), [](const Use& use) { return use.posting; });
    if (posting || !to.waiting.empty()) {
      members[rank.value()] = true;
    }
  }
}

}  // namespace closeranks::communicator
