// The layout of a segment: fixed-width structs, and offsets as a pure function of the shape. All numbers are little
// endian (the host's: segments never leave it). docs/segment.md draws it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "closeranks/status.h"

namespace closeranks::transport {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint64_t>) == 8);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);

inline constexpr std::uint64_t segment_magic = 0x31474553524b4c43;  // "CLKRSEG1"
inline constexpr std::uint32_t segment_version = 4;
inline constexpr std::uint64_t cache_line_bytes = 64;
// Payload that fits into a descriptor slot (equal to algorithm::inline_bytes; the communicator asserts it).
inline constexpr std::uint64_t inline_payload_bytes = 2048;

// Sizes, agreed by all members when the group is made: a pure function of the group, never of one process.
struct SegmentShape {
  std::uint32_t members = 1;                         // 1..1024
  std::uint32_t window = 16;                         // ring slots: entries in flight per member; a power of 2
  std::uint32_t max_blocks = 1024;                   // blocks per entry
  std::uint32_t message_slots = 32;                  // messages in flight per (source, destination)
  std::uint64_t scratch_bytes = 128ull * 1024;       // one block
  std::uint64_t region_bytes = 32ull * 1024 * 1024;  // staging; multiple of 4096
  std::uint64_t message_half_bytes = 128ull * 1024;  // each message slot has two, filled in turn

  // What groups of `members` use: large groups get smaller message halves, so that the address space stays bounded.
  static SegmentShape for_members(std::uint32_t members);
  // ok, or which number is outside its bounds.
  [[nodiscard]] Status check() const;
  friend bool operator==(const SegmentShape&, const SegmentShape&) = default;
};

struct SegmentHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t header_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::uint64_t group_key = 0;
  std::uint64_t worker = 0;
  std::uint32_t slot = 0;
  std::uint32_t rank = 0;
  std::uint32_t pid = 0;  // in the maker's own pid namespace
  std::uint32_t members = 0;
  std::uint32_t window = 0;
  std::uint32_t max_blocks = 0;
  std::uint32_t message_slots = 0;
  std::uint32_t reserved = 0;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t region_bytes = 0;
  std::uint64_t message_half_bytes = 0;
  std::array<char, 64> job{};         // zero-terminated
  std::array<char, 96> group_name{};  // zero-terminated
};
static_assert(sizeof(SegmentHeader) == 256);

// A word with a cache line of its own: its readers spin on it.
struct alignas(cache_line_bytes) LineWord {
  std::atomic<std::uint64_t> value{0};
};
static_assert(sizeof(LineWord) == 64);

inline constexpr std::uint32_t issuer_words = 8;
// Who called the last ops of the group here: thread id << 32 | collectives called so far (their low half), in turn;
// 0: nobody. Members that wait for this one read it.
struct alignas(cache_line_bytes) IssuerLine {
  std::array<std::atomic<std::uint64_t>, issuer_words> words{};
};
static_assert(sizeof(IssuerLine) == 64);

struct ControlWords {
  LineWord connected;
  LineWord entered;
  LineWord completed;
  IssuerLine issuers;
};
static_assert(sizeof(ControlWords) == 256);

// Where an offset of a descriptor counts from.
enum class Place : std::uint8_t {
  none = 0,    // nothing is there: no bytes, or the payload is in the descriptor
  region = 1,  // the staging region of the member's segment
  arena = 2,   // the arena of the member's process
};

