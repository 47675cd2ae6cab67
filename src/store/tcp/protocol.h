/* torch's TCPStore protocol, as both sides of this folder speak it: a request
 * is one byte and its fields, strings are a little-endian u64 length and bytes.
 * docs/wire/store.md has the table. */
#ifndef GBI_STORE_TCP_PROTOCOL_H
#define GBI_STORE_TCP_PROTOCOL_H

#include <stdint.h>

enum {
  GBI_TCP_VALIDATE,
  GBI_TCP_SET,
  GBI_TCP_COMPARE_SET,
  GBI_TCP_GET,
  GBI_TCP_ADD,
  GBI_TCP_CHECK,
  GBI_TCP_WAIT,
  GBI_TCP_NUMKEYS,
  GBI_TCP_DELETE,
  GBI_TCP_APPEND,
  GBI_TCP_MULTI_GET,
  GBI_TCP_MULTI_SET,
  GBI_TCP_CANCEL_WAIT,
  GBI_TCP_PING,
  GBI_TCP_LIST_KEYS = 17,
  GBI_TCP_QUERIES
};

#define GBI_TCP_MAGIC 0x3C85F7CEu
/* The limits of torch's own server. */
#define GBI_TCP_KEY_MAX 8192u
#define GBI_TCP_VALUE_MAX (8u << 20)
#define GBI_TCP_KEYS_MAX (128u << 10)

#endif
