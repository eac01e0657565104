// The job's shared secret and the proof of knowing it: HMAC-SHA256 over fresh challenges. Thread-safe, no state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace closeranks {

inline constexpr std::size_t nonce_bytes = 32;
inline constexpr std::size_t proof_bytes = 32;
using Nonce = std::array<std::uint8_t, nonce_bytes>;
using Proof = std::array<std::uint8_t, proof_bytes>;

// A fresh token: 32 random bytes as 64 hexadecimal digits, fit for an environment variable.
std::string make_token();

// A fresh challenge from the kernel's random source.
Nonce make_nonce();

// HMAC-SHA256 of `message` under `token` (its text as it stands, any length).
Proof hmac_sha256(std::string_view token, std::span<const std::uint8_t> message);

// Compares in time that does not depend on where the two differ.
bool equal_proofs(const Proof& left, const Proof& right);

}  // namespace closeranks
