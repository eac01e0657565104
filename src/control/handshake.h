// How the two ends of a control connection prove to each other that they know the job's token, before anything else
// is read. Pure: frames in, frames out; docs/wire.md has every byte.
//
//   coordinator -> challenge(server nonce)
//   client      -> proof(client nonce, claim, HMAC(token, "client", server nonce, client nonce, claim))
//   coordinator -> accepted(HMAC(token, "server", server nonce, client nonce, claim))     or refused(why)
//
// Fresh nonces from both sides make every proof good for one connection only; the words "client" and "server" keep one
// side's proof from being played back as the other's. The claim (who, in which role, in which job) is under the HMAC.
// The messages that follow carry no HMAC of their own: the handshake keeps strangers and stray jobs out, it does not
// protect against somebody who can alter packets between the hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/token.h"
#include "closeranks/ids.h"
#include "closeranks/status.h"

namespace closeranks::control {

// What the connection is for. An observer sends nothing and is sent nothing but the refusal of others: it only finds
// out whether the coordinator is there.
enum class Role : std::uint8_t { worker = 1, agent = 2, observer = 3 };
std::string_view name_of(Role role);

// Who the client says it is.
struct Claim {
  Role role = Role::observer;
  WorkerId worker;   // role worker, else 0
  std::string job;   // at most claim_text_limit bytes
  std::string host;  // role agent, else empty; at most claim_text_limit bytes
  friend bool operator==(const Claim&, const Claim&) = default;
};
inline constexpr std::size_t claim_text_limit = 255;
// "worker 3", "agent of host alpha", for logs; without control characters.
std::string describe(const Claim& claim);
// invalid_argument when a text is longer than claim_text_limit.
Status check_claim(const Claim& claim);

// ---- the coordinator's side --------------------------------------------------------------------------------------

std::string challenge_frame(const Nonce& server_nonce);

// A proof as it came in: read, not believed.
struct ClaimedProof {
  Nonce client_nonce{};
  Claim claim;
  Proof proof{};
};
// Fault::refused: not a proof's layout.
Result<ClaimedProof> decode_proof(std::span<const std::byte> body);
// ok, or Fault::refused: wrong token, another job. The token is checked first, so that only who knows it learns more.
Status check_proof(const ClaimedProof& claimed, std::string_view token, std::string_view job,
                   const Nonce& server_nonce);
std::string accepted_frame(const ClaimedProof& claimed, std::string_view token, const Nonce& server_nonce);
// `why` is cut at 512 bytes.
std::string refused_frame(std::string_view why);

// ---- the client's side -------------------------------------------------------------------------------------------

Result<Nonce> decode_challenge(std::span<const std::byte> body);
// Precondition: the claim's texts are within claim_text_limit.
std::string proof_frame(const Claim& claim, std::string_view token, const Nonce& server_nonce,
                        const Nonce& client_nonce);
// ok when the other side knows the token too.
Status check_accepted(std::span<const std::byte> body, const Claim& claim, std::string_view token,
                      const Nonce& server_nonce, const Nonce& client_nonce);
// The reason in a refused frame, without control characters.
std::string decode_refused(std::span<const std::byte> body);

}  // namespace closeranks::control
