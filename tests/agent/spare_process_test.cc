#include "agent/spare_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

namespace closeranks::agent {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

const std::vector<std::string> environment{"PATH=/usr/bin:/bin"};

TEST(SpareProcess, OrdersHaveTheirLengthsFirst) {
  const std::string bytes =
      encode_orders(std::vector<std::string>{"A=1", "B="}, std::vector<std::string>{"train.py", "-x"});
  EXPECT_EQ(bytes, std::string("\x07\0\0\0\x0c\0\0\0A=1\0B=\0train.py\0-x\0", 27));
}

TEST(SpareProcess, SaysThatItIsReadyAndGetsItsOrders) {
  auto spare = start_spare(
      std::vector<std::string>{"sh", "-c", "echo ready $$ >&0; head -c 18 <&0 | tr '\\0' ' '; echo"}, environment);
  ASSERT_TRUE(spare.ok()) << spare.status().message();
  for (int turn = 0; turn < 500 && !word_of(spare.value().orders).pid; ++turn) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(word_of(spare.value().orders).pid, spare.value().process.pid);
  EXPECT_EQ(word_of(spare.value().orders).pid, spare.value().process.pid) << "and stays so";
  EXPECT_GT(resident_bytes(spare.value().process.pid), 0u);
  ASSERT_TRUE(
      send_orders(spare.value().orders, std::vector<std::string>{"A=1"}, std::vector<std::string>{"train"}, nullptr)
          .ok());
  std::string said;
  for (int turn = 0; turn < 500 && said.empty(); ++turn) {
    std::this_thread::sleep_for(10ms);
    said = last_line(spare.value().process.output);
  }
  EXPECT_THAT(said, HasSubstr("A=1 train"));
  spare.value().orders.reset();
  ::waitpid(spare.value().process.pid, nullptr, 0);
}

TEST(SpareProcess, OneThatIsGoneCannotBeTold) {
  auto spare = start_spare(std::vector<std::string>{"sh", "-c", "echo much; echo before >&2; echo trouble >&2; exit 3"},
                           environment);
  ASSERT_TRUE(spare.ok());
  ::waitpid(spare.value().process.pid, nullptr, 0);
  EXPECT_TRUE(word_of(spare.value().orders).gone);
  EXPECT_FALSE(send_orders(spare.value().orders, {}, std::vector<std::string>{"train.py"}, nullptr).ok());
  EXPECT_EQ(last_line(spare.value().process.errors), "trouble");
}

TEST(SpareProcess, ASuccessorsEndsComeWithTheFirstByte) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const FileDescriptor ours(ends[0]);
  const FileDescriptor spares(ends[1]);
  auto successor = make_successor_ends();
  ASSERT_TRUE(successor.ok()) << successor.status().message();
  ASSERT_TRUE(
      send_orders(ours, std::vector<std::string>{"A=1"}, std::vector<std::string>{"x"}, &successor.value()).ok());

  std::array<char, 64> bytes{};
  alignas(cmsghdr) std::array<char, 64> control{};
  iovec content{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  EXPECT_EQ(::recvmsg(spares.get(), &message, 0), 8 + 4 + 2);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  ASSERT_NE(header, nullptr);
  ASSERT_EQ(header->cmsg_len, CMSG_LEN(3 * sizeof(int)));
  std::array<int, 3> given{};
  std::memcpy(given.data(), CMSG_DATA(header), sizeof(given));
  // As the successor uses them: a word on the socket, lines on the pipes.
  ASSERT_EQ(::write(given[0], "ready 77\n", 9), 9);
  ASSERT_EQ(::write(given[1], "out\n", 4), 4);
  ASSERT_EQ(::write(given[2], "err\n", 4), 4);
  EXPECT_EQ(word_of(successor.value().orders).pid, 77);
  EXPECT_EQ(last_line(successor.value().output.read), "out");
  EXPECT_EQ(last_line(successor.value().errors.read), "err");
  for (const int descriptor : given) ::close(descriptor);
  successor.value().its_orders.reset();
  // What it has said stays; without a word it is gone.
  EXPECT_FALSE(word_of(successor.value().orders).gone);
  auto silent = make_successor_ends();
  silent.value().its_orders.reset();
  EXPECT_TRUE(word_of(silent.value().orders).gone);
}

}  // namespace
}  // namespace closeranks::agent
