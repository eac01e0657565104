#include "control/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "control/frame.h"

namespace closeranks::control {
namespace {

using testing::HasSubstr;

std::span<const std::byte> body_of(const std::string& frame) {
  return std::as_bytes(std::span(frame)).subspan(frame_header_bytes);
}

class Handshake : public testing::Test {
 protected:
  Handshake() {
    server_.fill(0x11);
    client_.fill(0x22);
  }
  [[nodiscard]] std::string proof(const std::string& token) const {
    return proof_frame(claim_, token, server_, client_);
  }
  [[nodiscard]] Status check(const std::string& frame, const Nonce& server) const {
    const Result<ClaimedProof> claimed = decode_proof(body_of(frame));
    return claimed.ok() ? check_proof(claimed.value(), token_, "job-7", server) : claimed.status();
  }

  const std::string token_ = "a secret of this test";
  Nonce server_{};
  Nonce client_{};
  Claim claim_{Role::worker, WorkerId(0x0102030405060708), "job-7", ""};
};

TEST_F(Handshake, BothSidesProveThemselves) {
  const std::string challenge = challenge_frame(server_);
  EXPECT_EQ(decode_challenge(body_of(challenge)).value(), server_);
  const std::string frame = proof(token_);
  const Result<ClaimedProof> claimed = decode_proof(body_of(frame));
  ASSERT_TRUE(claimed.ok()) << claimed.status().message();
  EXPECT_EQ(claimed.value().claim, claim_);
  EXPECT_TRUE(check_proof(claimed.value(), token_, "job-7", server_).ok());
  const std::string accepted = accepted_frame(claimed.value(), token_, server_);
  EXPECT_TRUE(check_accepted(body_of(accepted), claim_, token_, server_, client_).ok());
}

TEST_F(Handshake, TheWrongTokenIsRefusedOnEitherSide) {
  EXPECT_THAT(check(proof("another"), server_).message(), HasSubstr("wrong token"));
  const std::string frame = proof(token_);
  const std::string accepted = accepted_frame(decode_proof(body_of(frame)).value(), "another", server_);
  EXPECT_FALSE(check_accepted(body_of(accepted), claim_, token_, server_, client_).ok());
}

TEST_F(Handshake, AProofIsGoodForItsChallengeOnly) {
  Nonce other = server_;
  other[31] ^= 1;
  EXPECT_FALSE(check(proof(token_), other).ok());
}

TEST_F(Handshake, AClientsProofPlayedBackIsNoAcceptance) {
  const std::string frame = proof(token_);
  const auto mac = body_of(frame).subspan(nonce_bytes, proof_bytes);
  EXPECT_FALSE(check_accepted(mac, claim_, token_, server_, client_).ok());
}

TEST_F(Handshake, EveryByteOfTheClaimIsUnderTheProof) {
  const std::string frame = proof(token_);
  for (std::size_t i = frame_header_bytes; i < frame.size(); ++i) {
    std::string altered = frame;
    altered[i] = static_cast<char>(altered[i] ^ 0x03);
    EXPECT_FALSE(check(altered, server_).ok()) << "byte " << i;
  }
}

TEST_F(Handshake, AnotherJobIsToldSoOnlyToThoseWhoKnowTheToken) {
  claim_.job = "job-8";
  EXPECT_THAT(check(proof(token_), server_).message(), HasSubstr("of job job-7, not of job job-8"));
  EXPECT_THAT(check(proof("another"), server_).message(), HasSubstr("wrong token"));
}

TEST_F(Handshake, ProofsOfAnyOtherLayoutAreRefused) {
  const std::string frame = proof(token_);
  const auto body = body_of(frame);
  for (std::size_t length = 0; length < body.size(); ++length) {
    EXPECT_FALSE(decode_proof(body.first(length)).ok()) << length;
  }
  std::string longer = frame + "x";
  EXPECT_THAT(decode_proof(body_of(longer)).status().message(), HasSubstr("after its end"));
}

TEST_F(Handshake, LongNamesAreAnErrorBeforeTheyAreABrokenInvariant) {
  claim_.job = std::string(claim_text_limit, 'j');
  claim_.host = std::string(claim_text_limit, 'h');
  EXPECT_TRUE(check_claim(claim_).ok());
  EXPECT_TRUE(decode_proof(body_of(proof(token_))).ok());
  EXPECT_LE(body_of(proof(token_)).size(), handshake_body_limit);
  claim_.host += "h";
  EXPECT_EQ(check_claim(claim_).fault(), Fault::invalid_argument);
}

TEST_F(Handshake, ARefusalCannotWriteIntoTheLog) {
  const std::string frame = refused_frame("no\n[error] forged\x1b[2J" + std::string(2'000, 'x'));
  const std::string text = decode_refused(body_of(frame));
  EXPECT_THAT(text, HasSubstr("no?[error] forged?[2J"));
  EXPECT_LE(text.size(), 512u);
}

TEST_F(Handshake, GoldenBytes) {
  const std::string frame = proof(token_);
  std::string hex;
  for (const std::string& part :
       {challenge_frame(server_), frame, accepted_frame(decode_proof(body_of(frame)).value(), token_, server_),
        refused_frame("wrong token")}) {
    for (const char byte : part) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
      hex += digits;
    }
    hex += "\n";
  }
  const std::string path = std::string(CLOSERANKS_SOURCE_DIR) + "/tests/golden/wire/handshake.hex";
  if (std::getenv("CLOSERANKS_WRITE_GOLDEN") != nullptr) std::ofstream(path) << hex;
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(hex, golden.str());
}

}  // namespace
}  // namespace closeranks::control
