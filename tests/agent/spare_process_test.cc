#include "agent/spare_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
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
  auto spare = start_spare(std::vector<std::string>{"sh", "-c", "echo ready >&0; head -c 18 <&0 | tr '\\0' ' '; echo"},
                           environment);
  ASSERT_TRUE(spare.ok()) << spare.status().message();
  for (int turn = 0; turn < 500 && !is_ready(spare.value().orders); ++turn) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(is_ready(spare.value().orders));
  EXPECT_TRUE(is_ready(spare.value().orders)) << "and stays so";
  EXPECT_GT(resident_bytes(spare.value().process.pid), 0u);
  ASSERT_TRUE(
      send_orders(spare.value().orders, std::vector<std::string>{"A=1"}, std::vector<std::string>{"train"}).ok());
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
  EXPECT_FALSE(is_ready(spare.value().orders));
  EXPECT_FALSE(send_orders(spare.value().orders, {}, std::vector<std::string>{"train.py"}).ok());
  EXPECT_EQ(last_line(spare.value().process.errors), "trouble");
}

}  // namespace
}  // namespace closeranks::agent
