#include "control/frame.h"

namespace closeranks::control {
namespace {

void put(HeaderBytes& bytes, std::size_t offset, std::uint32_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) bytes[offset + i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint32_t take(std::span<const std::byte, frame_header_bytes> bytes, std::size_t offset, std::size_t width) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value |= std::to_integer<std::uint32_t>(bytes[offset + i]) << (8 * i);
  return value;
}

Status refuse(std::string text) { return Status(Fault::refused, Move::give_up, std::move(text)); }

}  // namespace

std::string_view name_of(FrameKind kind) {
  switch (kind) {
    case FrameKind::challenge:
      return "challenge";
    case FrameKind::proof:
      return "proof";
    case FrameKind::accepted:
      return "accepted";
    case FrameKind::refused:
      return "refused";
    case FrameKind::hello:
      return "hello";
    case FrameKind::prepared:
      return "prepared";
    case FrameKind::suspicion:
      return "suspicion";
    case FrameKind::op_repaired:
      return "op_repaired";
    case FrameKind::goodbye:
      return "goodbye";
    case FrameKind::join_request:
      return "join_request";
    case FrameKind::holding:
      return "holding";
    case FrameKind::state_served:
      return "state_served";
    case FrameKind::state_received:
      return "state_received";
    case FrameKind::join_failed:
      return "join_failed";
    case FrameKind::progress:
      return "progress";
    case FrameKind::first_step:
      return "first_step";
    case FrameKind::pause:
      return "pause";
    case FrameKind::agent_hello:
      return "agent_hello";
    case FrameKind::agent_suspicion:
      return "agent_suspicion";
    case FrameKind::fenced:
      return "fenced";
    case FrameKind::exited:
      return "exited";
    case FrameKind::started:
      return "started";
    case FrameKind::drain:
      return "drain";
    case FrameKind::resize:
      return "resize";
    case FrameKind::welcome:
      return "welcome";
    case FrameKind::propose:
      return "propose";
    case FrameKind::install:
      return "install";
    case FrameKind::evicted:
      return "evicted";
    case FrameKind::hold:
      return "hold";
    case FrameKind::admit:
      return "admit";
    case FrameKind::transfer:
      return "transfer";
    case FrameKind::cancel:
      return "cancel";
    case FrameKind::job_finished:
      return "job_finished";
    case FrameKind::leave:
      return "leave";
    case FrameKind::fence:
      return "fence";
  }
  return "unknown";
}

bool is_known(FrameKind kind) { return name_of(kind) != "unknown"; }

HeaderBytes encode_header(FrameKind kind, std::uint32_t length) {
  HeaderBytes bytes{};
  put(bytes, 0, frame_magic, 4);
  put(bytes, 4, protocol_version, 2);
  put(bytes, 6, static_cast<std::uint16_t>(kind), 2);
  put(bytes, 8, length, 4);
  return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte, frame_header_bytes> bytes, std::uint32_t limit,
                                  std::string_view peer) {
  const std::string who(peer);
  FrameHeader header;
  header.magic = take(bytes, 0, 4);
  header.version = static_cast<std::uint16_t>(take(bytes, 4, 2));
  header.kind = static_cast<FrameKind>(take(bytes, 6, 2));
  header.length = take(bytes, 8, 4);
  if (header.magic != frame_magic) {
    return refuse(who + " does not speak closeranks' control protocol (its first bytes are not \"CRNK\")");
  }
  // Before kind and length: another version may know other kinds and limits.
  if (header.version != protocol_version) {
    return refuse(who + " speaks version " + std::to_string(header.version) +
                  " of the control protocol, this side version " + std::to_string(protocol_version) +
                  "; install the same closeranks on all sides");
  }
  if (!is_known(header.kind)) {
    return refuse(who + " sent a frame of unknown kind " + std::to_string(static_cast<unsigned>(header.kind)));
  }
  if (header.length > limit) {
    return refuse(who + " sent a frame of " + std::to_string(header.length) + " bytes (" +
                  std::string(name_of(header.kind)) + "), more than the " + std::to_string(limit) + " allowed here");
  }
  return header;
}

Result<std::string> make_frame(FrameKind kind, std::string_view body) {
  if (body.size() > frame_body_limit) {
    return Status(Fault::invalid_argument, Move::fix_call,
                  "a message of " + std::to_string(body.size()) + " bytes (" + std::string(name_of(kind)) +
                      ") is larger than a frame (" + std::to_string(frame_body_limit) +
                      " bytes); make fewer or smaller groups");
  }
  const HeaderBytes header = encode_header(kind, static_cast<std::uint32_t>(body.size()));
  std::string frame(reinterpret_cast<const char*>(header.data()), header.size());
  frame.append(body);
  return frame;
}

}  // namespace closeranks::control
