#include "base/token.h"

#include <gtest/gtest.h>

#include <string>

namespace closeranks {
namespace {

TEST(Token, IsFreshAndFitForAnEnvironmentVariable) {
  const std::string token = make_token();
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(token, make_token());
  EXPECT_NE(make_nonce(), make_nonce());
}

// RFC 4231, test case 2.
TEST(Token, ProofIsHmacSha256) {
  const std::string message = "what do ya want for nothing?";
  const Proof proof = hmac_sha256("Jefe", {reinterpret_cast<const std::uint8_t*>(message.data()), message.size()});
  const Proof expected{0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                       0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
  EXPECT_TRUE(equal_proofs(proof, expected));
  Proof other = expected;
  other[31] ^= 1;
  EXPECT_FALSE(equal_proofs(proof, other));
}

}  // namespace
}  // namespace closeranks
