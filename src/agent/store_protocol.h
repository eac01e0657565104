// The wire protocol of torch's TCPStore (torch 2.15: 19 query types), server side: bytes to queries, and the bytes of
// answers. Pure; sockets are store_server.h. Everything is little endian; a query is one byte of type and its fields:
// strings and values with a 64-bit length before them, counts and numbers of 64 bits, nonces of 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "closeranks/status.h"

namespace closeranks::agent {

enum class QueryType : std::uint8_t {
  validate,
  set,
  compare_set,
  get,
  add,
  check,
  wait,
  get_num_keys,
  delete_key,
  append,
  multi_get,
  multi_set,
  cancel_wait,
  ping,
  queue_push,
  queue_pop,
  queue_len,
  list_keys,
  barrier,
};
inline constexpr std::uint8_t query_types = 19;
std::string_view name_of(QueryType type);

// What a client sends first on every connection, so that a stray one is not taken for a store's client.
inline constexpr std::uint32_t store_magic = 0x3C85F7CE;

// Bounds, as torch's own server has them, and one on the whole.
inline constexpr std::uint64_t max_key_bytes = 8ull * 1024;
inline constexpr std::uint64_t max_value_bytes = 8ull * 1024 * 1024;
inline constexpr std::uint64_t max_keys_per_query = 128ull * 1024;
inline constexpr std::uint64_t max_query_bytes = 64ull * 1024 * 1024;

struct Query {
  QueryType type = QueryType::ping;
  std::vector<std::string> keys;
  std::vector<std::string> values;  // set, append, queue_push: one; compare_set: expected, desired; multi_set: per key
  std::int64_t number = 0;          // add: the difference; barrier: the number of members; validate, ping: the nonce
};

// Takes bytes as they come and gives whole queries. Each byte is looked at once.
class QueryDecoder {
 public:
  // Appends what was received. Unread bytes are bounded by the caller's reads: call next() until it gives nothing.
  void feed(std::string_view bytes);
  // The next whole query; none: more bytes are needed. Fault::refused: this is no client of a store, or a bound is
  // passed; the connection is of no use any more.
  Result<std::optional<Query>> next();

 private:
  enum class Field : std::uint8_t { key, value, number, nonce, count };
  bool begin_query();
  std::optional<std::uint64_t> read_number(std::size_t bytes);
  // False: more bytes are needed, or failure_ says why there is no going on.
  bool read_field(Field field);
  bool read_text(std::uint64_t limit, const char* what, std::vector<std::string>& into);

  std::string buffer_;
  std::size_t at_ = 0;  // first unread byte of buffer_
  bool validated_ = false;
  bool in_query_ = false;
  Query query_;
  std::uint64_t query_bytes_ = 0;
  std::size_t step_ = 0;                     // fields of the query's fixed part read so far
  std::uint64_t repeats_left_ = 0;           // fields still to come after a count
  std::optional<std::uint64_t> text_bytes_;  // length of the string that is being read
  Status failure_;
};

// The bytes of answers.
std::string encode_number(std::int64_t value);
std::string encode_nonce(std::uint32_t value);
std::string encode_text(std::string_view text);
inline constexpr char answer_ready = 0;          // check
inline constexpr char answer_not_ready = 1;      // check
inline constexpr char answer_stop_waiting = 0;   // wait, barrier
inline constexpr char answer_wait_canceled = 1;  // cancel_wait

}  // namespace closeranks::agent
