#include "control/handshake.h"

#include <algorithm>
#include <vector>

#include "base/assert.h"
#include "control/frame.h"

namespace closeranks::control {
namespace {

constexpr std::size_t refused_text_limit = 512;

// Bytes of a proof's body: nonce, HMAC, role, worker, then two texts with a length byte each.
constexpr std::size_t proof_fixed_bytes = nonce_bytes + proof_bytes + 1 + 8;
static_assert(proof_fixed_bytes + 2 * (1 + claim_text_limit) <= handshake_body_limit);
static_assert(refused_text_limit <= handshake_body_limit);

std::string frame(FrameKind kind, std::string_view body) {
  Result<std::string> made = make_frame(kind, body);
  CR_ASSERT(made.ok());  // handshake bodies are far below the limit
  return std::move(made.value());
}

void append(std::string& out, std::span<const std::uint8_t> bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The claim as it stands in the proof's body and under both HMACs.
std::string claim_bytes(const Claim& claim) {
  CR_ASSERT(claim.job.size() <= claim_text_limit && claim.host.size() <= claim_text_limit);
  std::string out;
  out.push_back(static_cast<char>(claim.role));
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<char>(claim.worker.value() >> shift));
  for (const std::string* text : {&claim.job, &claim.host}) {
    out.push_back(static_cast<char>(text->size()));
    out.append(*text);
  }
  return out;
}

Proof prove(std::string_view side, std::string_view token, const Nonce& server_nonce, const Nonce& client_nonce,
            const Claim& claim) {
  std::string message("closeranks control ");
  message.append(side);
  message.push_back('\0');
  append(message, server_nonce);
  append(message, client_nonce);
  message.append(claim_bytes(claim));
  return hmac_sha256(token, {reinterpret_cast<const std::uint8_t*>(message.data()), message.size()});
}

template <std::size_t size>
void copy(std::span<const std::byte> bytes, std::array<std::uint8_t, size>& out) {
  std::transform(bytes.begin(), bytes.begin() + size, out.begin(),
                 [](std::byte b) { return std::to_integer<std::uint8_t>(b); });
}

// Text from somebody who has proved nothing, on its way into a log.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

Status refuse(std::string text) { return Status(Fault::refused, Move::give_up, std::move(text)); }

}  // namespace

std::string_view name_of(Role role) {
  switch (role) {
    case Role::worker:
      return "worker";
    case Role::agent:
      return "agent";
    case Role::observer:
      return "observer";
  }
  return "unknown";
}

std::string describe(const Claim& claim) {
  switch (claim.role) {
    case Role::worker:
      return "worker " + std::to_string(claim.worker.value());
    case Role::agent:
      return "agent of host " + printable(claim.host);
    case Role::observer:
      return "observer";
  }
  return "unknown";
}

Status check_claim(const Claim& claim) {
  if (claim.job.size() <= claim_text_limit && claim.host.size() <= claim_text_limit) return {};
  return Status(Fault::invalid_argument, Move::fix_call,
                "the id of a job and the name of a host may have " + std::to_string(claim_text_limit) +
                    " bytes; these have " + std::to_string(claim.job.size()) + " and " +
                    std::to_string(claim.host.size()));
}

std::string challenge_frame(const Nonce& server_nonce) {
  std::string body;
  append(body, server_nonce);
  return frame(FrameKind::challenge, body);
}

Result<ClaimedProof> decode_proof(std::span<const std::byte> body) {
  if (body.size() < proof_fixed_bytes) return refuse("a proof frame that is too short");
  ClaimedProof claimed;
  copy(body, claimed.client_nonce);
  body = body.subspan(nonce_bytes);
  copy(body, claimed.proof);
  body = body.subspan(proof_bytes);
  claimed.claim.role = static_cast<Role>(body[0]);
  if (name_of(claimed.claim.role) == "unknown") return refuse("a proof frame with an unknown role");
  std::uint64_t worker = 0;
  for (std::size_t i = 0; i < 8; ++i) worker |= std::to_integer<std::uint64_t>(body[1 + i]) << (8 * i);
  claimed.claim.worker = WorkerId(worker);
  body = body.subspan(1 + 8);
  for (std::string* text : {&claimed.claim.job, &claimed.claim.host}) {
    if (body.empty()) return refuse("a proof frame that is too short");
    const auto size = std::to_integer<std::size_t>(body[0]);
    if (size > body.size() - 1) return refuse("a proof frame with a text longer than itself");
    text->assign(reinterpret_cast<const char*>(body.data()) + 1, size);
    body = body.subspan(1 + size);
  }
  if (!body.empty()) return refuse("a proof frame with bytes after its end");
  return claimed;
}

Status check_proof(const ClaimedProof& claimed, std::string_view token, std::string_view job,
                   const Nonce& server_nonce) {
  if (!equal_proofs(claimed.proof, prove("client", token, server_nonce, claimed.client_nonce, claimed.claim))) {
    return refuse("wrong token");
  }
  if (claimed.claim.job != job) {
    return refuse("this is the coordinator of job " + std::string(job) + ", not of job " +
                  printable(claimed.claim.job));
  }
  return {};
}

std::string accepted_frame(const ClaimedProof& claimed, std::string_view token, const Nonce& server_nonce) {
  std::string body;
  append(body, prove("server", token, server_nonce, claimed.client_nonce, claimed.claim));
  return frame(FrameKind::accepted, body);
}

std::string refused_frame(std::string_view why) { return frame(FrameKind::refused, why.substr(0, refused_text_limit)); }

Result<Nonce> decode_challenge(std::span<const std::byte> body) {
  Nonce nonce{};
  if (body.size() != nonce.size()) return refuse("a challenge frame of the wrong size");
  copy(body, nonce);
  return nonce;
}

std::string proof_frame(const Claim& claim, std::string_view token, const Nonce& server_nonce,
                        const Nonce& client_nonce) {
  std::string body;
  append(body, client_nonce);
  append(body, prove("client", token, server_nonce, client_nonce, claim));
  body.append(claim_bytes(claim));
  return frame(FrameKind::proof, body);
}

Status check_accepted(std::span<const std::byte> body, const Claim& claim, std::string_view token,
                      const Nonce& server_nonce, const Nonce& client_nonce) {
  Proof given{};
  if (body.size() != given.size()) return refuse("an accepted frame of the wrong size");
  copy(body, given);
  if (!equal_proofs(given, prove("server", token, server_nonce, client_nonce, claim))) {
    return refuse("the other side does not know the job's token");
  }
  return {};
}

std::string decode_refused(std::span<const std::byte> body) {
  std::string text(reinterpret_cast<const char*>(body.data()), std::min(body.size(), refused_text_limit));
  return printable(std::move(text));
}

}  // namespace closeranks::control
