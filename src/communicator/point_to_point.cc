#include "communicator/point_to_point.h"

#include <utility>

#include "communicator/message_receiver.h"
#include "communicator/message_sender.h"
#include "communicator/message_transfer.h"

namespace closeranks::communicator {

struct PointToPoint::State {
  State(Options options, const SegmentOf& segment_of)
      : report(std::move(options)), sender(report, segment_of), receiver(report, segment_of) {}

  Transfer make(bool is_send, std::optional<Rank> peer, std::int32_t tag, DType dtype, std::vector<Buffer> buffers) {
    return {.id = next_id++,
            .is_send = is_send,
            .peer = peer,
            .tag = tag,
            .dtype = dtype,
            .bytes = BufferCursor(std::move(buffers))};
  }

  TransferReport report;
  MessageSender sender;
  MessageReceiver receiver;
  std::uint64_t next_id = 1;
  std::optional<Status> closed;
};

PointToPoint::PointToPoint(Options options, const SegmentOf& segment_of)
    : state_(std::make_unique<State>(std::move(options), segment_of)) {}

PointToPoint::~PointToPoint() = default;

std::uint64_t PointToPoint::send(Rank destination, std::int32_t tag, DType dtype, std::vector<Buffer> inputs) {
  Transfer transfer = state_->make(true, destination, tag, dtype, std::move(inputs));
  const std::uint64_t id = transfer.id;
  if (state_->closed.has_value()) {
    state_->report.finish(transfer, *state_->closed, state_->report.options().self);
  } else {
    state_->sender.send(std::move(transfer));
  }
  return id;
}

std::uint64_t PointToPoint::receive(std::optional<Rank> source, std::int32_t tag, DType dtype,
                                    std::vector<Buffer> outputs) {
  Transfer transfer = state_->make(false, source, tag, dtype, std::move(outputs));
  const std::uint64_t id = transfer.id;
  if (state_->closed.has_value()) {
    state_->report.finish(transfer, *state_->closed);
  } else {
    state_->receiver.receive(std::move(transfer));
  }
  return id;
}

bool PointToPoint::drive() {
  state_->receiver.drive();
  state_->sender.drive();
  return state_->report.touched();
}

std::vector<Rank> PointToPoint::take_touched() { return state_->report.take_touched(); }
std::vector<PointToPoint::Finished> PointToPoint::take_finished() { return state_->report.take_finished(); }
bool PointToPoint::busy() const { return state_->sender.busy() || state_->receiver.busy(); }

std::vector<Rank> PointToPoint::waiting_for() const {
  const std::size_t count = state_->report.options().slots.size();
  std::vector<bool> members(count);
  state_->sender.add_waiting_for(members);
  state_->receiver.add_waiting_for(members);
  std::vector<Rank> ranks;
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    if (members[rank] && Rank(rank) != state_->report.options().self) {
      ranks.emplace_back(rank);
    }
  }
  return ranks;
}

bool PointToPoint::untouched(std::uint64_t id) const {
  return state_->sender.untouched(id) || state_->receiver.untouched(id);
}

void PointToPoint::member_gone(Rank member, Departure departure, const std::string& reason) {
  state_->sender.member_gone(member, reason);
  state_->receiver.member_gone(member, departure, reason);
}

void PointToPoint::member_joined(Rank member) {
  state_->sender.member_joined(member);
  state_->receiver.member_joined(member);
}

void PointToPoint::cancel(std::uint64_t id, const Status& status) {
  if (!state_->sender.cancel(id, status)) {
    state_->receiver.cancel(id, status);
  }
}

void PointToPoint::fail_all(const Status& status) {
  state_->closed = status;
  state_->sender.fail_all(status);
  state_->receiver.fail_all(status);
}

}  // namespace closeranks::communicator
