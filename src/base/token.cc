#include "base/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "base/assert.h"

namespace closeranks {

Nonce make_nonce() {
  Nonce nonce{};
  // Up to 256 bytes come whole and cannot be interrupted once the pool is initialised (getrandom(2)).
  CR_ASSERT(getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

std::string make_token() {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string token;
  for (const std::uint8_t byte : make_nonce()) {
    token += digits[byte >> 4];
    token += digits[byte & 15];
  }
  return token;
}

Proof hmac_sha256(std::string_view token, std::span<const std::uint8_t> message) {
  Proof proof{};
  unsigned int written = 0;
  const unsigned char* made = HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()), message.data(),
                                   message.size(), proof.data(), &written);
  CR_ASSERT(made != nullptr && written == proof.size());
  return proof;
}

bool equal_proofs(const Proof& left, const Proof& right) {
  return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace closeranks
