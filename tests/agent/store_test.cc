#include "agent/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace closeranks::agent {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class StoreTest : public testing::Test {
 protected:
  // The answers to one query, as (client, bytes) pairs.
  std::vector<std::pair<Store::Client, std::string>> ask(Store::Client client, QueryType type,
                                                         std::vector<std::string> keys = {},
                                                         std::vector<std::string> values = {},
                                                         std::int64_t number = 0) {
    Store::Outcome outcome = store.handle(client, Query{type, std::move(keys), std::move(values), number});
    refusal = outcome.refusal.message();
    std::vector<std::pair<Store::Client, std::string>> answers;
    for (Store::Answer& answer : outcome.answers) answers.emplace_back(answer.to, std::move(answer.bytes));
    return answers;
  }
  using Answers = std::vector<std::pair<Store::Client, std::string>>;
  const std::string go = std::string(1, answer_stop_waiting);
  Store store;
  std::string refusal;
};

TEST_F(StoreTest, SetGetDelete) {
  EXPECT_THAT(ask(1, QueryType::set, {"a"}, {"x"}), IsEmpty());
  EXPECT_EQ(ask(2, QueryType::get, {"a"}), (Answers{{2, encode_text("x")}}));
  EXPECT_EQ(ask(2, QueryType::get_num_keys), (Answers{{2, encode_number(1)}}));
  EXPECT_EQ(ask(2, QueryType::delete_key, {"a"}), (Answers{{2, encode_number(1)}}));
  EXPECT_EQ(ask(2, QueryType::delete_key, {"a"}), (Answers{{2, encode_number(0)}}));
  EXPECT_EQ(ask(2, QueryType::check, {"a"}), (Answers{{2, std::string(1, answer_not_ready)}}));
}

TEST_F(StoreTest, AWaitEndsWithTheLastKey) {
  EXPECT_THAT(ask(1, QueryType::wait, {"a", "b", "a"}), IsEmpty());
  EXPECT_THAT(ask(2, QueryType::set, {"a"}, {""}), IsEmpty());
  EXPECT_EQ(ask(2, QueryType::add, {"b"}, {}, 1), (Answers{{2, encode_number(1)}, {1, go}}));
  EXPECT_EQ(ask(1, QueryType::wait, {"a", "b"}), (Answers{{1, go}}));
}

TEST_F(StoreTest, ACancelledWaitIsForgotten) {
  EXPECT_THAT(ask(1, QueryType::wait, {"a"}), IsEmpty());
  EXPECT_EQ(ask(1, QueryType::cancel_wait), (Answers{{1, std::string(1, answer_wait_canceled)}}));
  EXPECT_THAT(ask(2, QueryType::set, {"a"}, {""}), IsEmpty());
}

TEST_F(StoreTest, AGoneClientIsForgotten) {
  EXPECT_THAT(ask(1, QueryType::wait, {"a"}), IsEmpty());
  store.forget(1);
  EXPECT_THAT(ask(2, QueryType::set, {"a"}, {""}), IsEmpty());
}

TEST_F(StoreTest, AWaitingClientMayOnlyCancel) {
  EXPECT_THAT(ask(1, QueryType::wait, {"a"}), IsEmpty());
  ask(1, QueryType::set, {"b"}, {"x"});
  EXPECT_THAT(refusal, HasSubstr("while it waits"));
}

TEST_F(StoreTest, CompareSetAsTorchHasIt) {
  EXPECT_EQ(ask(1, QueryType::compare_set, {"c"}, {"x", "y"}), (Answers{{1, encode_text("x")}}));
  EXPECT_EQ(ask(1, QueryType::compare_set, {"c"}, {"", "y"}), (Answers{{1, encode_text("y")}}));
  EXPECT_EQ(ask(1, QueryType::compare_set, {"c"}, {"y", "z"}), (Answers{{1, encode_text("z")}}));
  EXPECT_EQ(ask(1, QueryType::compare_set, {"c"}, {"y", "w"}), (Answers{{1, encode_text("z")}}));
}

