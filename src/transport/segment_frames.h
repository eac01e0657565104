// The frames between SegmentServer and its clients, one SOCK_SEQPACKET message each, little endian (both ends are on
// one host). Fixed sizes: a message of another size is refused. docs/segment.md has them as a table.
//
//   server -> client  Challenge   as soon as the connection is accepted
//   client -> server  Request     proves the token over both nonces
//   server -> client  Answer      proves it too; with verdict `here`, the memfd travels as ancillary data
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "transport/segment_server.h"

namespace closeranks::transport {

inline constexpr std::uint64_t frame_magic = 0x3147534652534c43;  // "CLSRFSG1"
inline constexpr std::uint32_t frame_version = 1;
// Longest message that is read at all.
inline constexpr std::size_t max_frame_bytes = 256;

struct FrameStart {
  std::uint64_t magic = frame_magic;
  std::uint32_t version = frame_version;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(FrameStart) == 16);

struct Challenge {
  FrameStart start;
  Nonce nonce{};
};
static_assert(sizeof(Challenge) == 48);

struct Request {
  FrameStart start;
  std::uint32_t kind = 0;  // SegmentKey::Kind
  std::uint32_t wait_ms = 0;
  std::uint64_t group = 0;
  Nonce nonce{};
  Proof proof{};
};
static_assert(sizeof(Request) == 96);

enum class Verdict : std::uint32_t { here = 1, refused = 2, not_published = 3 };

struct Answer {
  FrameStart start;
  std::uint32_t verdict = 0;
  std::uint32_t reserved = 0;
  Proof proof{};
};
static_assert(sizeof(Answer) == 56);

// What both sides prove. The role keeps a proof from being sent back as the other side's; key and verdict are covered,
// so that neither can be exchanged on the way.
inline Proof frame_proof(std::string_view token, std::string_view role, const Nonce& server, const Nonce& client,
                         std::uint32_t kind, std::uint64_t group, std::uint32_t verdict) {
  std::vector<std::uint8_t> message(role.begin(), role.end());
  message.insert(message.end(), server.begin(), server.end());
  message.insert(message.end(), client.begin(), client.end());
  const std::array<std::uint64_t, 3> numbers{kind, group, verdict};
  const std::size_t at = message.size();
  message.resize(at + sizeof(numbers));
  std::memcpy(message.data() + at, numbers.data(), sizeof(numbers));
  return hmac_sha256(token, message);
}
inline constexpr std::string_view client_role = "closeranks segment client";
inline constexpr std::string_view server_role = "closeranks segment server";

}  // namespace closeranks::transport
