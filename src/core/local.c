#include "core/local.h"

#include "comm/comm.h"
#include "device/host/reduce.h"

#include <string.h>

enum { FOLD_ELEMENTS = 256 };

static int divisor_of(const gbi_coll *coll, int world) {
  return coll->redop == GB_AVG ? world : 1;
}

/* Wide rows, a few elements at a time: the rows stay as they are. */
static void fold_wide(const gbi_coll *coll, const uint8_t *rows, uint8_t *out,
                      size_t count, int world) {
  gb_dtype dtype = (gb_dtype)coll->dtype, wide = gbi_coll_travel_dtype(coll);
  size_t size = gb_dtype_bytes(dtype), wide_size = gb_dtype_bytes(wide);
  gbi_reduce_fn combine = gbi_reduce_kernel(wide, gbi_comm_redop(coll->redop));
  double sum[FOLD_ELEMENTS]; /* room for any wide type */
  for (size_t at = 0; at < count; at += FOLD_ELEMENTS) {
    size_t n = GBI_MIN((size_t)FOLD_ELEMENTS, count - at);
    memcpy(sum, rows + at * wide_size, n * wide_size);
    for (int r = 1; r < world; r++)
      combine(sum, rows + ((size_t)r * count + at) * wide_size, n);
    gbi_wide_store(out + at * size, sum, n, dtype, divisor_of(coll, world));
  }
}

static void fold(const gbi_coll *coll, const uint8_t *rows, uint8_t *out,
                 size_t count, int world) {
  gb_dtype dtype = (gb_dtype)coll->dtype;
  size_t bytes = count * gb_dtype_bytes(dtype);
  gbi_reduce_fn combine = gbi_reduce_kernel(dtype, gbi_comm_redop(coll->redop));
  memcpy(out, rows, bytes);
  for (int r = 1; r < world; r++) combine(out, rows + (size_t)r * bytes, count);
  if (coll->redop == GB_AVG) gbi_divide(out, count, dtype, world);
}

void gbi_local_run(const gbi_coll *coll, const gbi_step *step, const void *src,
                   void *dst, int world, double factor) {
  gb_dtype dtype = (gb_dtype)coll->dtype;
  size_t count = step->count;
  if (!count) return;
  switch (step->verb) {
    case GBI_DO_COPY:
      if (src != dst) memcpy(dst, src, count * gb_dtype_bytes(dtype));
      break;
    case GBI_DO_LOAD: gbi_wide_load(dst, src, count, dtype, factor); break;
    case GBI_DO_DIVIDE: gbi_divide(dst, count, dtype, world); break;
    case GBI_DO_STORE:
      gbi_wide_store(dst, src, count, dtype, divisor_of(coll, world));
      break;
    default:
      if (step->wide)
        fold_wide(coll, src, dst, count, world);
      else
        fold(coll, src, dst, count, world);
  }
}
