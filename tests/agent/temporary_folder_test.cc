#include "agent/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace closeranks::agent {
namespace {

namespace fs = std::filesystem;

using testing::Not;
using testing::StartsWith;

class TemporaryFolders : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(place_);
    ::setenv("TMPDIR", place_.c_str(), 1);
  }
  void TearDown() override {
    fs::remove_all(place_);
    if (before_.empty()) {
      ::unsetenv("TMPDIR");
    } else {
      ::setenv("TMPDIR", before_.c_str(), 1);
    }
  }
  // As one that a job has left: its last change is long ago.
  fs::path old_folder(const std::string& name) {
    const fs::path folder = place_ / name;
    fs::create_directories(folder / "3");
    std::ofstream(folder / "3" / "listener-abc");
    fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::hours(1));
    return folder;
  }
  const std::string before_ = std::getenv("TMPDIR") == nullptr ? "" : std::getenv("TMPDIR");
  const fs::path place_ = "/tmp/closeranks-test-" + std::to_string(::getpid());
};

TEST_F(TemporaryFolders, IsTheUsersAloneAndGoesWithItsJob) {
  std::string path;
  {
    auto folder = TemporaryFolder::make();
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    path = folder.value().path();
    EXPECT_THAT(path, StartsWith(place_.string() + "/closeranks-"));
    struct stat facts{};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700u);

    const TemporaryFolder moved = std::move(folder.value());
    for (const std::uint64_t worker : {2, 3}) {
      fs::create_directories(TemporaryFolder::name_in(path, WorkerId(worker)) + "/pymp");
    }
    moved.remove(WorkerId(2));
    moved.remove(WorkerId(9));
    EXPECT_FALSE(fs::exists(path + "/2"));
    EXPECT_TRUE(fs::exists(path + "/3"));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(TemporaryFolders, NamesOfSocketsFitInto) {
  const fs::path deep = place_ / std::string(80, 'd');
  fs::create_directories(deep);
  ::setenv("TMPDIR", deep.c_str(), 1);
  auto folder = TemporaryFolder::make();
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_THAT(folder.value().path(), Not(StartsWith(deep.string())));
  EXPECT_LE(TemporaryFolder::name_in(folder.value().path(), WorkerId(1'000'000)).size(), worker_folder_bytes);
}

TEST_F(TemporaryFolders, WhatAKilledAgentLeftIsRemovedByTheNext) {
  const fs::path left = old_folder("closeranks-abcdef");
  const fs::path not_ours = old_folder("closeranks-mine");
  const auto running = TemporaryFolder::make();
  ASSERT_TRUE(running.ok());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(not_ours));

  // That of a job that runs, however old, and one that is being made.
  fs::last_write_time(running.value().path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  fs::create_directories(place_ / "closeranks-fedcba");
  const auto next = TemporaryFolder::make();
  ASSERT_TRUE(next.ok());
  EXPECT_TRUE(fs::exists(running.value().path()));
  EXPECT_TRUE(fs::exists(place_ / "closeranks-fedcba"));
}

}  // namespace
}  // namespace closeranks::agent
