#include "agent/log_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace closeranks::agent {
namespace {

namespace fs = std::filesystem;

class LogFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(root);
    fs::create_directories(root);
  }
  void TearDown() override { fs::remove_all(root); }
  void make_old(const std::string& name, bool with_lock = true) {
    fs::create_directories(root / name);
    if (with_lock) std::ofstream(root / name / "running.lock") << "";
  }
  [[nodiscard]] std::size_t count() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(root), fs::directory_iterator()));
  }
  const fs::path root = testing::TempDir() + "closeranks-log-folder-" + std::to_string(::getpid());
};

TEST_F(LogFolderTest, IsPrivateAndNamedByTimeAndJob) {
  const auto folder = make_log_folder(root / "deep" / "er", "job1", false);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_TRUE(folder.value().path.ends_with("-job1"));
  struct stat about{};
  ASSERT_EQ(::stat(folder.value().path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
}

TEST_F(LogFolderTest, KeepsTheLastTen) {
  for (int job = 10; job < 25; ++job) make_old("202001" + std::to_string(job) + "-000000-x");
  const auto folder = make_log_folder(root, "new", true);
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(count(), kept_jobs);
  EXPECT_TRUE(fs::exists(folder.value().path));
  EXPECT_FALSE(fs::exists(root / "20200110-000000-x"));
  EXPECT_TRUE(fs::exists(root / "20200124-000000-x"));
}

TEST_F(LogFolderTest, LeavesRunningJobsAndStrangersAlone) {
  const auto running = make_log_folder(root, "running", false);
  ASSERT_TRUE(running.ok());
  const fs::path renamed = root / "20000101-000000-running";
  fs::rename(running.value().path, renamed);
  make_old("20000102-000000-being-made", false);
  make_old("my-own-notes");
  for (int job = 10; job < 25; ++job) make_old("202001" + std::to_string(job) + "-000000-x");
  ASSERT_TRUE(make_log_folder(root, "new", true).ok());
  EXPECT_TRUE(fs::exists(renamed));
  EXPECT_TRUE(fs::exists(root / "20000102-000000-being-made"));
  EXPECT_TRUE(fs::exists(root / "my-own-notes"));
}

TEST_F(LogFolderTest, SaysWhyItCannotBeMade) {
  std::ofstream(root / "file") << "";
  const auto folder = make_log_folder(root / "file", "job", false);
  ASSERT_FALSE(folder.ok());
  EXPECT_NE(folder.status().message().find("cannot make the log folder"), std::string::npos);
}

TEST_F(LogFolderTest, DefaultFollowsTheEnvironment) {
  const char* before = std::getenv("HOME");
  const std::string home = before != nullptr ? before : "/";
  ::unsetenv("XDG_STATE_HOME");
  ::setenv("HOME", "/home/x", 1);
  EXPECT_EQ(default_log_root(), "/home/x/.local/state/closeranks");
  ::setenv("XDG_STATE_HOME", "/state", 1);
  EXPECT_EQ(default_log_root(), "/state/closeranks");
  ::unsetenv("XDG_STATE_HOME");
  ::unsetenv("HOME");
  EXPECT_EQ(default_log_root(), "");
  ::setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace closeranks::agent
