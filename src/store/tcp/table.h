/* The server's keys and values. Used by gb-store only. */
#ifndef GBI_STORE_TCP_TABLE_H
#define GBI_STORE_TCP_TABLE_H

#include "base/base.h"

#define GBI_TABLE_BYTES_MAX (UINT64_C(1) << 30) /* keys and values together */

/* Bytes that lie elsewhere. */
typedef struct gbi_slice {
  const uint8_t *data;
  size_t bytes;
} gbi_slice;

typedef struct gbi_entry {
  struct gbi_entry *next;
  uint64_t hash;
  uint8_t *value;
  size_t value_bytes;
  size_t key_bytes;
  uint8_t key[];
} gbi_entry;

typedef struct gbi_table {
  gbi_entry **buckets;
  size_t buckets_count; /* a power of two */
  size_t count;
  uint64_t bytes;
  uint64_t seed; /* so that nobody can choose keys of one bucket */
} gbi_table;

bool gbi_table_init(gbi_table *table);
void gbi_table_fini(gbi_table *table);
gbi_entry *gbi_table_find(const gbi_table *table, gbi_slice key);
/* Stores, or appends to, the value; `value` may be an entry's own. False when
 * memory or GBI_TABLE_BYTES_MAX is reached. */
bool gbi_table_set(gbi_table *table, gbi_slice key, gbi_slice value);
bool gbi_table_append(gbi_table *table, gbi_slice key, gbi_slice value);
bool gbi_table_remove(gbi_table *table, gbi_slice key);

#endif
