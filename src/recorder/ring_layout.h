// The bytes of a recorder's file (docs/recorder.md): header, tables of groups and names, rings of records. Little
// endian, fixed widths. All of it is written with plain stores into a shared mapping, so that what was stored before a
// SIGKILL is in the file. Nothing of it is trusted by a reader.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "recorder/trace.h"

namespace closeranks::recorder {

static_assert(std::endian::native == std::endian::little, "the file is written in the machine's own byte order");

inline constexpr std::uint64_t ring_magic = 0x31434552'4b524c43;  // "CLRKREC1"
inline constexpr std::uint32_t ring_version = 1;
inline constexpr std::uint64_t page_bytes = 4096;

// A name's number is where it lies: offset in the table / 8 + 1.
using NameId = std::uint32_t;
inline constexpr NameId no_name = 0;
inline constexpr NameId lost_name = 0xffffffff;  // there was one, and the table was full
inline constexpr std::uint32_t name_max_bytes = 16 * 1024;
// Of the stack that an op was called from: a reader keeps one for every record of 64 bytes.
inline constexpr std::uint32_t op_stack_max_bytes = 512;

inline constexpr std::uint16_t no_group = 0xffff;
inline constexpr std::uint32_t no_slot = 0xffffffff;
inline constexpr std::uint32_t no_worker = 0xffffffff;
inline constexpr std::uint16_t no_rank = 0xffff;
inline constexpr std::uint8_t no_reduce = 0xff;

// ---- header --------------------------------------------------------------------------------------------------------

// Written once, its magic last. Afterwards only the atomics change. Texts are cut to fit, with zeros behind.
struct FileHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t total_bytes;
  std::uint64_t names_offset;
  std::uint64_t names_bytes;
  std::uint64_t groups_offset;
  std::uint32_t groups;
  std::uint32_t group_bytes;
  std::uint64_t records_offset;
  std::uint32_t records;  // of ops; a power of 2
  std::uint32_t record_bytes;
  std::uint32_t role;  // trace.h: Role
  std::uint32_t slot;  // no_slot: none
  std::uint64_t worker;
  std::uint32_t has_worker;
  std::uint32_t slots_in_job;
  std::uint32_t pid;
  std::uint32_t event_records;                // a ring of their own, behind that of the ops; a power of 2
  std::int64_t opened_ns;                     // CLOCK_MONOTONIC of its host, as all times in the file
  std::atomic<std::int64_t> clock_offset_ns;  // its host's clock + this = the job's clock
  std::atomic<std::int64_t> unix_offset_ns;   // its host's clock + this = unix time
  std::atomic<std::uint32_t> ended;           // 1: its process has ended in order
  std::uint32_t zero_too;
  std::array<char, 64> job;
  std::array<char, 64> host;
  std::array<char, 64> writer;
  std::array<char, 48> boot_id;
  std::array<char, 1024> command_line;
  std::array<std::uint8_t, 2376> zeros;
  // Cache lines of their own: they change all the time. A reader needs none of them.
  std::array<std::uint64_t, 8> line;
  std::atomic<std::uint64_t> next_event;
  std::array<std::uint64_t, 7> line_too;
  std::atomic<std::uint64_t> names_used;  // bytes of the table
  std::atomic<std::uint64_t> names_lost;  // that did not fit
  std::atomic<std::uint32_t> groups_used;
  std::atomic<std::uint32_t> groups_lost;
  std::array<std::uint8_t, 168> zeros_too;
};
static_assert(sizeof(FileHeader) == page_bytes);
static_assert(offsetof(FileHeader, role) == 72);
static_assert(offsetof(FileHeader, opened_ns) == 104);
static_assert(offsetof(FileHeader, job) == 136);
static_assert(offsetof(FileHeader, command_line) == 376);
static_assert(offsetof(FileHeader, next_event) == 3840);
static_assert(offsetof(FileHeader, names_used) == 3904);

// ---- names ---------------------------------------------------------------------------------------------------------

enum class NameKind : std::uint16_t { text = 1, slots = 2 };  // slots: u32 each

// Before each name's bytes; the next head lies at the next multiple of 8.
struct NameHead {
  std::uint32_t check;  // name_check() of kind and bytes
  std::uint16_t kind;
  std::uint16_t bytes;
};
static_assert(sizeof(NameHead) == 8);

// ---- ops and records -----------------------------------------------------------------------------------------------

enum class Algorithm : std::uint8_t { unknown, in_line, share, take, messages, alone };

