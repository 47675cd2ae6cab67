#include "store/tcp/table.h"

#include "base/hmac.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

bool gbi_table_init(gbi_table *table) {
  memset(table, 0, sizeof *table);
  table->buckets_count = 256;
  table->buckets = gbi_calloc(table->buckets_count, sizeof *table->buckets);
  return table->buckets &&
         gbi_random(&table->seed, sizeof table->seed, NULL) == GB_OK;
}

static void free_entry(gbi_entry *entry) {
  free(entry->value);
  free(entry);
}

void gbi_table_fini(gbi_table *table) {
  for (size_t i = 0; table->buckets && i < table->buckets_count; i++) {
    for (gbi_entry *at = table->buckets[i], *next; at; at = next) {
      next = at->next;
      free_entry(at);
    }
  }
  free(table->buckets);
  memset(table, 0, sizeof *table);
}

/* FNV-1a from a random start, mixed at the end. */
static uint64_t hash_of(const gbi_table *table, gbi_slice key) {
  uint64_t hash = table->seed ^ UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < key.bytes; i++)
    hash = (hash ^ key.data[i]) * UINT64_C(0x100000001b3);
  return hash ^ (hash >> 29);
}

static gbi_entry **slot_of(const gbi_table *table, gbi_slice key,
                           uint64_t hash) {
  gbi_entry **at = &table->buckets[hash & (table->buckets_count - 1)];
  while (*at && ((*at)->hash != hash || (*at)->key_bytes != key.bytes ||
                 memcmp((*at)->key, key.data, key.bytes)))
    at = &(*at)->next;
  return at;
}

gbi_entry *gbi_table_find(const gbi_table *table, gbi_slice key) {
  return *slot_of(table, key, hash_of(table, key));
}

static void grow(gbi_table *table) {
  size_t wider = table->buckets_count * 2;
  gbi_entry **buckets = gbi_calloc(wider, sizeof *buckets);
  if (!buckets) return; /* only slower */
  for (size_t i = 0; i < table->buckets_count; i++) {
    for (gbi_entry *at = table->buckets[i], *next; at; at = next) {
      next = at->next;
      gbi_entry **head = &buckets[at->hash & (wider - 1)];
      at->next = *head;
      *head = at;
    }
  }
  free(table->buckets);
  table->buckets = buckets;
  table->buckets_count = wider;
}

static gbi_entry *create(gbi_table *table, gbi_slice key, uint64_t hash) {
  if (table->count >= table->buckets_count) grow(table);
  gbi_entry *entry = gbi_calloc(1, sizeof *entry + key.bytes);
  if (!entry) return NULL;
  entry->hash = hash;
  entry->key_bytes = key.bytes;
  memcpy(entry->key, key.data, key.bytes);
  gbi_entry **head = &table->buckets[hash & (table->buckets_count - 1)];
  entry->next = *head;
  *head = entry;
  table->count++;
  table->bytes += key.bytes + sizeof *entry;
  return entry;
}

/* New value: the old one if it is kept, then `value`. */
static bool put(gbi_table *table, gbi_slice key, bool keep_old,
                gbi_slice value) {
  uint64_t hash = hash_of(table, key);
  gbi_entry *entry = *slot_of(table, key, hash);
  size_t keep = entry && keep_old ? entry->value_bytes : 0;
  if (table->bytes + key.bytes + value.bytes > GBI_TABLE_BYTES_MAX)
    return false;
  uint8_t *bytes = gbi_malloc(keep + value.bytes + 1);
  if (!bytes) return false;
  if (!entry && !(entry = create(table, key, hash))) {
    free(bytes);
    return false;
  }
  if (keep) memcpy(bytes, entry->value, keep);
  if (value.bytes) memcpy(bytes + keep, value.data, value.bytes);
  table->bytes += keep + value.bytes;
  table->bytes -= entry->value_bytes;
  free(entry->value);
  entry->value = bytes;
  entry->value_bytes = keep + value.bytes;
  return true;
}

bool gbi_table_set(gbi_table *table, gbi_slice key, gbi_slice value) {
  return put(table, key, false, value);
}

bool gbi_table_append(gbi_table *table, gbi_slice key, gbi_slice value) {
  return put(table, key, true, value);
}

bool gbi_table_remove(gbi_table *table, gbi_slice key) {
  gbi_entry **at = slot_of(table, key, hash_of(table, key));
  gbi_entry *entry = *at;
  if (!entry) return false;
  *at = entry->next;
  table->count--;
  table->bytes -= entry->key_bytes + sizeof *entry + entry->value_bytes;
  free_entry(entry);
  return true;
}
