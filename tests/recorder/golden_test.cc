// The bytes of the recorder's file, compared with files that another program wrote (Python's struct), so that a change
// of a struct or of a check cannot pass unseen.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "recorder/ring_layout.h"
#include "recorder/ring_writer.h"

namespace closeranks::recorder {
namespace {

std::string golden(const std::string& name) {
  std::ifstream file(std::string(CLOSERANKS_SOURCE_DIR) + "/tests/golden/recorder/" + name + ".hex");
  std::string bytes;
  for (std::string digits; file >> digits;) bytes += static_cast<char>(std::stoi(digits, nullptr, 16));
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

template <class Block>
std::string sealed(Block block) {
  block.check = block_check(&block);
  std::string bytes(sizeof(block), '\0');
  std::memcpy(bytes.data(), &block, sizeof(block));
  return bytes;
}

template <class Body>
Record record_of(std::uint64_t number, RecordKind kind, const Body& body) {
  Record record;
  record.stamp = number + 1;
  record.at_ns = 1'000'000'000 + static_cast<std::int64_t>(number);
  record.thread = 4711;
  record.group = 1;
  record.kind = kind;
  std::memcpy(record.body.data(), &body, sizeof(body));
  return record;
}

const CallFacts facts{.shape = 9, .root = 3, .op = 1, .dtype = 11, .reduce = 0, .algorithm = 2};

TEST(RecorderGolden, Records) {
  Record issued = record_of(7, RecordKind::issued, CallBody{5, 768, facts, 10});
  Record moved = record_of(8, RecordKind::moved, MovedBody{5, 1'000'000'001, 1'000'000'002, 0});
  Record finished = record_of(9, RecordKind::finished, EndBody{5, 999'999'999, 250, 12, 2, 1, 3});
  issued.extra = moved.extra = finished.extra = 3;
  finished.flags = flag_repaired;
  EXPECT_EQ(sealed(issued), golden("record_issued"));
  EXPECT_EQ(sealed(moved), golden("record_moved"));
  EXPECT_EQ(sealed(finished), golden("record_finished"));
  EXPECT_EQ(sealed(record_of(10, RecordKind::small, SmallBody{6, 8, 300, 200, 9, no_rank, 2, 1, 11, 0, 0})),
            golden("record_small"));
  Record event = record_of(11, RecordKind::event, EventBody{17, 1'000'000'003, 21, 22, 2, 5});
  event.flags = static_cast<std::uint8_t>(EventKind::waiting);
  EXPECT_EQ(sealed(event), golden("record_event"));
}

TEST(RecorderGolden, CurrentOp) {
  CurrentOp current;
  current.sequence = 7;
  current.issued_ns = 1'000'000'012;
  current.entered_ns = 1'000'000'013;
  current.bytes = 768;
  current.call = facts;
  current.thread = 4711;
  current.number = 3;
  current.stack = 10;
  current.present = 1;
  EXPECT_EQ(sealed(current), golden("current"));
}

TEST(RecorderGolden, HeaderAndName) {
  std::string folder = std::filesystem::temp_directory_path() / "closeranks-golden-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  RingOptions options;
  options.directory = folder;
  options.bytes = least_ring_bytes;
  options.job = "job-1";
  options.slot = Slot(2);
  options.worker = WorkerId(5);
  options.slots_in_job = 4;
  const auto ring = RingWriter::open(options);
  ASSERT_TRUE(ring.ok());
  const NameId name = ring.value()->text("world");
  std::ifstream file(ring.value()->path(), std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove_all(folder);
  ASSERT_EQ(bytes.size(), least_ring_bytes);
  std::uint64_t names_offset = 0;
  std::memcpy(&names_offset, bytes.data() + offsetof(FileHeader, names_offset), sizeof(names_offset));
  const std::string whole_name = golden("name");
  EXPECT_EQ(bytes.substr(names_offset + (name - 1) * 8, whole_name.size()), whole_name);
  // What differs from run to run.
  const auto forget = [&bytes](std::size_t at, std::size_t count) { bytes.replace(at, count, count, '\0'); };
  forget(offsetof(FileHeader, pid), 4);
  forget(offsetof(FileHeader, opened_ns), 24);
  EXPECT_EQ(bytes.substr(0, offsetof(FileHeader, host)), golden("header"));
}

}  // namespace
}  // namespace closeranks::recorder
