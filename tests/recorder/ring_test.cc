// A recorder's file from both ends: what is written is read, whatever became of the writer or the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "recorder/ring_reader.h"
#include "recorder/ring_writer.h"

namespace closeranks::recorder {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RingTest : public testing::Test {
 protected:
  RingTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "closeranks-ring-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~RingTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] RingOptions options(std::uint64_t bytes = least_ring_bytes) const {
    RingOptions options;
    options.directory = folder_ + "/some/where";
    options.bytes = bytes;
    options.job = "job-1";
    options.slot = Slot(2);
    options.worker = WorkerId(5);
    options.slots_in_job = 4;
    return options;
  }
  std::shared_ptr<RingWriter> writer(std::uint64_t bytes = least_ring_bytes) {
    auto opened = RingWriter::open(options(bytes));
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.value();
  }
  static WorkerTrace read(const std::string& path) {
    auto trace = read_ring_file(path);
    EXPECT_TRUE(trace.ok()) << trace.status().message();
    return trace.value();
  }
  static std::vector<std::byte> bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    return {first, first + text.size()};
  }
  static SmallBody small(std::uint64_t sequence) {
    SmallBody body{};
    body.sequence = sequence;
    body.bytes = 8;
    body.op = static_cast<std::uint8_t>(OpKind::all_reduce);
    body.dtype = static_cast<std::uint8_t>(DType::float32);
    body.reduce = static_cast<std::uint8_t>(ReduceOp::sum);
    body.root = no_rank;
    body.last_arrival = 1;
    body.duration_ns = 300;
    body.waited_ns = 200;
    return body;
  }
  static void add_small(RingWriter& writer, std::uint16_t group, std::uint64_t sequence) {
    Record record;
    record.kind = RecordKind::small;
    record.group = group;
    record.at_ns = now_ns();
    writer.write_small(record, small(sequence));
  }

  std::string folder_;
  const std::vector<Slot> members_{Slot(0), Slot(3), Slot(2)};
};

