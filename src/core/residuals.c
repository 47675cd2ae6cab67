#include "core/residuals.h"

#include "base/log.h"
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { BUCKETS = 4096 };

typedef struct residual residual;

struct residual {
  gbi_residual_key key;
  residual *next;          /* in its bucket */
  residual *newer, *older; /* by use */
  uint64_t used;           /* when */
  float *values;
};

struct gbi_residuals {
  uint64_t most, clock;
  gbi_residual_memory memory;
  residual *buckets[BUCKETS];
  residual *newest, *oldest;
  bool warned;
  /* Relaxed: figures, nothing hangs on them. */
  _Atomic uint64_t bytes, dropped;
};

static float *get_host(void *arg, uint64_t count) {
  (void)arg;
  return gbi_calloc(count, sizeof(float));
}
static void give_host(void *arg, float *values) {
  (void)arg;
  free(values);
}

gb_status gbi_residuals_new(uint64_t most, const gbi_residual_memory *memory,
                            gbi_residuals **residuals_p, gb_error *error) {
  gbi_residuals *all = gbi_calloc(1, sizeof *all);
  if (!all) return gbi_fail(error, GB_ERR_MEMORY, "no memory for compression");
  all->most = most;
  all->memory = memory
                    ? *memory
                    : (gbi_residual_memory){.get = get_host, .give = give_host};
  *residuals_p = all;
  return GB_OK;
}

void gbi_residuals_free(gbi_residuals *all) {
  gbi_residuals_drop(all);
  free(all);
}

static uint64_t size_of(uint64_t count) {
  return sizeof(residual) + count * sizeof(float);
}

static size_t bucket_of(const gbi_residual_key *key) {
  uint64_t hash = (uintptr_t)key->buffer ^ key->elements << 20 ^
                  (uint64_t)key->number << 44 ^ key->dtype;
  return (size_t)(hash * UINT64_C(0x9e3779b97f4a7c15) >> 52) % BUCKETS;
}

static bool same(const gbi_residual_key *a, const gbi_residual_key *b) {
  return a->buffer == b->buffer && a->elements == b->elements &&
         a->count == b->count && a->number == b->number && a->op == b->op &&
         a->dtype == b->dtype;
}

static void unlink_use(gbi_residuals *all, residual *r) {
  *(r->newer ? &r->newer->older : &all->newest) = r->older;
  *(r->older ? &r->older->newer : &all->oldest) = r->newer;
}

static void link_newest(gbi_residuals *all, residual *r) {
  r->used = all->clock;
  r->newer = NULL;
  r->older = all->newest;
  *(all->newest ? &all->newest->newer : &all->oldest) = r;
  all->newest = r;
}

static void drop(gbi_residuals *all, residual *r) {
  residual **at = &all->buckets[bucket_of(&r->key)];
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  unlink_use(all, r);
  atomic_fetch_sub_explicit(&all->bytes, size_of(r->key.count),
                            memory_order_relaxed);
  all->memory.give(all->memory.arg, r->values);
  free(r);
}

void gbi_residuals_drop(gbi_residuals *all) {
  while (all && all->oldest) drop(all, all->oldest);
}

static void warn_once(gbi_residuals *all) {
  atomic_fetch_add_explicit(&all->dropped, 1, memory_order_relaxed);
  if (all->warned) return;
  all->warned = true;
  GBI_WARN("core",
           "residuals of compressed sums need more than the %llu bytes of "
           "GPUBRIDGE_COMPRESSION_RESIDUALS: the oldest are dropped, and what "
           "they stand for is lost",
           (unsigned long long)all->most);
}

/* False: what is left was found just now. */
static bool make_room(gbi_residuals *all, uint64_t bytes) {
  if (bytes > all->most) {
    if (all->most) warn_once(all);
    return false;
  }
  while (gbi_residuals_bytes(all) > all->most - bytes) {
    warn_once(all);
    if (all->oldest->used == all->clock) return false;
    drop(all, all->oldest);
  }
  return true;
}

static float *add(gbi_residuals *all, const gbi_residual_key *key) {
  uint64_t bytes = size_of(key->count);
  if (!make_room(all, bytes)) return NULL;
  residual *r = gbi_calloc(1, sizeof *r);
  if (!r) return NULL;
  r->values = all->memory.get(all->memory.arg, key->count);
  if (!r->values) {
    free(r);
    return NULL;
  }
  residual **bucket = &all->buckets[bucket_of(key)];
  r->key = *key;
  r->next = *bucket;
  *bucket = r;
  link_newest(all, r);
  atomic_fetch_add_explicit(&all->bytes, bytes, memory_order_relaxed);
  return r->values;
}

void gbi_residuals_begin(gbi_residuals *all) {
  all->clock++;
}

float *gbi_residuals_find(gbi_residuals *all, const gbi_residual_key *key) {
  residual *r = all->buckets[bucket_of(key)];
  while (r && !same(&r->key, key)) r = r->next;
  if (!r) return add(all, key);
  unlink_use(all, r);
  link_newest(all, r);
  return r->values;
}

uint64_t gbi_residuals_bytes(const gbi_residuals *all) {
  return atomic_load_explicit(&all->bytes, memory_order_relaxed);
}
uint64_t gbi_residuals_dropped(const gbi_residuals *all) {
  return atomic_load_explicit(&all->dropped, memory_order_relaxed);
}
