// The messages of src/membership as frames: one CBOR map per message, keyed by the fields' names (docs/wire.md).
// Pure; any thread. Decoders trust nothing: sizes and nesting are checked before parsing, every field for its type and
// range. Unknown keys are ignored, so that fields can be added; a missing key is an error.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "closeranks/status.h"
#include "control/frame.h"
#include "membership/messages.h"

namespace closeranks::control {

// Bounds of what a message may say.
inline constexpr std::uint32_t slot_limit = 65'536;          // slots of a job
inline constexpr std::size_t text_limit = 4'096;             // bytes of a name, host, endpoint or reason
inline constexpr std::uint32_t chunk_limit = 1u << 24;       // chunks of one op
inline constexpr std::uint64_t sequence_limit = 1ull << 40;  // entries of one group: what a block word can name

// A whole frame, header included. Texts longer than text_limit are cut there; a message larger than a frame is
// Fault::invalid_argument.
Result<std::string> encode(const membership::FromWorker& message);
Result<std::string> encode(const membership::FromAgent& message);
Result<std::string> encode(const membership::ToWorker& message);
Result<std::string> encode(const membership::ToAgent& message);

// `body` is what follows the header. Fault::refused, naming the message and the field, when it is not a message that
// this direction carries.
Result<membership::FromWorker> decode_from_worker(FrameKind kind, std::span<const std::byte> body);
Result<membership::FromAgent> decode_from_agent(FrameKind kind, std::span<const std::byte> body);
Result<membership::ToWorker> decode_to_worker(FrameKind kind, std::span<const std::byte> body);
Result<membership::ToAgent> decode_to_agent(FrameKind kind, std::span<const std::byte> body);

}  // namespace closeranks::control
