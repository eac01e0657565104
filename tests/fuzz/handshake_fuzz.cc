// The bodies of all four frames of the handshake.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "control/frame.h"
#include "control/handshake.h"
#include "require.h"

using namespace closeranks;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto body = std::as_bytes(std::span(data, size));
  Nonce nonce{};
  if (const auto claimed = control::decode_proof(body); claimed.ok()) {
    FUZZ_REQUIRE(control::check_claim(claimed.value().claim).ok());
    for (const char byte : control::describe(claimed.value().claim))
      FUZZ_REQUIRE(static_cast<unsigned char>(byte) >= 32);
    // Nobody finds a proof of a token by chance.
    FUZZ_REQUIRE(!control::check_proof(claimed.value(), "the token", "job", nonce).ok());
    // The same claim, truly proved, is taken and comes back as it was.
    const std::string frame =
        control::proof_frame(claimed.value().claim, "the token", nonce, claimed.value().client_nonce);
    const auto honest = control::decode_proof(std::as_bytes(std::span(frame)).subspan(control::frame_header_bytes));
    FUZZ_REQUIRE(honest.ok() && honest.value().claim == claimed.value().claim);
    FUZZ_REQUIRE(control::check_proof(honest.value(), "the token", claimed.value().claim.job, nonce).ok());
  }
  static_cast<void>(control::decode_challenge(body));
  FUZZ_REQUIRE(!control::check_accepted(body, control::Claim{}, "the token", nonce, nonce).ok());
  FUZZ_REQUIRE(control::decode_refused(body).size() <= 512);
  return 0;
}