TEST_F(StoreTest, AddNeedsANumber) {
  EXPECT_EQ(ask(1, QueryType::add, {"n"}, {}, 5), (Answers{{1, encode_number(5)}}));
  EXPECT_EQ(ask(1, QueryType::add, {"n"}, {}, -7), (Answers{{1, encode_number(-2)}}));
  EXPECT_EQ(ask(1, QueryType::get, {"n"}), (Answers{{1, encode_text("-2")}}));
  ask(1, QueryType::set, {"t"}, {"text"});
  ask(1, QueryType::add, {"t"}, {}, 1);
  EXPECT_THAT(refusal, HasSubstr("no number"));
  ask(1, QueryType::set, {"big"}, {"9223372036854775807"});
  ask(1, QueryType::add, {"big"}, {}, 1);
  EXPECT_THAT(refusal, HasSubstr("no number that it could be added to"));
}

TEST_F(StoreTest, AppendAndMulti) {
  ask(1, QueryType::append, {"a"}, {"1"});
  ask(1, QueryType::append, {"a"}, {"2"});
  ask(1, QueryType::multi_set, {"b", "c"}, {"x", "y"});
  EXPECT_EQ(ask(1, QueryType::multi_get, {"a", "c"}), (Answers{{1, encode_text("12")}, {1, encode_text("y")}}));
}

TEST_F(StoreTest, AQueueWakesOneWaiterPerItem) {
  EXPECT_THAT(ask(1, QueryType::wait, {"q"}), IsEmpty());
  EXPECT_THAT(ask(2, QueryType::wait, {"q"}), IsEmpty());
  EXPECT_EQ(ask(3, QueryType::queue_push, {"q"}, {"e1"}), (Answers{{1, go}}));
  EXPECT_EQ(ask(1, QueryType::queue_pop, {"q"}), (Answers{{1, encode_number(1) + encode_text("e1")}}));
  EXPECT_EQ(ask(3, QueryType::queue_push, {"q"}, {"e2"}), (Answers{{2, go}}));
  EXPECT_EQ(ask(3, QueryType::queue_len, {"q"}), (Answers{{3, encode_number(1)}}));
  EXPECT_EQ(ask(3, QueryType::get_num_keys), (Answers{{3, encode_number(0)}})) << "queues are no keys";
  EXPECT_EQ(ask(3, QueryType::check, {"q"}), (Answers{{3, std::string(1, answer_ready)}}));
  ask(2, QueryType::queue_pop, {"q"});
  EXPECT_EQ(ask(3, QueryType::queue_pop, {"q"}), (Answers{{3, encode_number(0)}}));
  EXPECT_EQ(ask(3, QueryType::queue_len, {"q"}), (Answers{{3, encode_number(0)}}));
}

TEST_F(StoreTest, ABarrierLetsAllGoWhenTheLastComes) {
  EXPECT_THAT(ask(1, QueryType::barrier, {"b"}, {}, 3), IsEmpty());
  EXPECT_THAT(ask(2, QueryType::barrier, {"b"}, {}, 3), IsEmpty());
  EXPECT_EQ(ask(3, QueryType::barrier, {"b"}, {}, 3), (Answers{{1, go}, {2, go}, {3, go}}));
  EXPECT_EQ(ask(3, QueryType::get, {"b"}), (Answers{{3, encode_text("3")}})) << "as torch: the count is a key";
}

TEST_F(StoreTest, AKeysWaitAndItsBarrierDoNotMix) {
  EXPECT_THAT(ask(1, QueryType::wait, {"b"}), IsEmpty());
  EXPECT_EQ(ask(2, QueryType::barrier, {"b"}, {}, 2), (Answers{{1, go}}));
  EXPECT_EQ(ask(3, QueryType::barrier, {"b"}, {}, 2), (Answers{{2, go}, {3, go}}));
}

TEST_F(StoreTest, HoldsABoundedNumberOfBytes) {
  Store small(100);
  const auto refusal_of = [&small](QueryType type, const std::string& value) {
    return small.handle(1, Query{type, {"key"}, {value}, 0}).refusal.message();
  };
  EXPECT_EQ(refusal_of(QueryType::set, std::string(90, 'v')), "");
  EXPECT_THAT(refusal_of(QueryType::append, std::string(10, 'v')), HasSubstr("full"));
  EXPECT_THAT(refusal_of(QueryType::queue_push, std::string(10, 'v')), HasSubstr("full"));
  EXPECT_EQ(refusal_of(QueryType::set, "small"), "") << "a value that is replaced frees its bytes";
  EXPECT_EQ(refusal_of(QueryType::queue_push, std::string(10, 'v')), "");
}

}  // namespace
}  // namespace closeranks::agent
