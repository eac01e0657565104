// The receiving half of point_to_point.h: finds announced messages, matches them to recvs and takes out their pieces.
//
// Matching is per source and tag, in the order of issue on both sides. A recv that finds nothing, while its source has
// messages without a slot, asks for its tag (one question per source at a time).
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "communicator/message_transfer.h"
#include "communicator/point_to_point.h"

namespace closeranks::communicator {

class MessageReceiver {
 public:
  MessageReceiver(TransferReport& report, PointToPoint::SegmentOf segment_of);

  void receive(Transfer transfer);
  void drive();
  void member_gone(Rank member, PointToPoint::Departure departure, const std::string& reason);
  void member_joined(Rank member);
  // False: no such recv.
  bool cancel(std::uint64_t id, const Status& status);
  void fail_all(const Status& status);
  // True while recvs are unfinished, or bytes of given-up ones are still dropped.
  [[nodiscard]] bool busy() const;
  void add_waiting_for(std::vector<bool>& members) const;
  // PointToPoint::untouched; false for what is not here.
  [[nodiscard]] bool untouched(std::uint64_t id) const;

 private:
  // Announced, not yet matched.
  struct Arrived {
    std::uint32_t slot = 0;
    std::uint64_t message = 0;
    std::uint64_t bytes = 0;
    DType dtype = DType::bytes;
  };
  // A matched message. Without `transfer` its pieces are dropped.
  struct Flow {
    Arrived message;
    std::uint64_t pieces_left = 0;
    std::uint64_t bytes_left = 0;
    std::optional<Transfer> transfer;
  };
  struct Source {
    std::uint64_t announced = 0;                          // looked at up to here
    std::vector<std::uint64_t> consumed;                  // per slot, as in the shared words
    std::map<std::int32_t, std::deque<Arrived>> arrived;  // per tag, in order
    std::vector<Flow> flows;
    std::uint64_t query = 0;
    bool gone = false;
    std::string reason;
  };
  struct Pending {
    Transfer transfer;
    std::map<Rank, std::uint64_t> asked;  // backlog of a source when it was last asked for this recv
    std::optional<Rank> shaken_by;        // any source: a member that died while this was pending
  };

  void look(Source& source, const transport::Segment& theirs);
  bool match(Pending& pending);
  bool match(Pending& pending, Rank rank);
  void flow(Rank rank, Source& source, const transport::Segment& theirs, const transport::Segment& own);
  // False: the flow is over.
  bool take(Rank rank, Source& source, Flow& flow, const transport::Segment& theirs, const transport::Segment& own);
  void ask(Pending& pending, Rank rank, const transport::Segment& own);
  // The member whose loss ends this unmatched recv.
  [[nodiscard]] std::optional<Rank> doomed_by(const Pending& pending) const;
  [[nodiscard]] std::vector<Rank> sources_of(const Transfer& transfer) const;

  TransferReport& report_;
  PointToPoint::SegmentOf segment_of_;
  std::map<Rank, Source> sources_;
  std::list<Pending> pending_;  // unmatched, in the order of issue
};

}  // namespace closeranks::communicator
