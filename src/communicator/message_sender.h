// The sending half of point_to_point.h: gives each message a slot towards its destination and posts its pieces.
//
// Per destination, messages are numbered 1, 2, ... as they get a slot. All but `asked_slots` slots are given in the
// order of issue; the last ones only to messages the receiver asks for, so that a message whose recv is waiting never
// stands in line behind others that nobody receives (protocol rule 17), however many there are.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "communicator/message_transfer.h"
#include "communicator/point_to_point.h"

namespace closeranks::communicator {

// Slots kept for messages the receiver asks for, where there are at least twice as many.
inline constexpr std::uint32_t asked_slots = 2;

class MessageSender {
 public:
  MessageSender(TransferReport& report, PointToPoint::SegmentOf segment_of);

  void send(Transfer transfer);
  void drive();
  void member_gone(Rank member, const std::string& reason);
  void member_joined(Rank member);
  // False: no such send (finished already, or a recv).
  bool cancel(std::uint64_t id, const Status& status);
  void fail_all(const Status& status);
  [[nodiscard]] bool busy() const { return unfinished_ > 0; }
  void add_waiting_for(std::vector<bool>& members) const;
  // PointToPoint::untouched; false for what is not here.
  [[nodiscard]] bool untouched(std::uint64_t id) const;

 private:
  // A slot from the first piece of its message to the consumption of the last.
  struct Use {
    bool taken = false;
    bool posting = false;  // `transfer` is unfinished
    std::uint64_t message = 0;
    std::uint64_t posted = 0;  // pieces ever, as in the shared word
    std::uint64_t pieces_left = 0;
    Transfer transfer;
  };
  struct Destination {
    std::deque<Transfer> waiting;  // for a slot, in the order of issue
    std::vector<Use> slots;
    std::uint64_t announced = 0;
    std::uint64_t backlog = 0;
    std::uint64_t answered = 0;
    bool gone = false;
    std::string reason;
  };

  [[nodiscard]] Destination& destination(Rank rank);
  void drive(Rank rank, Destination& destination, const transport::Segment& own);
  bool assign(Rank rank, Destination& destination, const transport::Segment& own,
              const std::deque<Transfer>::iterator& message, std::uint32_t first, std::uint32_t until);
  void answer(Rank rank, Destination& destination, const transport::Segment& own);
  void post(Rank rank, Use& use, std::uint32_t slot, const transport::Segment& own, std::uint64_t consumed);
  [[nodiscard]] std::uint64_t consumed(Rank rank, std::uint32_t slot) const;
  void abort(Rank rank, Use& use, std::uint32_t slot, const Status& status);
  void finish(const Transfer& transfer, Status status);

  TransferReport& report_;
  PointToPoint::SegmentOf segment_of_;
  std::map<Rank, Destination> destinations_;
  std::uint64_t unfinished_ = 0;
};

}  // namespace closeranks::communicator
