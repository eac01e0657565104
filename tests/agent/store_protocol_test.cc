#include "agent/store_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace closeranks::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(at, 2)), nullptr, 16)));
  }
  return bytes;
}

// As torch 2.15's client sends them.
const std::string hello = from_hex(
    "00cef7853c"
    "0d8f240000");

std::vector<Query> decode(QueryDecoder& decoder, const std::string& bytes) {
  std::vector<Query> queries;
  decoder.feed(bytes);
  for (;;) {
    auto query = decoder.next();
    EXPECT_TRUE(query.ok()) << query.status().message();
    if (!query.ok() || !query.value().has_value()) return queries;
    queries.push_back(std::move(*query.value()));
  }
}

std::string refusal(const std::string& bytes) {
  QueryDecoder decoder;
  decoder.feed(bytes);
  for (;;) {
    auto query = decoder.next();
    if (!query.ok()) return query.status().message();
    if (!query.value().has_value()) return "";
  }
}

TEST(StoreProtocol, ReadsTorchsOwnBytes) {
  QueryDecoder decoder;
  const auto queries = decode(
      decoder, hello + from_hex("0102000000000000002f6b010000000000000076"                        // set k v
                                "0402000000000000002f6ef9ffffffffffffff"                          // add n -7
                                "0202000000000000002f63010000000000000079010000000000000077"      // cas c y w
                                "06020000000000000003000000000000002f6d3103000000000000002f6d32"  // wait m1 m2
                                "0b020000000000000003000000000000002f6d3101000000000000007803000000000000002f6d320200"
                                "0000000000007979"  // multi_set
                                "11"
                                "0c"
                                "07"
                                "1203000000000000002f62320200000000000000"));  // barrier b2 2
  ASSERT_EQ(queries.size(), 11u);
  EXPECT_EQ(queries[0].type, QueryType::validate);
  EXPECT_EQ(queries[1].type, QueryType::ping);
  EXPECT_EQ(queries[1].number, 0x248f);
  EXPECT_THAT(queries[2].keys, ElementsAre("/k"));
  EXPECT_THAT(queries[2].values, ElementsAre("v"));
  EXPECT_EQ(queries[3].number, -7);
  EXPECT_THAT(queries[4].values, ElementsAre("y", "w"));
  EXPECT_THAT(queries[5].keys, ElementsAre("/m1", "/m2"));
  EXPECT_THAT(queries[6].keys, ElementsAre("/m1", "/m2"));
  EXPECT_THAT(queries[6].values, ElementsAre("x", "yy"));
  EXPECT_EQ(queries[7].type, QueryType::list_keys);
  EXPECT_EQ(queries[8].type, QueryType::cancel_wait);
  EXPECT_EQ(queries[9].type, QueryType::get_num_keys);
  EXPECT_EQ(queries[10].type, QueryType::barrier);
  EXPECT_EQ(queries[10].number, 2);
}

TEST(StoreProtocol, TakesBytesOneByOne) {
  QueryDecoder decoder;
  const std::string bytes = hello + from_hex(
                                        "0b020000000000000003000000000000002f6d3101000000000000007803000000000000"
                                        "002f6d3202000000000000007979");
  std::vector<Query> queries;
  for (const char byte : bytes) {
    for (Query& query : decode(decoder, std::string(1, byte))) queries.push_back(std::move(query));
  }
  ASSERT_EQ(queries.size(), 3u);
  EXPECT_THAT(queries[2].values, ElementsAre("x", "yy"));
}

TEST(StoreProtocol, RefusesStrangers) {
  EXPECT_THAT(refusal("GET / HTTP/1.1\r\n"), HasSubstr("does not exist"));
  EXPECT_THAT(refusal(from_hex("0d8f240000")), HasSubstr("first query is not validate"));
  EXPECT_THAT(refusal(from_hex("00cef7853d")), HasSubstr("magic"));
  EXPECT_THAT(refusal(hello + from_hex("13")), HasSubstr("type 19"));
}

TEST(StoreProtocol, IsBounded) {
  EXPECT_THAT(refusal(hello + from_hex("0301200000000000ff")), HasSubstr("over the limit"));
  EXPECT_THAT(refusal(hello + from_hex("01010000000000000061"
                                       "ffffffffffffffff")),
              HasSubstr("over the limit"));
  EXPECT_THAT(refusal(hello + from_hex("06ffffffffffffffff")), HasSubstr("keys in one wait"));
  // Each value within its bound, all of them together not.
  std::string many = hello + from_hex("0b0900000000000000");
  for (int key = 0; key < 9; ++key) {
    many += from_hex("0100000000000000") + "k" + encode_number(static_cast<std::int64_t>(max_value_bytes));
    many += std::string(max_value_bytes, 'v');
  }
  EXPECT_THAT(refusal(many), HasSubstr("over the limit"));
}

TEST(StoreProtocol, AnswersAreLittleEndian) {
  EXPECT_EQ(encode_number(-2), from_hex("feffffffffffffff"));
  EXPECT_EQ(encode_nonce(0x248f), from_hex("8f240000"));
  EXPECT_EQ(encode_text("yy"), from_hex("02000000000000007979"));
}

}  // namespace
}  // namespace closeranks::agent