TEST_F(RingTest, HeaderSaysWhatIsNeededToReadItAlone) {
  const auto ring = writer();
  ring->set_clock_offset(1000);
  const WorkerTrace trace = read(ring->path());
  EXPECT_THAT(ring->path(), testing::EndsWith("/some/where/slot-2-worker-5.ring"));
  EXPECT_THAT(trace.writer, HasSubstr("closeranks 0."));
  EXPECT_EQ(trace.role, Role::worker);
  EXPECT_EQ(trace.job, "job-1");
  EXPECT_EQ(trace.slot, Slot(2));
  EXPECT_EQ(trace.worker, WorkerId(5));
  EXPECT_EQ(trace.slots_in_job, 4u);
  EXPECT_EQ(trace.pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(trace.boot_id.size(), 36u);
  EXPECT_FALSE(trace.host.empty());
  EXPECT_EQ(trace.clock_offset_ns, 1000);
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  EXPECT_NEAR(static_cast<double>(trace.last_written_ns + trace.unix_offset_ns), static_cast<double>(unix_now), 20e9);
  EXPECT_FALSE(trace.ended_in_order);
  ASSERT_EQ(trace.events.size(), 1u);
  EXPECT_EQ(trace.events[0].kind, EventKind::started);
  EXPECT_THAT(trace.events[0].detail, HasSubstr("test_recorder"));
  EXPECT_EQ(trace.damaged, 0u);
  EXPECT_TRUE(trace.remarks.empty());
}

TEST_F(RingTest, ALongOpFromItsIssueToItsEnd) {
  const auto ring = writer();
  const std::uint16_t group = ring->add_group("tp", 0xfeed, members_, Rank(2), Policy::repair);
  const CallFacts call{.shape = ring->text("[64, 3]"),
                       .root = no_rank,
                       .op = static_cast<std::uint8_t>(OpKind::all_reduce),
                       .dtype = static_cast<std::uint8_t>(DType::float32),
                       .reduce = static_cast<std::uint8_t>(ReduceOp::avg),
                       .algorithm = static_cast<std::uint8_t>(Algorithm::share)};
  const std::int64_t start = now_ns();
  Record record;
  record.group = group;
  record.extra = 1;
  record.kind = RecordKind::issued;
  record.at_ns = start;
  ring->write(record, CallBody{7, 768, call, 0});
  record.kind = RecordKind::entered;
  record.at_ns = start + 10;
  ring->write(record, CallBody{8, 768, call, ring->text("File \"train.py\", line 3 in step")});
  record.kind = RecordKind::moved;
  record.at_ns = start + 90;
  ring->write(record, MovedBody{8, start + 50, start + 80, 0});
  record.kind = RecordKind::finished;
  record.flags = flag_repaired;
  record.at_ns = start + 100;
  const std::vector<Slot> contributors{Slot(0), Slot(2)};
  ring->write(record, EndBody{8, start, 30, ring->slots(contributors), 1, 1, 2});

  const WorkerTrace trace = read(ring->path());
  ASSERT_EQ(trace.groups.size(), 1u);
  EXPECT_EQ(trace.groups[0].name, "tp");
  EXPECT_EQ(trace.groups[0].members, members_);
  EXPECT_EQ(trace.groups[0].policy, "repair");
  ASSERT_EQ(trace.ops.size(), 1u);
  const OpTrace& op = trace.ops[0];
  EXPECT_EQ(op.sequence, 8u);
  EXPECT_EQ(op.call, (OpCall{"all_reduce", "float32", "avg", "[64, 3]", std::nullopt, 768}));
  EXPECT_EQ(op.algorithm, "share");
  EXPECT_EQ(op.stack, "File \"train.py\", line 3 in step");
  EXPECT_EQ(op.issued_ns, start);
  EXPECT_EQ(op.entered_ns, start + 10);
  EXPECT_EQ(op.first_byte_ns, start + 50);
  EXPECT_EQ(op.last_byte_ns, start + 80);
  EXPECT_EQ(op.finished_ns, start + 100);
  EXPECT_EQ(op.waited_ns, 30);
  EXPECT_EQ(op.last_arrival, Slot(3));
  EXPECT_THAT(op.contributors, ElementsAre(Slot(0), Slot(2)));
  EXPECT_TRUE(op.repaired);
  EXPECT_EQ(op.failure, "");
  EXPECT_FALSE(trace.groups[0].current);
}

TEST_F(RingTest, WhatAKilledWorkerWasIn) {
  const auto ring = writer();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::uint16_t group = ring->add_group("default", 1, members_, Rank(2), Policy::fail);
    for (std::uint64_t sequence = 0;; ++sequence) {
      Record record;
      record.at_ns = now_ns();
      record.group = group;
      record.kind = RecordKind::waiting;
      ring->write_small(record, small(sequence));
      if (sequence == 1000) ::kill(::getpid(), SIGKILL);
      add_small(*ring, group, sequence);
    }
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const WorkerTrace trace = read(ring->path());
  ASSERT_EQ(trace.groups.size(), 1u);
  EXPECT_EQ(trace.groups[0].entered, 1001u);
  EXPECT_EQ(trace.groups[0].completed, 1000u);
  ASSERT_TRUE(trace.groups[0].current);
  EXPECT_EQ(trace.groups[0].current->sequence, 1000u);
  EXPECT_EQ(trace.groups[0].current->call.kind, "all_reduce");
  EXPECT_TRUE(trace.groups[0].current->entered_ns);
  EXPECT_EQ(trace.ops.size(), 1000u);
  EXPECT_EQ(trace.damaged, 0u);
}

TEST_F(RingTest, WhatAGroupIsIn) {
  const auto ring = writer();
  const std::uint16_t group = ring->add_group("default", 1, members_, Rank(2), Policy::fail);
  CurrentOp current;
  current.sequence = 7;
  current.issued_ns = now_ns();
  current.bytes = 768;
  current.call = {.root = no_rank, .op = static_cast<std::uint8_t>(OpKind::all_gather)};
  current.number = 3;
  current.present = 1;
  current.stack = ring->text("File \"train.py\", line 3 in step");
  ring->current(group, current);
  const WorkerTrace trace = read(ring->path());
  ASSERT_TRUE(trace.groups.at(0).current);
  const OpTrace& op = *trace.groups[0].current;
  EXPECT_EQ(op.sequence, 7u);
  EXPECT_EQ(op.call.kind, "all_gather");
  EXPECT_EQ(op.call.bytes, 768u);
  EXPECT_EQ(op.issued_ns, current.issued_ns);
  EXPECT_FALSE(op.entered_ns);
  EXPECT_EQ(op.stack, "File \"train.py\", line 3 in step");
}

TEST_F(RingTest, KilledAtAnyMoment) {
  const auto ring = writer();
  const pid_t child = ::fork();
  if (child == 0) {
    const std::uint16_t group = ring->add_group("default", 1, members_, Rank(2), Policy::fail);
    std::thread other([&] {
      for (std::uint64_t i = 0;; ++i) ring->event({.kind = EventKind::mark, .number = i, .detail = "again"});
    });
    for (std::uint64_t sequence = 0;; ++sequence) add_small(*ring, group, sequence);
  }
  for (WorkerTrace seen; seen.overwritten == 0 || seen.ops.size() < 800; seen = read(ring->path())) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const WorkerTrace trace = read(ring->path());
  // One per thread may be half written, and a thread that was not running then may have been overtaken by the other.
  EXPECT_LE(trace.damaged, 2u);
  EXPECT_GT(trace.overwritten, 0u);
  EXPECT_GT(trace.ops.size() + trace.events.size(), 500u);
  for (std::size_t i = 1; i < trace.ops.size(); ++i) {
    EXPECT_GT(trace.ops[i].sequence, trace.ops[i - 1].sequence);
    EXPECT_EQ(trace.ops[i].call.bytes, 8u);
  }
}

TEST_F(RingTest, EventsWithAllTheyCanSay) {
  const auto ring = writer();
  const std::vector<Slot> slots{Slot(1), Slot(3)};
  ring->event({.kind = EventKind::exception,
               .number = 4,
               .since_ns = 12,
               .slots = slots,
               .worker = WorkerId(9),
               .detail = "ValueError: so\xff it \x1b[31mis",
               .stack = "one\ntwo",
               .use = NameUse::last_words});
  ring->end("exit status 0");
  ring->end("once more");
  const WorkerTrace trace = read(ring->path());
  ASSERT_EQ(trace.events.size(), 3u);
  const Event& event = trace.events[1];
  EXPECT_EQ(event.kind, EventKind::exception);
  EXPECT_EQ(event.number, 4u);
  EXPECT_EQ(event.since_ns, 12);
  EXPECT_EQ(event.slots, slots);
  EXPECT_EQ(event.worker, WorkerId(9));
  EXPECT_EQ(event.detail, "ValueError: so? it ?[31mis");
  EXPECT_EQ(event.stack, "one\ntwo");
  EXPECT_EQ(event.thread, static_cast<std::uint32_t>(::gettid()));
  EXPECT_EQ(trace.events[2].kind, EventKind::ended);
  EXPECT_EQ(trace.events[2].detail, "exit status 0");
  EXPECT_TRUE(trace.ended_in_order);
}

TEST_F(RingTest, CountsWhatItOverwrote) {
  const auto ring = writer();
  const std::uint16_t group = ring->add_group("default", 1, members_, Rank(2), Policy::fail);
  for (std::uint64_t sequence = 0; sequence < 10'000; ++sequence) add_small(*ring, group, sequence);
  const WorkerTrace trace = read(ring->path());
  EXPECT_EQ(trace.overwritten + trace.ops.size(), 10'000u);
  EXPECT_EQ(trace.ops.front().sequence, 10'000u - trace.ops.size());
  EXPECT_EQ(trace.ops.back().sequence, 9'999u);
  EXPECT_EQ(trace.damaged, 0u);
}

TEST_F(RingTest, LastWordsFindRoomInAFullTable) {
  const auto ring = writer();
  for (int i = 0; i < 20'000; ++i) {
    ring->event({.detail = "mark " + std::to_string(i), .use = NameUse::free_text});
  }
  ring->event({.kind = EventKind::exception, .detail = "ValueError: x", .use = NameUse::last_words});
  const WorkerTrace trace = read(ring->path());
  EXPECT_EQ(trace.events.back().detail, "ValueError: x");
  EXPECT_EQ(trace.events[trace.events.size() - 2].detail, "(lost)");
  ASSERT_EQ(trace.remarks.size(), 1u);
  EXPECT_THAT(trace.remarks[0], HasSubstr("texts did not fit"));
}

TEST_F(RingTest, SameNameIsWrittenOnce) {
  const auto ring = writer();
  const NameId one = ring->text("[2, 3]");
  EXPECT_EQ(ring->text("[2, 3]"), one);
  EXPECT_NE(ring->text("[3, 2]"), one);
  EXPECT_EQ(ring->text(""), no_name);
}

TEST_F(RingTest, MoreGroupsThanTheTableHas) {
  const auto ring = writer();
  std::uint16_t last = 0;
  for (int i = 0; i < 40; ++i) last = ring->add_group("g" + std::to_string(i), 1, members_, Rank(2), Policy::fail);
  EXPECT_EQ(last, no_group);
  const WorkerTrace trace = read(ring->path());
  EXPECT_EQ(trace.groups.size(), 32u);
  ASSERT_EQ(trace.remarks.size(), 1u);
  EXPECT_EQ(trace.remarks[0], "8 groups did not fit into the table of groups");
}

TEST_F(RingTest, NamesakesStay) {
  const auto first = writer();
  const auto second = writer();
  EXPECT_THAT(second->path(), testing::EndsWith("slot-2-worker-5.2.ring"));
  EXPECT_TRUE(std::filesystem::exists(first->path()));
}

TEST_F(RingTest, CutAndTornAndZeroFilledFiles) {
  const auto ring = writer();
  const std::uint16_t group = ring->add_group("default", 1, members_, Rank(2), Policy::fail);
  for (std::uint64_t sequence = 0; sequence < 100; ++sequence) add_small(*ring, group, sequence);
  const std::vector<std::byte> whole = bytes_of(ring->path());
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 501) {
    const auto trace = read_ring(std::span(whole).first(bytes), "cut");
    if (bytes < page_bytes) {
      EXPECT_FALSE(trace.ok());
    } else {
      ASSERT_TRUE(trace.ok());
      EXPECT_THAT(trace.value().remarks, ElementsAre(HasSubstr("cut short")));
    }
  }
  std::vector<std::byte> torn = whole;
  const std::size_t at = whole.size() - (1024 + 128 - 50) * sizeof(Record);  // of 1024 ops, 128 events
  torn[at + 20] ^= std::byte{1};
  const auto trace = read_ring(torn, "torn");
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace.value().damaged, 1u);
  const std::vector<std::byte> zeros(whole.size());
  EXPECT_THAT(read_ring(zeros, "zeros").status().message(), HasSubstr("zeros is not a recorder's file"));
}

TEST_F(RingTest, AnotherVersionIsNamed) {
  const auto ring = writer();
  std::vector<std::byte> bytes = bytes_of(ring->path());
  bytes[8] = std::byte{9};
  EXPECT_THAT(read_ring(bytes, "new").status().message(), HasSubstr("layout version 9, this reader has 1"));
}

TEST_F(RingTest, ADirectoryThatCannotBe) {
  RingOptions where = options();
  where.directory = "/proc/nowhere";
  EXPECT_THAT(RingWriter::open(where).status().message(), HasSubstr("/proc/nowhere"));
}

// Not a bound that anybody relies on; the mean of many is printed for the curious.
TEST_F(RingTest, ARecordIsCheap) {
  const auto ring = writer(default_ring_bytes);
  const std::uint16_t group = ring->add_group("default", 1, members_, Rank(2), Policy::fail);
  constexpr std::uint64_t count = 1'000'000;
  const auto start = std::clock();  // time of the processor, not of a busy machine
  for (std::uint64_t sequence = 0; sequence < count; ++sequence) add_small(*ring, group, sequence);
  const double mean = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC * 1e9 / count;
  RecordProperty("mean_ns", std::to_string(mean));
  std::printf("mean of a record: %.1f ns\n", mean);
  EXPECT_LT(mean, 5000);
}

}  // namespace
}  // namespace closeranks::recorder
