#include "agent/control_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "agent/job_command.h"
#include "agent/log_folder.h"

namespace closeranks::agent {
namespace {

using testing::HasSubstr;

class ControlSocketTest : public testing::Test {
 protected:
  // Deeper than a socket's name may be long.
  ControlSocketTest() : folder(root + std::string(120, 'd')) { std::filesystem::create_directories(folder); }
  ~ControlSocketTest() override {
    work.reset();
    context.stop();
    if (thread.joinable()) thread.join();
    socket.reset();
    std::filesystem::remove_all(root);
  }
  void open(ControlSocket::Answer answer) {
    auto opened = ControlSocket::open(context, folder, std::move(answer));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    socket = std::move(opened.value());
    thread = std::thread([this] { context.run(); });
  }

  // ctest runs each test in a process of its own, several at a time.
  const std::string root = testing::TempDir() + "closeranks-control-" + std::to_string(::getpid()) + "/";
  const std::string folder;
  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::unique_ptr<ControlSocket> socket;
  std::thread thread;
};

TEST_F(ControlSocketTest, AnswersOneLineWithOneLine) {
  open([](const std::string& request) { return "you said " + request; });
  for (const char* word : {"one", "two"}) {
    const auto answer = ask_job(folder, word);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer.value(), std::string("you said ") + word);
  }
}

TEST_F(ControlSocketTest, IsForTheUserOnlyAndGoesWithTheJob) {
  open([](const std::string&) { return ""; });
  struct stat file{};
  const std::string path = folder + "/" + control_socket_name;
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  context.stop();
  thread.join();
  socket.reset();
  EXPECT_NE(::stat(path.c_str(), &file), 0);
}

TEST_F(ControlSocketTest, WithoutAJobThereIsASentence) {
  const auto answer = ask_job(folder, "status");
  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(answer.status().message(), HasSubstr("no running job answers in"));
}

TEST_F(ControlSocketTest, ARequestWithoutEndIsCutOff) {
  open([](const std::string&) { return "never"; });
  EXPECT_FALSE(ask_job(folder, std::string(3 * max_request_bytes, 'x')).ok());
}

TEST(FindJob, TakesTheNewestThatRunsOrTheOneThatIsNamed) {
  const std::string root = testing::TempDir() + "closeranks-find-job-" + std::to_string(::getpid());
  std::filesystem::remove_all(root);
  EXPECT_FALSE(find_job_folder(root, "").ok());
  {
    const auto first = make_log_folder(root, "first-aa11", false);
    const auto second = make_log_folder(root, "second-bb22", false);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ(find_job_folder(root, "first").value(), first.value().path);
    EXPECT_EQ(find_job_folder(root, "bb22").value(), second.value().path);
    EXPECT_TRUE(find_job_folder(root, "").ok());
    EXPECT_THAT(find_job_folder(root, "third").status().message(), HasSubstr("no job third runs"));
  }
  EXPECT_FALSE(find_job_folder(root, "").ok()) << "they have ended";
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace closeranks::agent
