// Frames of the control connections: a fixed header, then `length` bytes. docs/wire.md has every byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "closeranks/status.h"

namespace closeranks::control {

// "CRNK" in the order of the bytes on the wire.
inline constexpr std::uint32_t frame_magic = 0x4b4e5243;
// Raised with every change of the header, the handshake or a message that an older reader would take wrongly.
inline constexpr std::uint16_t protocol_version = 3;
// Header and handshake keep their layout for ever, so that two versions can tell each other apart.
inline constexpr std::size_t frame_header_bytes = 12;
// Largest body. A welcome of 1,000 workers takes about 120 KiB, a prepared of 100 groups of 1,000 members 400 KiB;
// more than this is no message of ours.
inline constexpr std::uint32_t frame_body_limit = 1u << 20;
// Largest body before the token is proved: what a stranger can make us hold.
inline constexpr std::uint32_t handshake_body_limit = 1024;

// What a frame holds. Numbers are never reused.
enum class FrameKind : std::uint16_t {
  challenge = 1,
  proof = 2,
  accepted = 3,
  refused = 4,
  hello = 16,
  prepared = 17,
  suspicion = 18,
  op_repaired = 19,
  goodbye = 20,
  join_request = 21,
  holding = 22,
  state_served = 23,
  state_received = 24,
  join_failed = 25,
  progress = 26,
  first_step = 27,
  pause = 28,
  agent_hello = 32,
  agent_suspicion = 33,
  fenced = 34,
  exited = 35,
  started = 36,
  drain = 37,
  resize = 38,
  welcome = 48,
  propose = 49,
  install = 50,
  evicted = 51,
  hold = 52,
  admit = 53,
  transfer = 54,
  cancel = 55,
  job_finished = 56,
  leave = 57,
  fence = 64,
};
[[nodiscard]] bool is_known(FrameKind kind);
std::string_view name_of(FrameKind kind);

// The header in memory; on the wire it is these fields in this order, little endian, without padding.
struct FrameHeader {
  std::uint32_t magic = frame_magic;
  std::uint16_t version = protocol_version;
  FrameKind kind = FrameKind::refused;
  std::uint32_t length = 0;
};
static_assert(sizeof(FrameHeader) == frame_header_bytes);

using HeaderBytes = std::array<std::byte, frame_header_bytes>;
[[nodiscard]] HeaderBytes encode_header(FrameKind kind, std::uint32_t length);
// Fault::refused: not our magic, another version (the text names both), an unknown kind, a body above `limit`.
// `peer` names the other side in the text.
Result<FrameHeader> decode_header(std::span<const std::byte, frame_header_bytes> bytes, std::uint32_t limit,
                                  std::string_view peer);

// Header and body in one string, ready to be written. Fault::invalid_argument above frame_body_limit.
Result<std::string> make_frame(FrameKind kind, std::string_view body);

}  // namespace closeranks::control
