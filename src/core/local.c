#include "core/local.h"

#include "device/host/reduce.h"

#include <string.h>

enum { FOLD_ELEMENTS = 256 };

/* Rows of float16 summed in float32, a few elements at a time. */
static void fold_wide(const gbi_coll *coll, const uint8_t *rows, uint8_t *out,
                      size_t count, int world) {
  size_t size = gb_dtype_bytes((gb_dtype)coll->dtype);
  gbi_reduce_fn add = gbi_reduce_kernel(GB_FLOAT32, GB_SUM);
  float sum[FOLD_ELEMENTS], row[FOLD_ELEMENTS];
  for (size_t at = 0; at < count; at += FOLD_ELEMENTS) {
    size_t n = GBI_MIN((size_t)FOLD_ELEMENTS, count - at);
    gbi_widen(sum, rows + at * size, n, (gb_dtype)coll->dtype);
    for (int r = 1; r < world; r++) {
      gbi_widen(row, rows + ((size_t)r * count + at) * size, n,
                (gb_dtype)coll->dtype);
      add(sum, row, n);
    }
    gbi_narrow_divide(out + at * size, sum, n, (gb_dtype)coll->dtype, world);
  }
}

static void fold(const gbi_coll *coll, const uint8_t *rows, uint8_t *out,
                 size_t count, int world) {
  if (gbi_coll_is_wide(coll)) {
    fold_wide(coll, rows, out, count, world);
    return;
  }
  gb_dtype dtype = (gb_dtype)coll->dtype;
  size_t bytes = count * gb_dtype_bytes(dtype);
  gb_redop op = coll->redop == GB_AVG ? GB_SUM : (gb_redop)coll->redop;
  gbi_reduce_fn combine = gbi_reduce_kernel(dtype, op);
  memcpy(out, rows, bytes);
  for (int r = 1; r < world; r++) combine(out, rows + (size_t)r * bytes, count);
  if (coll->redop == GB_AVG) gbi_divide(out, count, dtype, world);
}

void gbi_local_run(const gbi_coll *coll, const gbi_step *step, const void *src,
                   void *dst, int world) {
  gb_dtype dtype = (gb_dtype)coll->dtype;
  size_t count = step->count;
  if (!count) return;
  switch (step->verb) {
    case GBI_DO_COPY:
      if (src != dst) memcpy(dst, src, count * gb_dtype_bytes(dtype));
      break;
    case GBI_DO_WIDEN: gbi_widen(dst, src, count, dtype); break;
    case GBI_DO_DIVIDE: gbi_divide(dst, count, dtype, world); break;
    case GBI_DO_NARROW: gbi_narrow_divide(dst, src, count, dtype, world); break;
    default: fold(coll, src, dst, count, world);
  }
}
