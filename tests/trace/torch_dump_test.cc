// Pickles: what is read, what is refused, and that what we write torch's reader and ours can read.
#include "trace/torch_dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/pickle_reader.h"
#include "trace/torch_export.h"

namespace closeranks::trace {
namespace {

using testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string sample(const std::string& name) {
  std::ifstream file(std::string(CLOSERANKS_SOURCE_DIR) + "/tests/fuzz/corpus/pickle/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(Pickle, EveryProtocolOfPlainData) {
  for (const char* name : {"plain_2", "plain_3", "plain_4", "plain_5"}) {
    const auto pickle = read_pickle(bytes_of(sample(name)));
    ASSERT_TRUE(pickle.ok()) << name << ": " << pickle.status().message();
    const Pickle& read = pickle.value();
    const Pickle::Node* entries = read.find(read.root(), "entries");
    ASSERT_NE(entries, nullptr);
    const Pickle::Node& entry = read.at(entries->items.at(0));
    EXPECT_EQ(read.find(entry, "time_created_ns")->integer, std::int64_t{1} << 60);
    const Pickle::Node& values = *read.find(entry, "x");
    EXPECT_EQ(read.at(values.items.at(0)).real, 1.5);
    EXPECT_EQ(read.at(values.items.at(1)).type, Pickle::Type::none);
    EXPECT_EQ(read.at(values.items.at(3)).integer, -1);
    EXPECT_EQ(read.at(values.items.at(5)).integer, 70000);
    EXPECT_EQ(read.at(values.items.at(6)).items.size(), 4U);
  }
}

TEST(Pickle, RefusesCode) {
  const auto pickle = read_pickle(bytes_of(sample("code")));
  ASSERT_FALSE(pickle.ok());
  EXPECT_EQ(pickle.status().fault(), Fault::refused);
  EXPECT_THAT(pickle.status().message(), HasSubstr("more than plain data"));
}

TEST(Pickle, RefusesWhatIsCut) {
  const std::string whole = sample("gloo_rank_2");
  ASSERT_TRUE(read_pickle(bytes_of(whole)).ok());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    ASSERT_FALSE(read_pickle(bytes_of(std::string_view(whole).substr(0, length))).ok()) << length;
  }
  EXPECT_FALSE(read_pickle(bytes_of(sample("huge"))).ok());
}

TEST(TorchDump, OfGloo) {
  const auto dump = read_torch_dump(bytes_of(sample("gloo_rank_2")), "rank_2", 5);
  ASSERT_TRUE(dump.ok()) << dump.status().message();
  const recorder::WorkerTrace& worker = dump.value();
  EXPECT_EQ(worker.slot, Slot(2));
  ASSERT_EQ(worker.groups.size(), 1U);
  EXPECT_EQ(worker.groups[0].name, "default_pg");
  EXPECT_EQ(worker.groups[0].entered, 6U);
  ASSERT_EQ(worker.ops.size(), 5U);
  EXPECT_EQ(worker.ops[0].sequence, 1U);
  EXPECT_EQ(worker.ops[0].call.kind, "all_reduce");
  EXPECT_EQ(worker.ops[0].call.dtype, "float32");
  EXPECT_EQ(worker.ops[0].call.shape, "[4, 3]");
  EXPECT_EQ(worker.ops[3].call.kind, "broadcast");
  EXPECT_TRUE(worker.ops[4].finished_ns.has_value());
}

TEST(TorchDump, WhatIsWrittenIsReadAlike) {
  const auto first = read_torch_dump(bytes_of(sample("gloo_rank_2")), "rank_2", 5);
  ASSERT_TRUE(first.ok());
  recorder::JobTrace job;
  job.workers.push_back(first.value());
  const std::string stack = "File \"a \", line 2 in b.py\", line 34 in step\nFile \"train.py\", line 40 in <module>";
  job.workers[0].ops[0].stack = stack + "\nno frame";
  complete_members(job);
  const std::string written = to_torch_dump(job.workers[0], 0);
  const auto second = read_torch_dump(bytes_of(written), "rank_2", 5);
  ASSERT_TRUE(second.ok()) << second.status().message();
  ASSERT_EQ(second.value().ops.size(), first.value().ops.size());
  for (std::size_t at = 0; at < first.value().ops.size(); ++at) {
    EXPECT_EQ(second.value().ops[at].call, first.value().ops[at].call);
    EXPECT_EQ(second.value().ops[at].sequence, first.value().ops[at].sequence);
    EXPECT_EQ(second.value().ops[at].issued_ns, first.value().ops[at].issued_ns);
  }
  EXPECT_EQ(second.value().ops[0].stack, stack);
  EXPECT_EQ(second.value().groups[0].members, (std::vector{Slot(0), Slot(1), Slot(2)}));
}

}  // namespace
}  // namespace closeranks::trace
