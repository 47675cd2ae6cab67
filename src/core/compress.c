#include "core/compress.h"

#include "base/log.h"
#include "base/memory.h"
#include "device/host/reduce.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* PIECE values are converted at a time, whole blocks: they stay in the cache
 * from the conversion to the payload, and from the first addition to the
 * last. */
enum { PIECE = 8 * GBI_CODEC_BLOCK, BUCKETS = 4096 };

typedef struct residual {
  const void *buffer;
  uint64_t elements; /* of the whole buffer */
  uint64_t count;    /* of this payload */
  uint32_t number;
  uint8_t op, dtype;
  struct residual *next;          /* in its bucket */
  struct residual *newer, *older; /* by use */
  float values[];
} residual;

struct gbi_compress {
  gbi_codec codec;
  uint64_t bytes_max;
  residual *buckets[BUCKETS];
  residual *newest, *oldest;
  bool warned;
  /* Read by describe. Relaxed: figures, nothing hangs on them. */
  _Atomic uint64_t bytes; /* of residuals */
  _Atomic uint64_t bytes_given, bytes_sent, dropped;
  _Atomic uint32_t most; /* bits of the largest error */
};

gb_status gbi_compress_new(gbi_codec codec, uint64_t residual_bytes,
                           gbi_compress **compress_p, gb_error *error) {
  gbi_compress *c = gbi_calloc(1, sizeof *c);
  if (!c) return gbi_fail(error, GB_ERR_MEMORY, "no memory for compression");
  c->codec = codec;
  c->bytes_max = residual_bytes;
  *compress_p = c;
  return GB_OK;
}

void gbi_compress_free(gbi_compress *c) {
  if (!c) return;
  gbi_compress_drop(c);
  free(c);
}

