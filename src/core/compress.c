#include "core/compress.h"

#include "base/memory.h"
#include "device/host/reduce.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* PIECE values are converted at a time, whole blocks: they stay in the cache
 * from the conversion to the payload, and from the first addition to the
 * last. */
enum { PIECE = 8 * GBI_CODEC_BLOCK };

struct gbi_compress {
  gbi_codec codec;
  gbi_residuals *residuals;
  /* Of a GPU's; NULL: none. */
  const gbi_residuals *_Atomic others;
  /* Read by describe. Relaxed: figures, nothing hangs on them. */
  _Atomic uint64_t bytes_given, bytes_sent;
  _Atomic uint32_t most; /* bits of the largest error */
};

gb_status gbi_compress_new(gbi_codec codec, uint64_t residual_bytes,
                           gbi_compress **compress_p, gb_error *error) {
  gbi_compress *c = gbi_calloc(1, sizeof *c);
  if (!c) return gbi_fail(error, GB_ERR_MEMORY, "no memory for compression");
  c->codec = codec;
  gb_status status =
      gbi_residuals_new(residual_bytes, NULL, &c->residuals, error);
  if (status == GB_OK)
    *compress_p = c;
  else
    free(c);
  return status;
}

void gbi_compress_free(gbi_compress *c) {
  if (!c) return;
  gbi_residuals_free(c->residuals);
  free(c);
}

static void count(_Atomic uint64_t *counter, uint64_t by) {
  atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static uint64_t read_count(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

void gbi_compress_drop(gbi_compress *c) {
  if (c) gbi_residuals_drop(c->residuals);
}

gbi_residual_key gbi_compress_key(const gbi_plan *plan, const gbi_step *step,
                                  const void *buffer) {
  return (gbi_residual_key){.buffer = buffer,
                            .elements = plan->coll.count,
                            .count = step->count,
                            .number = step->number,
                            .op = plan->coll.op,
                            .dtype = plan->coll.dtype};
}

void gbi_compress_note(gbi_compress *c, const gbi_plan *plan,
                       const gbi_step *step) {
  gb_dtype dtype = step->wide ? gbi_coll_travel_dtype(&plan->coll)
                              : (gb_dtype)plan->coll.dtype;
  count(&c->bytes_given, step->count * gb_dtype_bytes(dtype));
  count(&c->bytes_sent, gbi_codec_bytes((gbi_codec)step->codec, step->count));
}

void gbi_compress_watch(gbi_compress *c, const gbi_residuals *others) {
  atomic_store_explicit(&c->others, others, memory_order_release);
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
  gbi_residual_key key = gbi_compress_key(plan, step, buffer);
  gbi_residuals_begin(c->residuals);
  float *kept = gbi_residuals_find(c->residuals, &key);
  float most = 0, room[PIECE], lost[PIECE];
  for (uint64_t at = 0; at < step->count; at += PIECE) {
    size_t n = GBI_MIN(step->count - at, (uint64_t)PIECE);
    const float *values =
        load((const uint8_t *)src + at * size, dtype, n, room);
    float *rest = kept ? kept + at : lost;
    for (size_t i = 0; i < n && !kept; i++) lost[i] = -0.0f; /* adds nothing */
    float error = gbi_codec_encode_feedback(
        codec, (uint8_t *)payload + gbi_codec_bytes(codec, at), values, rest,
        n);
    most = GBI_MAX(most, error);
  }
  note_error(c, most);
  gbi_compress_note(c, plan, step);
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
  return gbi_residuals_bytes(c->residuals);
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
  const gbi_residuals *others =
      atomic_load_explicit(&c->others, memory_order_acquire);
  uint64_t bytes = gbi_residuals_bytes(c->residuals);
  uint64_t dropped = gbi_residuals_dropped(c->residuals);
  if (others) bytes += gbi_residuals_bytes(others);
  if (others) dropped += gbi_residuals_dropped(others);
  tell(fn, arg, "compression.residual_bytes", bytes);
  tell(fn, arg, "compression.residuals_dropped", dropped);
}
