/* HMAC-SHA256 and random bytes, from OpenSSL's libcrypto. Any thread. */
#ifndef GBI_BASE_HMAC_H
#define GBI_BASE_HMAC_H

#include "base/base.h"

#define GBI_HMAC_BYTES 32
#define GBI_KEY_BYTES 32

void gbi_hmac(const uint8_t key[GBI_KEY_BYTES], const void *data, size_t bytes,
              uint8_t mac[GBI_HMAC_BYTES]);
/* Constant time. */
bool gbi_hmac_equal(const uint8_t a[GBI_HMAC_BYTES],
                    const uint8_t b[GBI_HMAC_BYTES]);
gb_status gbi_random(void *buffer, size_t bytes, gb_error *error);

#endif
