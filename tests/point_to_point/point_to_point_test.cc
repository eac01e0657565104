#include "communicator/point_to_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace closeranks::communicator {
namespace {

using ::testing::HasSubstr;
using Departure = PointToPoint::Departure;
using Bytes = std::vector<std::uint8_t>;

constexpr std::uint64_t half = 128 * 1024;

Bytes pattern(std::uint64_t bytes, std::uint8_t seed) {
  Bytes content(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) {
    content[i] = static_cast<std::uint8_t>(seed + i * 7 + i / 251);
  }
  return content;
}

Buffer over(Bytes& bytes) { return {bytes.data(), bytes.size()}; }

// All members of a group in this process: each with its own segment, mapped by the others like those of real peers.
class World {
 public:
  explicit World(std::uint32_t members) : members_(members) {
    transport::SegmentShape shape = transport::SegmentShape::for_members(members);
    shape.region_bytes = 4096;
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      const transport::SegmentIdentity identity{"job", GroupKey(1), "g", WorkerId(rank), Slot(rank), Rank(rank)};
      segments_.push_back(std::move(transport::Segment::create(identity, shape).value()));
    }
    std::vector<Slot> slots;
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      slots.emplace_back(rank);
    }
    held_.assign(members, std::vector<bool>(members, true));
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      ends_.push_back(std::make_unique<PointToPoint>(
          PointToPoint::Options{.group_name = "g", .self = Rank(rank), .slots = slots},
          [this, rank](Rank peer) { return held_[rank][peer.value()] ? &segments_[peer.value()] : nullptr; }));
    }
    finished_.resize(members);
    stopped_.assign(members, false);
  }

  PointToPoint& operator[](std::uint32_t rank) { return *ends_[rank]; }
  // Drives every member that is not stopped, `rounds` times.
  void drive(int rounds = 8) {
    for (int round = 0; round < rounds; ++round) {
      for (std::uint32_t rank = 0; rank < members_; ++rank) {
        if (!stopped_[rank]) {
          drive_one(rank);
        }
      }
    }
  }
  void drive_one(std::uint32_t rank) {
    ends_[rank]->drive();
    ends_[rank]->take_touched();
    for (PointToPoint::Finished& finished : ends_[rank]->take_finished()) {
      EXPECT_TRUE(finished_[rank].emplace(finished.id, finished).second) << "finished twice";
    }
  }
  // The member does nothing more; its memory stays.
  void stop(std::uint32_t rank) { stopped_[rank] = true; }
  void hold(std::uint32_t rank, std::uint32_t peer, bool held) { held_[rank][peer] = held; }
  [[nodiscard]] bool done(std::uint32_t rank, std::uint64_t id) const { return finished_[rank].contains(id); }
  [[nodiscard]] const PointToPoint::Finished& outcome(std::uint32_t rank, std::uint64_t id) const {
    return finished_[rank].at(id);
  }
  [[nodiscard]] bool ok(std::uint32_t rank, std::uint64_t id) const {
    return done(rank, id) && outcome(rank, id).status.ok();
  }
  [[nodiscard]] Fault fault(std::uint32_t rank, std::uint64_t id) const {
    return done(rank, id) ? outcome(rank, id).status.fault() : Fault::none;
  }

 private:
  std::uint32_t members_;
  std::vector<transport::Segment> segments_;
  std::vector<std::vector<bool>> held_;
  std::vector<std::unique_ptr<PointToPoint>> ends_;
  std::vector<std::map<std::uint64_t, PointToPoint::Finished>> finished_;
  std::vector<bool> stopped_;
};

class Sizes : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(OfMessages, Sizes,
                         ::testing::Values(0, 1, 8, half - 1, half, half + 1, 2 * half, 2 * half + 1, 9 * half + 13));

