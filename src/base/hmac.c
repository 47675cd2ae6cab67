#include "base/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdlib.h>

void gbi_hmac(const uint8_t key[GBI_KEY_BYTES], const void *data, size_t bytes,
              uint8_t mac[GBI_HMAC_BYTES]) {
  unsigned int mac_bytes = GBI_HMAC_BYTES;
  /* Fails only when libcrypto cannot allocate; a zero MAC would authenticate
   * nobody's message as anybody's, so stop here. */
  if (!HMAC(EVP_sha256(), key, GBI_KEY_BYTES, data, bytes, mac, &mac_bytes))
    abort();
}

bool gbi_hmac_equal(const uint8_t a[GBI_HMAC_BYTES],
                    const uint8_t b[GBI_HMAC_BYTES]) {
  return CRYPTO_memcmp(a, b, GBI_HMAC_BYTES) == 0;
}

gb_status gbi_random(void *buffer, size_t bytes, gb_error *error) {
  if (RAND_bytes(buffer, (int)bytes) == 1) return GB_OK;
  return gbi_fail(error, GB_ERR_SYSTEM, "could not get random bytes");
}
