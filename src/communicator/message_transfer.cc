#include "communicator/message_transfer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace closeranks::communicator {

BufferCursor::BufferCursor(std::vector<Buffer> buffers) : buffers_(std::move(buffers)) {
  for (const Buffer& buffer : buffers_) {
    left_ += buffer.bytes;
  }
}

template <class Copy>
void BufferCursor::walk(std::uint64_t bytes, Copy copy) {
  CR_ASSERT(bytes <= left_);
  left_ -= bytes;
  while (bytes > 0) {
    const Buffer& buffer = buffers_[index_];
    const std::uint64_t part = std::min<std::uint64_t>(bytes, buffer.bytes - offset_);
    if (part > 0) {
      copy(static_cast<std::byte*>(buffer.data) + offset_, part);
    }
    bytes -= part;
    offset_ += part;
    if (offset_ == buffer.bytes) {
      ++index_;
      offset_ = 0;
    }
  }
}

void BufferCursor::read(std::byte* to, std::uint64_t bytes) {
  walk(bytes, [&to](const std::byte* at, std::uint64_t part) {
    std::memcpy(to, at, part);
    to += part;
  });
}

void BufferCursor::write(const std::byte* from, std::uint64_t bytes) {
  walk(bytes, [&from](std::byte* at, std::uint64_t part) {
    std::memcpy(at, from, part);
    from += part;
  });
}

void TransferReport::finish(const Transfer& transfer, Status status, Rank source) {
  finished_.push_back({transfer.id, std::move(status), source});
}

std::vector<Rank> TransferReport::take_touched() {
  const std::set<Rank> touched = std::exchange(touched_, {});
  return {touched.begin(), touched.end()};
}

std::string TransferReport::name_of(Rank member) const {
  return options_.member_word + " " + std::to_string(options_.slots.at(member.value()).value());
}

Status TransferReport::failure(const Transfer& transfer, Rank peer, Fault fault, Move move,
                               std::string_view why) const {
  const std::string op = transfer.is_send ? "send" : "recv";
  Status status(fault, move,
                op + " of tag " + std::to_string(transfer.tag) + (transfer.is_send ? " to " : " from ") +
                    (transfer.peer.has_value() ? name_of(*transfer.peer) : "any source") + " in group " +
                    options_.group_name + ": " + std::string(why));
  status.slot = options_.slots.at(peer.value());
  status.group = options_.group_name;
  status.op = op;
  return status;
}

Status TransferReport::lost(const Transfer& transfer, Rank peer, std::string_view reason) const {
  const std::string because = reason.empty() ? "" : " (" + std::string(reason) + ")";
  return failure(transfer, peer, Fault::peer_lost, Move::repair_group,
                 name_of(peer) + " is lost" + because + " before the message was complete");
}

}  // namespace closeranks::communicator
