// Fuzz target: bytes of a stranger on the store's port, through the decoder and into the store. Besides crashes it
// checks that what is held stays bounded, whatever is sent.
#include "agent/store_protocol.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "agent/store.h"
#include "base/assert.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using closeranks::agent::Query;
  using closeranks::agent::QueryDecoder;
  using closeranks::agent::Store;

  Store store(1 << 20);
  QueryDecoder decoder;
  // As a connection that has proved to be a store's client: the interesting part is what follows.
  decoder.feed(std::string_view("\x00\xce\xf7\x85\x3c", 5));
  std::size_t fed = 0;
  Store::Client client = 1;
  while (fed < size) {
    // Cut where the bytes say, so that every field is met in pieces too.
    const std::size_t piece = 1 + data[fed] % 64;
    const std::size_t bytes = piece < size - fed ? piece : size - fed;
    decoder.feed({reinterpret_cast<const char*>(data + fed), bytes});
    fed += bytes;
    for (;;) {
      const auto query = decoder.next();
      if (!query.ok()) return 0;
      if (!query.value().has_value()) break;
      CR_ASSERT(query.value()->keys.size() <= closeranks::agent::max_keys_per_query);
      const auto outcome = store.handle(client, *query.value());
      if (!outcome.refusal.ok()) store.forget(client++);
      client = 1 + (client + query.value()->keys.size()) % 5;
    }
  }
  return 0;
}
