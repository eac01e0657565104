// Queries to the store that speaks torch's TCPStore protocol, in pieces as a socket gives them. The first byte says how
// large the pieces are; the queries must not depend on it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/store_protocol.h"
#include "require.h"

using namespace closeranks;

namespace {

// Every query as text, and whether it ended in a refusal.
std::pair<std::vector<std::string>, bool> read_all(std::string_view bytes, std::size_t piece) {
  agent::QueryDecoder decoder;
  std::vector<std::string> queries;
  while (true) {
    decoder.feed(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
    while (true) {
      auto query = decoder.next();
      if (!query.ok()) {
        FUZZ_REQUIRE(query.status().fault() == Fault::refused);
        return {queries, true};
      }
      if (!query.value()) break;
      const agent::Query& read = *query.value();
      FUZZ_REQUIRE(static_cast<std::uint8_t>(read.type) < agent::query_types);
      std::string text(agent::name_of(read.type));
      for (const std::string& key : read.keys) {
        FUZZ_REQUIRE(key.size() <= agent::max_key_bytes);
        text += " " + key;
      }
      for (const std::string& value : read.values) text += " = " + value;
      queries.push_back(text + " " + std::to_string(read.number));
    }
    if (bytes.empty()) return {queries, false};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto whole = read_all(bytes, bytes.size() + 1);
  const auto pieces = read_all(bytes, std::size_t{data[0]} + 1);
  FUZZ_REQUIRE(whole == pieces);
  return 0;
}