struct CallFacts {
  std::uint32_t shape = no_name;
  std::uint16_t root = no_rank;  // of a rooted kind; the peer of a send or recv
  std::uint8_t op = 0;           // op.h: OpKind
  std::uint8_t dtype = 0;
  std::uint8_t reduce = no_reduce;
  std::uint8_t algorithm = 0;
  std::uint16_t zero = 0;
};
static_assert(sizeof(CallFacts) == 12);

enum class RecordKind : std::uint8_t {
  issued = 1,    // CallBody: the number it is expected to get
  entered = 2,   // CallBody: its first entry is entered
  moved = 3,     // MovedBody
  finished = 4,  // EndBody
  failed = 5,    // EndBody
  small = 6,     // SmallBody: from its call to its result in one go, at its end
  event = 7,     // EventBody
  waiting = 8,   // SmallBody without its end: entered, and somebody is not. Its `small` takes the same place
};

struct CallBody {
  std::uint64_t sequence;
  std::uint64_t bytes;
  CallFacts call;
  std::uint32_t stack;  // name: where it was called from
};

struct MovedBody {
  std::uint64_t sequence;
  std::int64_t first_byte_ns;
  std::int64_t last_byte_ns;
  std::uint64_t zero;
};

inline constexpr std::uint8_t flag_repaired = 1;  // of finished and failed

struct EndBody {
  std::uint64_t sequence;
  std::int64_t issued_ns;
  std::int64_t waited_ns;
  std::uint32_t detail;        // failed: name of the sentence; finished: of the contributors, no_name if they are all
  std::uint16_t last_arrival;  // rank, or no_rank
  std::uint8_t op;
  std::uint8_t algorithm;
};

struct SmallBody {
  std::uint64_t sequence;
  std::uint32_t bytes;
  std::uint32_t duration_ns;
  std::uint32_t waited_ns;
  std::uint32_t shape;
  std::uint16_t root;
  std::uint16_t last_arrival;
  std::uint8_t op;
  std::uint8_t dtype;
  std::uint8_t reduce;
  std::uint8_t zero;
};

struct EventBody {
  std::uint64_t number;
  std::int64_t since_ns;
  std::uint32_t detail;  // name
  std::uint32_t stack;   // name
  std::uint32_t slots;   // a slot, or no_slot; with event_names_slots: a name
  std::uint32_t worker;  // or no_worker
};

static_assert(sizeof(CallBody) == 32 && sizeof(MovedBody) == 32 && sizeof(EndBody) == 32 && sizeof(SmallBody) == 32 &&
              sizeof(EventBody) == 32);

inline constexpr std::uint32_t event_names_slots = 1;

// Record i of a ring lies in place i mod its records. Ops have one ring and events the other: a flood of small ops
// takes no event away.
struct Record {
  std::uint64_t stamp = 0;  // i + 1
  std::int64_t at_ns = 0;
  std::array<std::uint64_t, 4> body{};
  std::uint32_t thread = 0;
  std::uint32_t extra = 0;  // small: name of the contributors, if not all; other ops: counted per group; event: flags
  std::uint16_t group = no_group;
  RecordKind kind{};
  std::uint8_t flags = 0;   // finished, failed: flag_*; event: EventKind
  std::uint32_t check = 0;  // block_check()
};
static_assert(sizeof(Record) == 64);
static_assert(static_cast<int>(EventKind::timeout) == 20, "their numbers are in files: add at the end only");

// ---- groups --------------------------------------------------------------------------------------------------------

// What the worker is in: the oldest op of the group that is not over. Not of a small one, which has a record for it.
struct CurrentOp {
  std::uint64_t sequence = 0;
  std::int64_t issued_ns = 0;
  std::int64_t entered_ns = 0;  // 0: not entered
  std::uint64_t bytes = 0;
  CallFacts call;
  std::uint32_t thread = 0;
  std::uint32_t number = 0;   // as Record::extra
  std::uint32_t present = 0;  // 1: there is one
  std::uint32_t stack = 0;    // as CallBody's
  std::uint32_t check = 0;    // block_check()
};
static_assert(sizeof(CurrentOp) == 64);

