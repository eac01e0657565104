#include "control/cbor_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace closeranks::control {
namespace {

using testing::HasSubstr;

Status scan(const std::string& body) { return scan_cbor(std::as_bytes(std::span(body))); }
Status scan(std::initializer_list<int> bytes) {
  std::string body;
  for (const int byte : bytes) body.push_back(static_cast<char>(byte));
  return scan(body);
}

TEST(CborScan, TakesWhatOurMessagesAreMadeOf) {
  EXPECT_TRUE(scan({0xa0}).ok());                    // {}
  EXPECT_TRUE(scan({0xa1, 0x61, 'a', 0x01}).ok());   // {"a": 1}
  EXPECT_TRUE(scan({0x83, 0x20, 0xf4, 0xf6}).ok());  // [-1, false, null]
  EXPECT_TRUE(scan({0x1b, 255, 255, 255, 255, 255, 255, 255, 255}).ok());
  EXPECT_TRUE(scan({0x78, 3, 'a', 'b', 'c'}).ok());  // a text with a length byte
}

TEST(CborScan, RefusesAHeadOfOneByteOfEveryOtherKind) {
  EXPECT_THAT(scan({0x40}).message(), HasSubstr("byte string"));
  EXPECT_THAT(scan({0xc0, 0x00}).message(), HasSubstr("tag"));
  EXPECT_THAT(scan({0xfa, 0, 0, 0, 0}).message(), HasSubstr("floating-point"));
  EXPECT_THAT(scan({0xf7}).message(), HasSubstr("simple value"));
  EXPECT_THAT(scan({0xff}).message(), HasSubstr("simple value"));
  EXPECT_THAT(scan({0x9f, 0xff}).message(), HasSubstr("indefinite length"));
  EXPECT_THAT(scan({0x1c}).message(), HasSubstr("indefinite length"));  // reserved
}

TEST(CborScan, RefusesBodiesThatEndEarlyOrLate) {
  EXPECT_FALSE(scan({}).ok());
  EXPECT_FALSE(scan({0x82, 0x01}).ok());
  EXPECT_FALSE(scan({0x19, 0x01}).ok());
  EXPECT_FALSE(scan({0x63, 'a', 'b'}).ok());
  EXPECT_THAT(scan({0x01, 0x01}).message(), HasSubstr("bytes after its end"));
}

TEST(CborScan, RefusesNestingAtEveryDepthAboveTheLimitWithoutAStack) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '\x81') + '\x01'; };
  EXPECT_TRUE(scan(nested(cbor_depth_limit)).ok());
  EXPECT_THAT(scan(nested(cbor_depth_limit + 1)).message(), HasSubstr("nested deeper"));
  EXPECT_THAT(scan(nested(1'000'000)).message(), HasSubstr("nested deeper"));
}

TEST(CborScan, RefusesSizesThatTheBodyCannotHold) {
  EXPECT_FALSE(scan({0xbb, 0x80, 0, 0, 0, 0, 0, 0, 0}).ok());  // a map of 2^63 pairs: twice that is 0 in 64 bits
  EXPECT_FALSE(scan({0xbb, 255, 255, 255, 255, 255, 255, 255, 255}).ok());
  EXPECT_FALSE(scan({0x9b, 255, 255, 255, 255, 255, 255, 255, 255}).ok());
  EXPECT_FALSE(scan({0x7b, 255, 255, 255, 255, 255, 255, 255, 255}).ok());
  EXPECT_FALSE(scan({0x3b, 0x80, 0, 0, 0, 0, 0, 0, 0}).ok());  // -1 - 2^63
  EXPECT_FALSE(scan({0xa2, 0x61, 'a', 0x01}).ok());
}

TEST(CborScan, RefusesKeysThatAreNoShortText) {
  EXPECT_THAT(scan({0xa1, 0x01, 0x01}).message(), HasSubstr("key that is no text"));
  const std::string key(cbor_key_bytes + 1, 'k');
  EXPECT_THAT(scan(std::string("\xa1\x78") + static_cast<char>(key.size()) + key + "\x01").message(),
              HasSubstr("key that is too long"));
}

TEST(CborScan, RefusesMoreItemsThanTheLimit) {
  std::string body("\x9a\x00\x08\x00\x00", 5);  // a list of 2^19 items, one more with the list itself
  body += std::string(1u << 19, '\x01');
  EXPECT_THAT(scan(body).message(), HasSubstr("items"));
}

}  // namespace
}  // namespace closeranks::control
