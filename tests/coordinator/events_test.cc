#include "coordinator/events.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace closeranks::coordinator {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A file of this test alone, gone afterwards.
class EventFiles : public testing::Test {
 protected:
  EventFiles() : path_(std::filesystem::temp_directory_path() / ("closeranks-events-" + std::to_string(::getpid()))) {
    std::filesystem::remove(path_);
  }
  ~EventFiles() override { std::filesystem::remove(path_); }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> out;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }
  const std::filesystem::path path_;
};

Event excluded() {
  Event event;
  event.kind = EventKind::worker_excluded;
  event.time_us = 1'790'000'000'000'042;
  event.slot = Slot(2);
  event.worker = WorkerId(2);
  event.pid = 4'711;
  event.host = "alpha";
  event.view = ViewNumber{1, 2};
  event.reason = "killed by signal 9";
  event.detail = "a detail";
  return event;
}

TEST(Events, ALineHasTheKeysThatApplyInTheirOrder) {
  EXPECT_EQ(to_json_line(excluded()),
            R"({"time":1790000000.000042,"event":"worker_excluded","slot":2,"worker":2,"pid":4711,"host":"alpha",)"
            R"("view":2,"term":1,"reason":"killed by signal 9","detail":"a detail"})");
  Event bare;
  bare.kind = EventKind::job_finished;
  bare.time_us = 1;
  EXPECT_EQ(to_json_line(bare), R"({"time":0.000001,"event":"job_finished"})");
}

TEST(Events, AnythingCanBeInAReason) {
  Event event = excluded();
  event.reason = "a \"quote\",\na newline, \x01 and no UTF-8: \xff\xfe";
  const std::string line = to_json_line(event);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_THAT(parsed["reason"].get<std::string>(), StartsWith("a \"quote\",\na newline"));
}

TEST(Events, EveryKindHasAName) {
  for (int kind = 0; kind <= static_cast<int>(EventKind::superseded); ++kind) {
    EXPECT_NE(name_of(static_cast<EventKind>(kind)), "unknown");
  }
}

TEST(Events, EveryKindIsDocumentedWithAnExampleOfItsOwn) {
  std::ifstream page(std::string(CLOSERANKS_SOURCE_DIR) + "/docs/events.md");
  ASSERT_TRUE(page);
  std::string text;
  std::vector<std::string> examples;
  for (std::string line; std::getline(page, line);) {
    text += line + "\n";
    if (!line.starts_with("{\"time\"")) continue;
    const auto example = nlohmann::json::parse(line, nullptr, false);
    ASSERT_FALSE(example.is_discarded()) << line;
    examples.push_back(example["event"]);
  }
  for (int kind = 0; kind <= static_cast<int>(EventKind::superseded); ++kind) {
    const std::string name(name_of(static_cast<EventKind>(kind)));
    EXPECT_THAT(text, HasSubstr("`" + name + "`"));
    EXPECT_THAT(examples, testing::Contains(name));
  }
}

TEST_F(EventFiles, AppendsToAFileThatExists) {
  std::ofstream(path_) << "an earlier job's line\n";
  {
    auto file = EventFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    file.value()->emit(excluded());
    // At once, not at the end.
    EXPECT_EQ(lines().size(), 2u);
  }
  EXPECT_EQ(lines()[0], "an earlier job's line");
  EXPECT_EQ(nlohmann::json::parse(lines()[1])["slot"], 2);
}

TEST_F(EventFiles, LinesOfManyWritersStayWhole) {
  std::vector<std::thread> threads;
  for (int writer = 0; writer < 4; ++writer) {
    threads.emplace_back([this, writer] {
      auto file = EventFile::open(path_);  // each its own, as several processes would
      Event event = excluded();
      event.detail = std::string(static_cast<std::size_t>(100 * (writer + 1)), 'x');
      for (int i = 0; i < 200; ++i) file.value()->emit(event);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = lines();
  EXPECT_EQ(all.size(), 800u);
  for (const std::string& line : all) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

TEST_F(EventFiles, AFileThatCannotBeOpenedIsNamed) {
  const auto file = EventFile::open("/nonexistent/folder/events");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.status().message(), HasSubstr("/nonexistent/folder/events: No such file or directory"));
}

TEST_F(EventFiles, AFullDiskStopsNobody) {
  auto file = EventFile::open("/dev/full");
  ASSERT_TRUE(file.ok());
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) file.value()->emit(excluded());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(file.value()->lost(), 3u);
  EXPECT_THAT(log, HasSubstr("No space left on device; the job goes on"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << "said once: " << log;
}

TEST_F(EventFiles, ALineCutShortIsClosedBeforeTheNext) {
  auto file = EventFile::open(path_);
  ASSERT_TRUE(file.ok());
  file.value()->emit(excluded());
  const auto whole = std::filesystem::file_size(path_);
  // A limit in the middle of the next line: write(2) takes a part of it, as on a disk that fills up.
  rlimit before{};
  ASSERT_EQ(0, ::getrlimit(RLIMIT_FSIZE, &before));
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = whole + 20;
  ASSERT_EQ(0, ::setrlimit(RLIMIT_FSIZE, &limit));
  file.value()->emit(excluded());
  ASSERT_EQ(0, ::setrlimit(RLIMIT_FSIZE, &before));
  ::signal(SIGXFSZ, SIG_DFL);
  file.value()->emit(excluded());
  EXPECT_EQ(file.value()->lost(), 1u);
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_FALSE(nlohmann::json::accept(lines()[1]));
  EXPECT_TRUE(nlohmann::json::accept(lines()[2]));
}

TEST(Events, AFanHandsOneTimeToAllSinks) {
  std::vector<std::int64_t> times;
  EventFunction first([&](const Event& event) { times.push_back(event.time_us); });
  EventFunction second([&](const Event& event) { times.push_back(event.time_us); });
  EventFan fan({&first, &second});
  fan.emit(Event{});
  ASSERT_EQ(times.size(), 2u);
  EXPECT_GT(times[0], 0);
  EXPECT_EQ(times[0], times[1]);
}

}  // namespace
}  // namespace closeranks::coordinator
