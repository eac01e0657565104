// Looks at a CBOR body before a parser does. The parser recurses (30,000 nested arrays overflow its stack) and trusts
// the sizes it reads (a huge map size throws), so nothing reaches it that this scan has not walked.
#pragma once

#include <cstddef>
#include <span>

#include "closeranks/status.h"

namespace closeranks::control {

// Our deepest message is install: map > groups > map > departures > map > view, a depth of 6.
inline constexpr std::size_t cbor_depth_limit = 8;
// Items of one body. An item costs the parser some 20 to 60 bytes; a prepared of 100 groups of 1,000 members has
// 100,000.
inline constexpr std::size_t cbor_item_limit = 1u << 19;
// Below this length a key is one of ours or one of a later version.
inline constexpr std::size_t cbor_key_bytes = 64;

// ok: `body` is exactly one well-formed item within the limits, built of integers, text, booleans, null, and arrays and
// maps of definite length with text keys. Anything else is Fault::refused with the reason. Uses constant stack and no
// heap.
Status scan_cbor(std::span<const std::byte> body);

}  // namespace closeranks::control