struct GroupEntry {
  std::uint64_t key;
  std::int64_t made_ns;
  std::atomic<std::int64_t> ended_ns;  // 0: it has not
  std::uint32_t name;
  std::uint32_t members;             // name
  std::atomic<std::uint32_t> state;  // 1: what is above is written
  std::uint16_t rank;                // this worker's
  std::atomic<std::uint8_t> policy;
  std::uint8_t zero;
  std::array<std::uint64_t, 3> zeros;
  // The group's words, a line each; small ops leave them as they are.
  std::atomic<std::uint64_t> entered;  // entries
  std::atomic<std::uint64_t> completed;
  std::array<std::uint64_t, 6> line;
  CurrentOp current;
};
static_assert(sizeof(GroupEntry) == 192);
static_assert(offsetof(GroupEntry, entered) == 64 && offsetof(GroupEntry, current) == 128);

// ---- checks --------------------------------------------------------------------------------------------------------

// Of 64 bytes whose last 4 are the check itself. Against torn writes, not against forgers. Never 0: zeros are no
// record. Products that do not wait for each other: a few nanoseconds.
using BlockWords = std::array<std::uint64_t, 8>;
inline std::uint32_t block_check(const BlockWords& words) {
  // The high half counts in the low bits, too.
  const auto mixed = [](std::uint64_t word, std::uint64_t factor) { return (word ^ word >> 32) * factor; };
  const std::uint64_t sum = mixed(words[0], 0x9e3779b97f4a7c15) + mixed(words[1], 0xc2b2ae3d27d4eb4f) +
                            mixed(words[2], 0x165667b19e3779f9) + mixed(words[3], 0xd6e8feb86659fd93) +
                            mixed(words[4], 0xa0761d6478bd642f) + mixed(words[5], 0xe7037ed1a0b428db) +
                            mixed(words[6], 0x8ebc6af09c88c6e3) + mixed(words[7] & 0xffffffff, 0x589965cc75374cc3);
  const auto check = static_cast<std::uint32_t>(sum >> 32 ^ sum);
  return check == 0 ? 1 : check;
}
inline std::uint32_t block_check(const void* block) {
  BlockWords words;  // NOLINT: filled by the copy
  std::memcpy(words.data(), block, sizeof(words));
  return block_check(words);
}

// The same bytes as the structs above, put together in registers: a struct whose small fields are written one by one
// and read again as words would have the processor wait for each.
inline std::uint64_t halves(std::uint32_t low, std::uint32_t high) { return low | std::uint64_t{high} << 32; }
inline std::uint64_t first_of(const CallFacts& call) {
  return call.shape | std::uint64_t{call.root} << 32 | std::uint64_t{call.op} << 48 | std::uint64_t{call.dtype} << 56;
}
inline std::uint32_t last_of(const CallFacts& call) { return call.reduce | std::uint32_t{call.algorithm} << 8; }
inline BlockWords words_of(const CurrentOp& op) {
  return {op.sequence,
          static_cast<std::uint64_t>(op.issued_ns),
          static_cast<std::uint64_t>(op.entered_ns),
          op.bytes,
          first_of(op.call),
          halves(last_of(op.call), op.thread),
          halves(op.number, op.present),
          op.stack};
}
inline BlockWords words_of(const Record& record, const SmallBody& small) {
  const std::uint32_t kinds = small.op | std::uint32_t{small.dtype} << 8 | std::uint32_t{small.reduce} << 16;
  const std::uint32_t ranks = small.root | std::uint32_t{small.last_arrival} << 16;
  const std::uint32_t last =
      record.group | static_cast<std::uint32_t>(record.kind) << 16 | std::uint32_t{record.flags} << 24;
  return {record.stamp,
          static_cast<std::uint64_t>(record.at_ns),
          small.sequence,
          halves(small.bytes, small.duration_ns),
          halves(small.waited_ns, small.shape),
          halves(ranks, kinds),
          halves(record.thread, record.extra),
          last};
}
using StoredWord __attribute__((may_alias)) = std::uint64_t;
inline void store_sealed(void* place, BlockWords words) {
  words[7] = (words[7] & 0xffffffff) | std::uint64_t{block_check(words)} << 32;
  // One by one out of registers: a copy would read them again, wider than they were stored, and wait for the stores.
  auto* to = static_cast<StoredWord*>(place);
  for (std::size_t i = 0; i < words.size(); ++i) __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
}

// FNV-1a, folded to 32 bits, never 0.
inline std::uint32_t name_check(NameKind kind, std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325 ^ static_cast<std::uint64_t>(kind);
  for (const char byte : bytes) hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001b3;
  const auto check = static_cast<std::uint32_t>(hash >> 32 ^ hash);
  return check == 0 ? 1 : check;
}

}  // namespace closeranks::recorder
