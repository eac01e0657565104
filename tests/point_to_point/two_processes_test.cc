// Point to point between real processes: a stream that ends with a kill, and a stream under load both ways.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "../transport/child_process.h"
#include "communicator/point_to_point.h"
#include "transport/life.h"
#include "transport/segment.h"
#include "transport/waiter.h"

namespace closeranks::communicator {
namespace {

using namespace std::chrono_literals;
using transport::Channel;
using transport::ChildProcess;
using transport::LifeIdentity;
using transport::OwnLife;
using transport::PeerLife;
using transport::Segment;
using transport::Waiter;
using transport::Wake;

// One of two members: its own memory, its peer's, and a waiter between the two.
struct Member {
  explicit Member(std::uint32_t rank) : self(rank), other(1 - rank) {
    shape.region_bytes = 4096;
    life = std::move(OwnLife::create(life_of(self), 2).value());
    own.emplace(std::move(Segment::create(identity_of(self), shape).value()));
  }
  static LifeIdentity life_of(std::uint32_t rank) { return {"job", WorkerId(rank), Slot(rank)}; }
  static transport::SegmentIdentity identity_of(std::uint32_t rank) {
    return {"job", GroupKey(1), "g", WorkerId(rank), Slot(rank), Rank(rank)};
  }
  void meet(const Channel& channel) {
    channel.say('l', &life->descriptor());
    channel.say('s', &own->descriptor());
    FileDescriptor life_memory;
    FileDescriptor segment_memory;
    ASSERT_EQ(channel.hear(&life_memory), 'l');
    ASSERT_EQ(channel.hear(&segment_memory), 's');
    peer_life.emplace(std::move(PeerLife::attach(std::move(life_memory), life_of(other), self).value()));
    peer.emplace(std::move(Segment::attach(std::move(segment_memory), identity_of(other), shape).value()));
    end = std::make_unique<PointToPoint>(
        PointToPoint::Options{.group_name = "g", .self = Rank(self), .slots = {Slot(0), Slot(1)}},
        [this](Rank rank) { return rank == Rank(self) ? &*own : &*peer; });
    waiter.emplace(life->doorbell());
  }
  void drive() {
    if (end->drive()) {
      end->take_touched();
      peer_life->doorbell().ring();
    }
  }
  // The status of the transfer; PeerLost once the peer is dead and has left nothing more.
  Status finish(std::uint64_t id) {
    std::optional<Status> status;
    const auto poll = [&] {
      drive();
      for (PointToPoint::Finished& finished : end->take_finished()) {
        if (finished.id == id) {
          status = finished.status;
        }
      }
      return status.has_value();
    };
    const std::array<const PeerLife*, 1> peers{&*peer_life};
    const Wake wake = waiter->wait(
        poll, [&] { return peers_known_lost ? std::span<const PeerLife* const>() : std::span(peers); },
        Waiter::Clock::now() + 20s);
    if (wake == Wake::death) {
      end->member_gone(Rank(other), PointToPoint::Departure::died, "killed");
      peers_known_lost = true;
      return finish(id);
    }
    return status.value_or(Status(Fault::timeout, Move::none, "the test's bound"));
  }

  std::uint32_t self;
  std::uint32_t other;
  transport::SegmentShape shape = transport::SegmentShape::for_members(2);
  std::unique_ptr<OwnLife> life;
  std::optional<Segment> own;
  std::optional<PeerLife> peer_life;
  std::optional<Segment> peer;
  std::unique_ptr<PointToPoint> end;
  std::optional<Waiter> waiter;
  bool peers_known_lost = false;
};

// Message i of the stream; sizes from inline to many halves.
std::vector<std::uint32_t> content(std::uint32_t i) {
  return std::vector<std::uint32_t>(i % 5 == 0 ? 400'000 : i * 37 % 3000, i * 2654435761u);
}

TEST(PointToPointProcesses, ReceivesTheStreamInOrderUntilTheSenderIsKilled) {
  ChildProcess child([](const Channel& parent) {
    Member sender(1);
    sender.meet(parent);
    for (std::uint32_t i = 0;; ++i) {
      std::vector<std::uint32_t> words = content(i);
      const std::uint64_t id = sender.end->send(Rank(0), 0, DType::uint32, {{words.data(), words.size() * 4}});
      if (!sender.finish(id).ok()) {
        return 1;
      }
    }
  });
  Member receiver(0);
  receiver.meet(child.channel());
  std::thread killer([&] {
    std::this_thread::sleep_for(200ms);
    child.kill(SIGKILL);
  });
  std::uint32_t received = 0;
  Status last;
  while (last.ok()) {
    const std::vector<std::uint32_t> expected = content(received);
    std::vector<std::uint32_t> words(expected.size());
    const std::uint64_t id = receiver.end->receive(Rank(1), 0, DType::uint32, {{words.data(), words.size() * 4}});
    last = receiver.finish(id);
    if (last.ok()) {
      ASSERT_EQ(words, expected) << received;
      ++received;
    }
  }
  killer.join();
  EXPECT_EQ(last.fault(), Fault::peer_lost) << last.message();
  EXPECT_EQ(last.slot, Slot(1));
  EXPECT_GT(received, 0u);
}

TEST(PointToPointProcesses, BothSendFirst) {
  const auto exchange = [](Member& member) {
    for (std::uint32_t i = 0; i < 60; ++i) {
      std::vector<std::uint32_t> sent = content(i);
      std::vector<std::uint32_t> got(sent.size());
      const std::uint64_t send =
          member.end->send(Rank(member.other), 7, DType::uint32, {{sent.data(), sent.size() * 4}});
      const std::uint64_t receive =
          member.end->receive(Rank(member.other), 7, DType::uint32, {{got.data(), got.size() * 4}});
      if (!member.finish(receive).ok() || got != sent) {
        return 1;
      }
      while (member.end->busy()) {
        member.drive();
      }
      static_cast<void>(send);
    }
    return 0;
  };
  ChildProcess child([&](const Channel& parent) {
    Member member(1);
    member.meet(parent);
    const int result = exchange(member);
    parent.say('d');
    parent.hear();
    return result;
  });
  Member member(0);
  member.meet(child.channel());
  EXPECT_EQ(exchange(member), 0);
  EXPECT_EQ(child.channel().hear(), 'd');
  child.channel().say('d');
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace closeranks::communicator