// One entry's descriptor. Written before `entered`, read after it; rewritten only when every present member has
// completed the entry that used the slot. Atomic with relaxed order, because outside readers look at any time.
//
// `ready` is stored after `entered`, with release: who sees it needs not look at `entered`. So whoever waits for a
// small entry waits on the one cache line that has all of it.
struct alignas(cache_line_bytes) DescriptorSlot {
  std::atomic<std::uint64_t> ready{0};  // sequence + 1
  std::atomic<std::uint64_t> signature{0};
  std::atomic<double> weight{0};       // of the member's input in an average, 0: it is not read; premul_sum: its factor
  std::atomic<std::uint8_t> kind{0};   // OpKind
  std::atomic<std::uint8_t> dtype{0};  // DType
  std::atomic<std::uint8_t> reduce{0};  // ReduceOp
  std::atomic<std::uint8_t> policy{0};  // Policy
  std::atomic<std::uint16_t> root{0};
  std::atomic<std::uint8_t> input_place{0};   // Place
  std::atomic<std::uint8_t> output_place{0};  // Place
  std::array<std::byte, inline_payload_bytes> payload{};
  std::atomic<std::uint64_t> input_offset{0};
  std::atomic<std::uint64_t> output_offset{0};
  std::atomic<std::uint64_t> unit_bytes{0};   // of the whole call
  std::atomic<std::uint64_t> fingerprint{0};  // Call::fingerprint
  std::atomic<std::uint32_t> blocks{0};       // 0: inlined
  std::atomic<std::uint32_t> block_bytes{0};
  std::array<std::uint64_t, 7> reserved{};
};
static_assert(offsetof(DescriptorSlot, payload) == 32);
static_assert(offsetof(DescriptorSlot, input_offset) == 32 + inline_payload_bytes);
static_assert(sizeof(DescriptorSlot) == 128 + inline_payload_bytes);
static_assert(std::atomic<double>::is_always_lock_free && sizeof(std::atomic<double>) == 8);

// Point to point, sender's side, per destination.
struct alignas(cache_line_bytes) OutboundWords {
  std::atomic<std::uint64_t> announced{0};  // messages 1..announced have (or had) a slot, in the order of their tags
  std::atomic<std::uint64_t> backlog{0};    // grows whenever another message has to wait for a slot
  std::atomic<std::uint64_t> answered{0};   // highest query of the receiver that was looked at
  std::array<std::uint64_t, 5> reserved{};
};
static_assert(sizeof(OutboundWords) == 64);

// A message in flight. All but `posted` and `aborted` are written before OutboundWords::announced covers `message`, and
// stay until the receiver has consumed all its pieces.
struct alignas(cache_line_bytes) MessageSlot {
  std::atomic<std::uint64_t> message{0};  // its number, 1, 2, ... per (source, destination)
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> first_piece{0};  // value of `posted` when it began
  std::atomic<std::uint64_t> posted{0};       // pieces ever posted in this slot; piece p lies in half p mod 2
  std::atomic<std::int32_t> tag{0};
  std::atomic<std::uint32_t> dtype{0};
  std::atomic<std::uint64_t> aborted{0};  // number of a message whose sender gave up before its end
  std::array<std::uint64_t, 2> reserved{};
};
static_assert(sizeof(MessageSlot) == 64);

// Point to point, receiver's side, per source. Followed by `message_slots` words: pieces ever consumed of each slot.
struct alignas(cache_line_bytes) InboundWords {
  std::atomic<std::uint64_t> query{0};  // number of the current query: "is a message of query_tag waiting for a slot?"
  std::atomic<std::int64_t> query_tag{0};
  std::array<std::uint64_t, 6> reserved{};
};
static_assert(sizeof(InboundWords) == 64);

// Byte offsets from the start of the segment.
struct SegmentLayout {
  std::uint64_t control = 0;
  std::uint64_t decisions = 0;    // [window] words
  std::uint64_t descriptors = 0;  // [window] DescriptorSlot
  std::uint64_t blocks = 0;  // [window][members][block_row] words: block b is number b / members of row b mod members
  std::uint32_t block_row = 0;  // whole cache lines: members that begin with blocks of their own share do not meet
  std::uint64_t outbound = 0;   // [members] of outbound_stride
  std::uint64_t outbound_stride = 0;
  std::uint64_t inbound = 0;  // [members] of inbound_stride
  std::uint64_t inbound_stride = 0;
  std::uint64_t scratch = 0;   // page aligned
  std::uint64_t messages = 0;  // [members][message_slots][2] halves, page aligned
  std::uint64_t region = 0;    // 2 MiB aligned, so that huge pages fit
  std::uint64_t total = 0;
};

// Pure. Precondition: shape.check().ok().
SegmentLayout segment_layout(const SegmentShape& shape);

}  // namespace closeranks::transport