static void count(_Atomic uint64_t *counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static uint64_t read_count(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

/* ---- Residuals ---- */

static uint64_t size_of(uint64_t values) {
  return sizeof(residual) + values * sizeof(float);
}

static size_t bucket_of(const residual *r) {
  uint64_t hash = (uintptr_t)r->buffer ^ r->elements << 20 ^
                  (uint64_t)r->number << 44 ^ r->dtype;
  return (size_t)(hash * UINT64_C(0x9e3779b97f4a7c15) >> 52) % BUCKETS;
}

static bool same(const residual *a, const residual *b) {
  return a->buffer == b->buffer && a->elements == b->elements &&
         a->count == b->count && a->number == b->number && a->op == b->op &&
         a->dtype == b->dtype;
}

static void unlink_use(gbi_compress *c, residual *r) {
  *(r->newer ? &r->newer->older : &c->newest) = r->older;
  *(r->older ? &r->older->newer : &c->oldest) = r->newer;
}

static void link_newest(gbi_compress *c, residual *r) {
  r->newer = NULL;
  r->older = c->newest;
  *(c->newest ? &c->newest->newer : &c->oldest) = r;
  c->newest = r;
}

static void drop(gbi_compress *c, residual *r) {
  residual **at = &c->buckets[bucket_of(r)];
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  unlink_use(c, r);
  atomic_fetch_sub_explicit(&c->bytes, size_of(r->count), memory_order_relaxed);
  free(r);
}

void gbi_compress_drop(gbi_compress *c) {
  while (c && c->oldest) drop(c, c->oldest);
}

static void warn_once(gbi_compress *c) {
  count(&c->dropped, 1);
  if (c->warned) return;
  c->warned = true;
  GBI_WARN("core",
           "residuals of compressed sums need more than the %llu bytes of "
           "GPUBRIDGE_COMPRESSION_RESIDUALS: the oldest are dropped, and what "
           "they stand for is lost",
           (unsigned long long)c->bytes_max);
}

/* A new one of zeros; NULL: no room. */
static residual *add_residual(gbi_compress *c, const residual *key) {
  uint64_t bytes = size_of(key->count);
  if (bytes > c->bytes_max) {
    if (c->bytes_max) warn_once(c);
    return NULL;
  }
  while (read_count(&c->bytes) > c->bytes_max - bytes) {
    warn_once(c);
    drop(c, c->oldest);
  }
  residual *r = gbi_calloc(1, bytes);
  if (!r) return NULL;
  *r = *key;
  r->next = c->buckets[bucket_of(r)];
  c->buckets[bucket_of(r)] = r;
  link_newest(c, r);
  count(&c->bytes, bytes);
  return r;
}

static residual *find_residual(gbi_compress *c, const residual *key) {
  residual *r = c->buckets[bucket_of(key)];
  while (r && !same(r, key)) r = r->next;
  if (!r) return add_residual(c, key);
  unlink_use(c, r);
  link_newest(c, r);
  return r;
}

/* ---- Values ---- */

/* In what a step's values travel. */
static gb_dtype travels_in(const gbi_plan *plan, const gbi_step *step) {
  return step->wide ? gbi_coll_travel_dtype(&plan->coll)
                    : (gb_dtype)plan->coll.dtype;
}

/* As float32: src itself, or in `room`. Sources may lie at any byte. */
static const float *load(const uint8_t *src, gb_dtype dtype, size_t n,
                         float *room) {
  if (dtype == GB_FLOAT32) return (const float *)(const void *)src;
  if (dtype != GB_FLOAT64) {
    gbi_wide_load(room, src, n, dtype, 1);
    return room;
  }
  for (size_t i = 0; i < n; i++) {
    double v;
    memcpy(&v, src + i * 8, 8);
    room[i] = (float)v;
  }
  return room;
}

static void store(uint8_t *dst, const float *values, gb_dtype dtype, size_t n) {
  if (dtype != GB_FLOAT64) {
    gbi_wide_store(dst, values, n, dtype, 1);
    return;
  }
  for (size_t i = 0; i < n; i++) {
    double v = values[i];
    memcpy(dst + i * 8, &v, 8);
  }
}

/* ---- Steps ---- */

static void note_error(gbi_compress *c, float error) {
  uint32_t bits;
  memcpy(&bits, &error, 4);
  if (bits > atomic_load_explicit(&c->most, memory_order_relaxed))
    atomic_store_explicit(&c->most, bits, memory_order_relaxed);
}

void gbi_compress_encode(gbi_compress *c, const gbi_plan *plan,
                         const gbi_step *step, const void *buffer,
                         const void *src, void *payload) {
  gbi_codec codec = (gbi_codec)step->codec;
  gb_dtype dtype = travels_in(plan, step);
  size_t size = gb_dtype_bytes(dtype);
  residual key = {.buffer = buffer,
                  .elements = plan->coll.count,
                  .count = step->count,
                  .number = step->number,
                  .op = plan->coll.op,
                  .dtype = plan->coll.dtype};
  residual *kept = find_residual(c, &key);
  float most = 0, room[PIECE], lost[PIECE];
  for (uint64_t at = 0; at < step->count; at += PIECE) {
    size_t n = GBI_MIN(step->count - at, (uint64_t)PIECE);
    const float *values =
        load((const uint8_t *)src + at * size, dtype, n, room);
    float *rest = kept ? kept->values + at : lost;
    if (!kept) memset(lost, 0, n * sizeof *lost);
    float error = gbi_codec_encode_feedback(
        codec, (uint8_t *)payload + gbi_codec_bytes(codec, at), values, rest,
        n);
    most = GBI_MAX(most, error);
  }
  note_error(c, most);
  count(&c->bytes_given, step->count * size);
  count(&c->bytes_sent, gbi_codec_bytes(codec, step->count));
}

void gbi_compress_decode(const gbi_plan *plan, const gbi_step *step,
                         const void *payloads, void *dst) {
  gbi_codec codec = (gbi_codec)step->codec;
  gb_dtype dtype = travels_in(plan, step);
  size_t size = gb_dtype_bytes(dtype);
  uint64_t row = gbi_codec_bytes(codec, step->count);
  float sum[PIECE];
  for (uint64_t at = 0; at < step->count; at += PIECE) {
    size_t n = GBI_MIN(step->count - at, (uint64_t)PIECE);
    const uint8_t *from =
        (const uint8_t *)payloads + gbi_codec_bytes(codec, at);
    gbi_codec_decode(codec, sum, from, n);
    for (uint32_t r = 1; r < step->rows; r++)
      gbi_codec_add(codec, sum, from + r * row, n);
    store((uint8_t *)dst + at * size, sum, dtype, n);
  }
}

/* ---- Telemetry ---- */

uint64_t gbi_compress_residual_bytes(const gbi_compress *c) {
  return read_count(&c->bytes);
}

static void tell(gbi_fact_fn fn, void *arg, const char *name, uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  fn(arg, name, text);
}

void gbi_compress_describe(const gbi_compress *c, gbi_fact_fn fn, void *arg) {
  char text[32];
  uint64_t given = read_count(&c->bytes_given);
  uint64_t sent = read_count(&c->bytes_sent);
  fn(arg, "compression.codec", gbi_codec_name((int)c->codec));
  fn(arg, "compression.passes_through",
     c->codec == GBI_CODEC_BF16 ? "bfloat16, and sums of float16" : "");
  tell(fn, arg, "compression.bytes_given", given);
  tell(fn, arg, "compression.bytes_saved", given - sent);
  float most;
  uint32_t bits = atomic_load_explicit(&c->most, memory_order_relaxed);
  memcpy(&most, &bits, 4);
  snprintf(text, sizeof text, "%.9g", (double)most);
  fn(arg, "compression.largest_error", text);
  tell(fn, arg, "compression.residual_bytes", read_count(&c->bytes));
  tell(fn, arg, "compression.residuals_dropped", read_count(&c->dropped));
}
