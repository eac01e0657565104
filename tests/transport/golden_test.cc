// The bytes of every layout and frame, compared with files that were written by another program (Python's struct and
// hmac), so that a change of a struct or of the proof cannot pass unseen.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <string>

#include "transport/life.h"
#include "transport/segment.h"
#include "transport/segment_frames.h"
#include "transport/shared_arena.h"

namespace closeranks::transport {
namespace {

std::string golden(const std::string& name) {
  std::ifstream file(std::string(CLOSERANKS_SOURCE_DIR) + "/tests/golden/transport/" + name + ".hex");
  std::string bytes;
  for (std::string digits; file >> digits;) {
    bytes += static_cast<char>(std::stoi(digits, nullptr, 16));
  }
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

// The first bytes of a memfd, with the fields that differ from run to run (pid and thread id) set to zero.
std::string front_of(const FileDescriptor& memory, std::size_t bytes, std::initializer_list<std::size_t> varying) {
  std::string front(bytes, '\0');
  EXPECT_EQ(::pread(memory.get(), front.data(), bytes, 0), static_cast<ssize_t>(bytes));
  for (const std::size_t at : varying) {
    front.replace(at, 4, 4, '\0');
  }
  return front;
}

template <class Frame>
std::string bytes_of(const Frame& frame) {
  std::string bytes(sizeof(frame), '\0');
  std::memcpy(bytes.data(), &frame, sizeof(frame));
  return bytes;
}

TEST(Golden, SegmentHeader) {
  SegmentShape shape = SegmentShape::for_members(4);
  shape.region_bytes = 4 * 1024 * 1024;
  auto segment = Segment::create({"job", GroupKey(0xfeed), "default", WorkerId(3), Slot(2), Rank(1)}, shape);
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(front_of(segment.value().descriptor(), 256, {48}), golden("segment_header"));
}

TEST(Golden, Descriptor) {
  DescriptorSlot slot;
  slot.ready = 8;
  slot.signature = 0x1122334455667788;
  slot.weight = 2.5;
  slot.kind = 6;
  slot.dtype = 12;
  slot.reduce = 8;
  slot.policy = 1;
  slot.root = 3;
  slot.input_place = static_cast<std::uint8_t>(Place::region);
  slot.output_place = static_cast<std::uint8_t>(Place::arena);
  for (std::size_t i = 0; i < 16; ++i) slot.payload[i] = static_cast<std::byte>(i);
  slot.input_offset = 4096;
  slot.output_offset = 0x200000;
  slot.unit_bytes = 12345;
  slot.fingerprint = 0xfeedfacecafebeef;
  slot.blocks = 48;
  slot.block_bytes = 32768;
  EXPECT_EQ(bytes_of(slot), golden("descriptor"));
}

TEST(Golden, LifeHeader) {
  auto life = OwnLife::create({"job", WorkerId(7), Slot(2)}, watchers_of(4));
  ASSERT_TRUE(life.ok());
  EXPECT_EQ(front_of(life.value()->descriptor(), 128, {36, 44}), golden("life_header"));
}

TEST(Golden, WaitBoard) {
  auto life = OwnLife::create({"job", WorkerId(7), Slot(2)}, watchers_of(4));
  ASSERT_TRUE(life.ok());
  OwnWaitBoard& board = life.value()->own_wait_board();
  const WaitKey awaited{WorkerId(3), 9, 7};
  const auto taken = board.take(4711);
  WaitRecord record;
  record.any = true;
  record.group = {GroupKey(0xfeed), 1};
  record.awaited = {awaited, {WorkerId(5), 2, 0}};
  record.call = "barrier #0 of group 'tp'";
  board.tell(*taken, record);
  board.declare({{GroupKey(0xfeed), 1},
                 5,
                 {{awaited, {GroupKey(0xbeef), 2}}, {{WorkerId(7), 1, 0}, record.group}},
                 "rank 2 waits for rank 1, which waits for rank 2"});
  std::string bytes(sizeof(WaitBoardWords), '\0');
  ASSERT_EQ(::pread(life.value()->descriptor().get(), bytes.data(), bytes.size(), 4096),
            static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(bytes.substr(0, sizeof(WaitRecordWords)), golden("wait_record"));
  EXPECT_EQ(bytes.substr(wait_records * sizeof(WaitRecordWords), sizeof(WaitVerdictWords)), golden("wait_verdict"));
}

TEST(Golden, ArenaHeader) {
  auto arena = OwnArena::create({"job", WorkerId(7), Slot(2)}, 64 * 1024 * 1024);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(front_of(arena.value()->descriptor(), 128, {44}), golden("arena_header"));
}

TEST(Golden, Frames) {
  const std::string token = "0123456789abcdef";
  Challenge challenge;
  std::iota(challenge.nonce.begin(), challenge.nonce.end(), std::uint8_t{0});
  EXPECT_EQ(bytes_of(challenge), golden("challenge"));
  Request request;
  request.kind = 2;
  request.wait_ms = 2500;
  request.group = 5;
  std::iota(request.nonce.begin(), request.nonce.end(), std::uint8_t{100});
  request.proof = frame_proof(token, client_role, challenge.nonce, request.nonce, 2, 5, 0);
  EXPECT_EQ(bytes_of(request), golden("request"));
  Answer answer;
  answer.verdict = 1;
  answer.proof = frame_proof(token, server_role, challenge.nonce, request.nonce, 2, 5, 1);
  EXPECT_EQ(bytes_of(answer), golden("answer"));
}

}  // namespace
}  // namespace closeranks::transport