TEST_P(Sizes, ArriveWhole) {
  World world(2);
  for (std::uint8_t turn = 0; turn < 3; ++turn) {  // the slots are used again
    Bytes sent = pattern(GetParam(), turn);
    Bytes got(GetParam());
    const std::uint64_t send = world[0].send(Rank(1), 5, DType::uint8, {over(sent)});
    const std::uint64_t receive = world[1].receive(Rank(0), 5, DType::uint8, {over(got)});
    world.drive(16);
    EXPECT_TRUE(world.ok(0, send));
    EXPECT_TRUE(world.ok(1, receive));
    EXPECT_EQ(world.outcome(1, receive).source, Rank(0));
    EXPECT_EQ(got, sent);
    EXPECT_FALSE(world[0].busy());
    EXPECT_FALSE(world[1].busy());
  }
}

TEST(PointToPoint, ListsOfBuffersCountAsOne) {
  World world(2);
  Bytes sent = pattern(300'000, 1);
  Bytes got(300'000);
  world[0].send(Rank(1), 0, DType::uint8,
                {{sent.data(), 7}, {nullptr, 0}, {sent.data() + 7, 200'000}, {sent.data() + 200'007, 99'993}});
  const std::uint64_t receive =
      world[1].receive(Rank(0), 0, DType::uint8, {{got.data(), 150'001}, {got.data() + 150'001, 149'999}});
  world.drive();
  EXPECT_TRUE(world.ok(1, receive));
  EXPECT_EQ(got, sent);
}

TEST(PointToPoint, SmallSendsNeedNoReceiverLargeOnesDo) {
  World world(2);
  world.stop(1);
  Bytes small = pattern(2 * half, 1);
  Bytes large = pattern(2 * half + 1, 2);
  const std::uint64_t first = world[0].send(Rank(1), 0, DType::uint8, {over(small)});
  const std::uint64_t second = world[0].send(Rank(1), 1, DType::uint8, {over(large)});
  world.drive();
  EXPECT_TRUE(world.ok(0, first));
  EXPECT_FALSE(world.done(0, second));
  EXPECT_EQ(world[0].waiting_for(), std::vector<Rank>{Rank(1)});
}

TEST(PointToPoint, WaitsForASegmentThatIsNotHeldYet) {
  World world(2);
  world.hold(0, 1, false);
  world.hold(1, 0, false);
  Bytes sent = pattern(5 * half, 1);
  Bytes got(5 * half);
  const std::uint64_t send = world[0].send(Rank(1), 0, DType::uint8, {over(sent)});
  const std::uint64_t receive = world[1].receive(Rank(0), 0, DType::uint8, {over(got)});
  world.drive();
  EXPECT_FALSE(world.done(0, send) || world.done(1, receive));
  world.hold(1, 0, true);
  world.hold(0, 1, true);
  world.drive();
  EXPECT_TRUE(world.ok(0, send) && world.ok(1, receive));
  EXPECT_EQ(got, sent);
}

TEST(PointToPoint, OrderHoldsPerTag) {
  World world(2);
  std::vector<Bytes> sent;
  for (std::uint8_t i = 0; i < 20; ++i) {
    sent.push_back(pattern(64, i));
  }
  for (std::uint8_t i = 0; i < 20; ++i) {
    world[0].send(Rank(1), i % 2, DType::uint8, {over(sent[i])});
  }
  world.drive(2);
  std::vector<Bytes> got(20, Bytes(64));
  for (int tag : {1, 0}) {  // the other tag first
    for (int i = tag; i < 20; i += 2) {
      world[1].receive(Rank(0), tag, DType::uint8, {over(got[static_cast<std::size_t>(i)])});
    }
  }
  world.drive();
  EXPECT_EQ(got, sent);
}

// Protocol rule 17: two pairs of isend and irecv, received in the other order; both ways at once.
TEST(PointToPoint, LargeMessagesDoNotWaitInLineBehindEachOther) {
  World world(2);
  Bytes first = pattern(20 * half, 1);
  Bytes second = pattern(20 * half, 2);
  Bytes back = pattern(20 * half, 3);
  Bytes got_second(20 * half);
  Bytes got_first(20 * half);
  Bytes got_back(20 * half);
  const std::uint64_t a = world[0].send(Rank(1), 1, DType::uint8, {over(first)});
  const std::uint64_t b = world[0].send(Rank(1), 2, DType::uint8, {over(second)});
  world[1].send(Rank(0), 1, DType::uint8, {over(back)});
  const std::uint64_t receive_b = world[1].receive(Rank(0), 2, DType::uint8, {over(got_second)});
  world.drive(40);
  EXPECT_TRUE(world.ok(0, b));
  EXPECT_TRUE(world.ok(1, receive_b));
  EXPECT_FALSE(world.done(0, a));
  EXPECT_EQ(got_second, second);
  const std::uint64_t receive_a = world[1].receive(Rank(0), 1, DType::uint8, {over(got_first)});
  const std::uint64_t receive_back = world[0].receive(Rank(1), 1, DType::uint8, {over(got_back)});
  world.drive(40);
  EXPECT_TRUE(world.ok(1, receive_a) && world.ok(0, receive_back));
  EXPECT_EQ(got_first, first);
  EXPECT_EQ(got_back, back);
}

// However many messages nobody receives yet, one whose recv waits gets through.
TEST(PointToPoint, MessagesBeyondTheSlotsAreAskedFor) {
  World world(2);
  constexpr std::int32_t count = 200;
  std::vector<Bytes> sent;
  std::vector<Bytes> got(count, Bytes(3 * half));
  for (std::int32_t tag = 0; tag < count; ++tag) {
    sent.push_back(pattern(3 * half, static_cast<std::uint8_t>(tag)));
  }
  std::vector<std::uint64_t> sends;
  for (std::int32_t tag = 0; tag < count; ++tag) {
    sends.push_back(world[0].send(Rank(1), tag, DType::uint8, {over(sent[static_cast<std::size_t>(tag)])}));
  }
  world.drive(4);
  for (std::int32_t tag = count - 1; tag >= 0; --tag) {  // the last first, one after the other
    Bytes& into = got[static_cast<std::size_t>(tag)];
    const std::uint64_t receive = world[1].receive(Rank(0), tag, DType::uint8, {over(into)});
    world.drive(12);
    ASSERT_TRUE(world.ok(1, receive)) << tag;
  }
  EXPECT_EQ(got, sent);
  for (const std::uint64_t send : sends) {
    EXPECT_TRUE(world.ok(0, send));
  }
}

TEST(PointToPoint, AskingBeforeTheMessageExists) {
  World world(2);
  std::vector<Bytes> sent(64, Bytes(8));
  Bytes got_wanted(8);
  Bytes wanted = pattern(8, 9);
  const std::uint64_t receive = world[1].receive(Rank(0), 1000, DType::uint8, {over(got_wanted)});
  world.drive(2);
  for (Bytes& bytes : sent) {
    world[0].send(Rank(1), 0, DType::uint8, {over(bytes)});
  }
  world.drive(4);  // asked, and told that there is none
  const std::uint64_t send = world[0].send(Rank(1), 1000, DType::uint8, {over(wanted)});
  world.drive(8);
  EXPECT_TRUE(world.ok(0, send) && world.ok(1, receive));
  EXPECT_EQ(got_wanted, wanted);
}

TEST(PointToPoint, AnySourceTellsTheSender) {
  World world(4);
  Bytes sent = pattern(100, 1);
  Bytes got(100);
  const std::uint64_t receive = world[0].receive(std::nullopt, 3, DType::uint8, {over(got)});
  world.drive(2);
  EXPECT_FALSE(world.done(0, receive));
  EXPECT_EQ(world[0].waiting_for(), (std::vector<Rank>{Rank(1), Rank(2), Rank(3)}));
  world[1].send(Rank(0), 4, DType::uint8, {over(sent)});  // another tag
  world[2].send(Rank(0), 3, DType::uint8, {over(sent)});
  world.drive();
  ASSERT_TRUE(world.ok(0, receive));
  EXPECT_EQ(world.outcome(0, receive).source, Rank(2));
  EXPECT_EQ(got, sent);
}

TEST(PointToPoint, OtherSizesAndTypesAreAMismatchBeforeBytesMove) {
  World world(2);
  Bytes sent = pattern(3 * half, 1);
  Bytes got(8, 0xee);
  world[0].send(Rank(1), 0, DType::uint8, {over(sent)});
  const std::uint64_t shorter = world[1].receive(Rank(0), 0, DType::uint8, {over(got)});
  world.drive();
  EXPECT_EQ(world.fault(1, shorter), Fault::mismatch);
  EXPECT_THAT(world.outcome(1, shorter).status.message(), HasSubstr("slot 0 sent 393216 bytes, this call expects 8"));
  EXPECT_EQ(got, Bytes(8, 0xee));
  Bytes eight = pattern(8, 2);
  world[0].send(Rank(1), 0, DType::float64, {over(eight)});
  const std::uint64_t other_type = world[1].receive(Rank(0), 0, DType::int64, {over(got)});
  world.drive();
  EXPECT_EQ(world.fault(1, other_type), Fault::mismatch);
  EXPECT_THAT(world.outcome(1, other_type).status.message(), HasSubstr("float64"));
  // The dropped messages block nothing.
  world[0].send(Rank(1), 0, DType::float64, {over(eight)});
  const std::uint64_t untyped = world[1].receive(Rank(0), 0, DType::bytes, {over(got)});
  world.drive();
  EXPECT_TRUE(world.ok(1, untyped));
  EXPECT_EQ(got, eight);
}

TEST(PointToPoint, WhatTheDeadHadPostedIsStillReceived) {
  World world(2);
  Bytes whole = pattern(2 * half, 1);
  Bytes part = pattern(3 * half, 2);
  Bytes got_whole(2 * half);
  Bytes got_part(3 * half);
  world[0].send(Rank(1), 0, DType::uint8, {over(whole)});
  world[0].send(Rank(1), 0, DType::uint8, {over(part)});
  world.drive_one(0);
  world.stop(0);
  world[1].member_gone(Rank(0), Departure::died, "killed by signal 9");
  const std::uint64_t first = world[1].receive(Rank(0), 0, DType::uint8, {over(got_whole)});
  const std::uint64_t second = world[1].receive(Rank(0), 0, DType::uint8, {over(got_part)});
  const std::uint64_t third = world[1].receive(Rank(0), 0, DType::uint8, {over(got_part)});
  world.drive();
  EXPECT_TRUE(world.ok(1, first));
  EXPECT_EQ(got_whole, whole);
  for (const std::uint64_t id : {second, third}) {
    ASSERT_EQ(world.fault(1, id), Fault::peer_lost);
    const Status& status = world.outcome(1, id).status;
    EXPECT_EQ(status.slot, Slot(0));
    EXPECT_EQ(status.op, "recv");
    EXPECT_EQ(
        status.message(),
        "recv of tag 0 from slot 0 in group g: slot 0 is lost (killed by signal 9) before the message was complete");
  }
  EXPECT_FALSE(world[1].busy());
}

TEST(PointToPoint, LossInTheMiddleEndsBothDirections) {
  World world(3);
  Bytes large = pattern(10 * half, 1);
  Bytes got(10 * half);
  Bytes other = pattern(10 * half, 2);
  Bytes got_other(10 * half);
  const std::uint64_t receive = world[1].receive(Rank(0), 0, DType::uint8, {over(got)});
  const std::uint64_t send = world[1].send(Rank(0), 0, DType::uint8, {over(large)});
  world[0].send(Rank(1), 0, DType::uint8, {over(large)});
  world[2].send(Rank(1), 0, DType::uint8, {over(other)});
  const std::uint64_t from_living = world[1].receive(Rank(2), 0, DType::uint8, {over(got_other)});
  world.drive(3);
  world.stop(0);
  world[1].member_gone(Rank(0), Departure::died, "");
  const std::uint64_t later = world[1].send(Rank(0), 0, DType::uint8, {over(large)});
  world.drive(20);
  EXPECT_EQ(world.fault(1, receive), Fault::peer_lost);
  EXPECT_EQ(world.fault(1, send), Fault::peer_lost);
  EXPECT_EQ(world.fault(1, later), Fault::peer_lost);
  EXPECT_TRUE(world.ok(1, from_living));
  EXPECT_EQ(got_other, other);
}

TEST(PointToPoint, AnySourceAndLostMembers) {
  World world(3);
  Bytes sent = pattern(8, 1);
  Bytes got(8);
  const std::uint64_t pending = world[0].receive(std::nullopt, 0, DType::uint8, {over(got)});
  world[0].member_gone(Rank(1), Departure::died, "gone");
  world.drive(2);
  EXPECT_EQ(world.fault(0, pending), Fault::peer_lost);  // the lost one may have been its sender
  EXPECT_EQ(world.outcome(0, pending).status.slot, Slot(1));
  const std::uint64_t later = world[0].receive(std::nullopt, 0, DType::uint8, {over(got)});
  world.drive(2);
  EXPECT_FALSE(world.done(0, later));
  world[2].send(Rank(0), 0, DType::uint8, {over(sent)});
  world.drive();
  EXPECT_TRUE(world.ok(0, later));
  world[0].member_gone(Rank(2), Departure::died, "gone too");
  const std::uint64_t hopeless = world[0].receive(std::nullopt, 0, DType::uint8, {over(got)});
  world.drive(2);
  EXPECT_EQ(world.fault(0, hopeless), Fault::peer_lost);
}

// Its messages were all posted: what is pending waits for somebody else's.
TEST(PointToPoint, AnySourceWaitsOnWhenAMemberLeft) {
  World world(3);
  Bytes sent = pattern(8, 1);
  Bytes got(8);
  const std::uint64_t pending = world[0].receive(std::nullopt, 0, DType::uint8, {over(got)});
  world[0].member_gone(Rank(1), Departure::left, "it has left the job");
  world.drive(2);
  EXPECT_FALSE(world.done(0, pending));
  world[2].send(Rank(0), 0, DType::uint8, {over(sent)});
  world.drive();
  EXPECT_TRUE(world.ok(0, pending));
  EXPECT_EQ(got, sent);
  const std::uint64_t hopeless = world[0].receive(std::nullopt, 0, DType::uint8, {over(got)});
  world[0].member_gone(Rank(2), Departure::left, "it has left the job");
  world.drive(2);
  EXPECT_EQ(world.fault(0, hopeless), Fault::peer_lost);
}

TEST(PointToPoint, AGivenUpSendIsAnErrorAtTheReceiver) {
  World world(2);
  Bytes large = pattern(6 * half, 1);
  Bytes got(6 * half);
  const std::uint64_t send = world[0].send(Rank(1), 0, DType::uint8, {over(large)});
  world.drive_one(0);
  world[0].cancel(send, Status(Fault::timeout, Move::give_up, "too late"));
  const std::uint64_t receive = world[1].receive(Rank(0), 0, DType::uint8, {over(got)});
  world.drive();
  EXPECT_EQ(world.fault(0, send), Fault::timeout);
  EXPECT_EQ(world.fault(1, receive), Fault::closed);
  EXPECT_THAT(world.outcome(1, receive).status.message(), HasSubstr("slot 0 gave up"));
  for (int i = 0; i < 40; ++i) {  // every slot again, the given-up one too
    const std::uint64_t again = world[0].send(Rank(1), 0, DType::uint8, {over(large)});
    const std::uint64_t received = world[1].receive(Rank(0), 0, DType::uint8, {over(got)});
    world.drive(8);
    ASSERT_TRUE(world.ok(0, again) && world.ok(1, received)) << i;
  }
  EXPECT_EQ(got, large);
}

TEST(PointToPoint, AGivenUpRecvDropsItsBytesAndBlocksNothing) {
  World world(2);
  Bytes large = pattern(6 * half, 1);
  Bytes next = pattern(8, 2);
  Bytes got(6 * half);
  Bytes got_next(8);
  const std::uint64_t unmatched = world[1].receive(Rank(0), 9, DType::uint8, {over(got_next)});
  world[1].cancel(unmatched, Status(Fault::timeout, Move::give_up, "too late"));
  const std::uint64_t receive = world[1].receive(Rank(0), 0, DType::uint8, {over(got)});
  const std::uint64_t send = world[0].send(Rank(1), 0, DType::uint8, {over(large)});
  world.drive(1);
  world.drive_one(1);
  world[1].cancel(receive, Status(Fault::timeout, Move::give_up, "too late"));
  std::fill(got.begin(), got.end(), 0);
  EXPECT_TRUE(world[1].busy());
  world.drive();
  EXPECT_EQ(world.fault(1, unmatched), Fault::timeout);
  EXPECT_EQ(world.fault(1, receive), Fault::timeout);
  EXPECT_TRUE(world.ok(0, send));
  EXPECT_EQ(got, Bytes(6 * half));  // the caller's memory is his again
  world[0].send(Rank(1), 0, DType::uint8, {over(next)});
  const std::uint64_t after = world[1].receive(Rank(0), 0, DType::uint8, {over(got_next)});
  world.drive();
  EXPECT_TRUE(world.ok(1, after));
  EXPECT_EQ(got_next, next);
  EXPECT_FALSE(world[1].busy());
}

TEST(PointToPoint, FailAllEndsEverythingAndWhatComesLater) {
  World world(2);
  Bytes large = pattern(6 * half, 1);
  Bytes got(6 * half);
  std::vector<std::uint64_t> ids{world[0].send(Rank(1), 0, DType::uint8, {over(large)}),
                                 world[0].receive(Rank(1), 0, DType::uint8, {over(got)}),
                                 world[0].receive(std::nullopt, 1, DType::uint8, {over(got)})};
  world.drive(2);
  world[0].fail_all(Status(Fault::closed, Move::give_up, "shut down"));
  ids.push_back(world[0].send(Rank(1), 0, DType::uint8, {over(large)}));
  ids.push_back(world[0].receive(Rank(1), 0, DType::uint8, {over(got)}));
  world.drive(2);
  for (const std::uint64_t id : ids) {
    EXPECT_EQ(world.fault(0, id), Fault::closed);
  }
  EXPECT_FALSE(world[0].busy());
}

TEST(PointToPoint, ToOneself) {
  World world(1);
  Bytes sent = pattern(5 * half, 1);
  Bytes got(5 * half);
  world[0].send(Rank(0), 0, DType::uint8, {over(sent)});
  const std::uint64_t receive = world[0].receive(std::nullopt, 0, DType::uint8, {over(got)});
  world.drive();
  EXPECT_TRUE(world.ok(0, receive));
  EXPECT_EQ(got, sent);
}

// Random traffic among four members, driven in random order: everything arrives, per tag in order.
TEST(PointToPoint, RandomTrafficArrivesInOrder) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    World world(4);
    struct Message {
      Bytes sent;
      Bytes got;
      std::uint64_t send = 0;
      std::uint64_t receive = 0;
      std::uint32_t from = 0;
      std::uint32_t to = 0;
      std::int32_t tag = 0;
    };
    std::vector<std::unique_ptr<Message>> messages;
    std::vector<Message*> to_send;
    std::vector<Message*> to_receive;
    for (int i = 0; i < 150; ++i) {
      auto message = std::make_unique<Message>();
      const std::uint64_t bytes = random() % 4 == 0 ? random() % (4 * half) : random() % 64;
      message->sent = pattern(bytes, static_cast<std::uint8_t>(i));
      message->got.resize(bytes);
      message->from = random() % 4;
      message->to = random() % 4;
      message->tag = static_cast<std::int32_t>(random() % 3) - 1;
      to_send.push_back(message.get());
      to_receive.push_back(message.get());
      messages.push_back(std::move(message));
    }
    std::size_t sends = 0;
    std::size_t receives = 0;
    for (int turn = 0; turn < 20'000; ++turn) {
      switch (random() % 4) {
        case 0:
          if (sends < to_send.size()) {
            Message& message = *to_send[sends++];
            message.send = world[message.from].send(Rank(message.to), message.tag, DType::uint8, {over(message.sent)});
          }
          break;
        case 1:
          if (receives < to_receive.size()) {
            Message& message = *to_receive[receives++];
            message.receive =
                world[message.to].receive(Rank(message.from), message.tag, DType::uint8, {over(message.got)});
          }
          break;
        default:
          world.drive_one(random() % 4);
      }
    }
    for (const auto& message : messages) {
      ASSERT_TRUE(world.ok(message->from, message->send)) << "seed " << seed;
      ASSERT_TRUE(world.ok(message->to, message->receive)) << "seed " << seed;
      ASSERT_EQ(message->sent, message->got) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace closeranks::communicator
