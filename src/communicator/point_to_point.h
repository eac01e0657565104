// send and recv over the segments of one group: messages of up to any size travel through the message slots of the
// sender's segment, two halves each, filled and emptied in turn. Numbered per (source, destination) and matched per
// tag in the order of their issue; messages of different tags, peers and directions move side by side and never wait
// in line behind each other (protocol rule 17).
//
// A step machine: the engine calls drive() under its drive lock; it moves what can be moved and returns. It waits for
// nothing, takes no lock and reads no clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/communicator.h"
#include "closeranks/ids.h"
#include "closeranks/op.h"
#include "closeranks/status.h"
#include "transport/segment.h"

namespace closeranks::communicator {

class PointToPoint {
 public:
  struct Options {
    std::string group_name;
    std::string member_word = "slot";  // how errors name a member (EngineOptions::member_word)
    Rank self;
    std::vector<Slot> slots;  // of the members, rank order
  };
  // The segment of a member, or nullptr while it is not held (the transfer then waits for it). Called from drive().
  // A segment, once given, must stay valid as long as this object.
  using SegmentOf = std::function<const transport::Segment*(Rank)>;

  // A transfer that is over. `source` is the sender of a recv.
  struct Finished {
    std::uint64_t id = 0;
    Status status;
    Rank source;
  };

  PointToPoint(Options options, const SegmentOf& segment_of);
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Queues a transfer and returns its id (unique in this object). The buffers must stay valid until it is finished.
  // A send is finished when its last byte is posted: up to two halves (256 KiB) at once, without the receiver.
  // Nothing is moved before the next drive().
  std::uint64_t send(Rank destination, std::int32_t tag, DType dtype, std::vector<Buffer> inputs);
  // nullopt: from any member.
  std::uint64_t receive(std::optional<Rank> source, std::int32_t tag, DType dtype, std::vector<Buffer> outputs);

  // Moves what can be moved. True when a word that a peer may wait for was stored: ring the peers' doorbells
  // (take_touched() names them).
  bool drive();
  // Ranks whose doorbell must be rung since the last call.
  std::vector<Rank> take_touched();
  // Transfers finished since the last call, in the order they finished.
  std::vector<Finished> take_finished();
  // True while transfers are unfinished.
  [[nodiscard]] bool busy() const;
  // Members that unfinished transfers wait for (those named; an any-source recv waits for all).
  [[nodiscard]] std::vector<Rank> waiting_for() const;

  // No byte of this unfinished transfer has moved: the other side has not called what fits it, as of the last drive().
  [[nodiscard]] bool untouched(std::uint64_t id) const;

  enum class Departure : std::uint8_t {
    died,  // in the middle of whatever it did
    left,  // after it had finished its sends, or given them up with an error of its own
  };
  // The member is gone for good. Its messages that were posted to the end can still be received; transfers that need
  // more of it finish with Fault::peer_lost (`reason`: "killed by signal 9", may be empty). An any-source recv that is
  // pending when a member dies finishes with the same fault, because the member may have been its sender; one that
  // meets a member that left, or comes later, only when all other members are gone.
  void member_gone(Rank member, Departure departure, const std::string& reason);
  // Another worker has taken the member's place: everything begins anew with it, from message 1. Its predecessor must
  // be gone. Receives that wait for the member go on to wait for the new one.
  void member_joined(Rank member);
  // Ends one transfer with `status` (a deadline); bytes of it that still arrive are dropped. No effect when finished.
  void cancel(std::uint64_t id, const Status& status);
  // Ends all, and all later ones (shutdown).
  void fail_all(const Status& status);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace closeranks::communicator
