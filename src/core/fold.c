#include "core/fold.h"

#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

enum { ALIGN = 256, WHY_MOST = 320, EXCHANGE_LEAST = 16384 };
/* Of all rows, and of one. */
static const uint64_t rows_most = UINT64_C(64) << 20;
static const uint64_t row_most = UINT64_C(4) << 20;

/* ---- agreement ---- */

/* Who is alone in an island reduces nothing there, but combines all the same.
 */
void gbi_folder_put(const gbi_folder *folder, gbi_writer *out) {
  bool lacks = folder->members > 1 && !folder->kernels;
  size_t bytes = lacks && folder->why ? strlen(folder->why) : 0;
  gbi_sums sums = folder->kernels ? folder->sums : GBI_SUMS_ON_HOST;
  gbi_put_u8(out, lacks);
  gbi_put_u8(out, (uint8_t)sums);
  gbi_put_blob(out, folder->why, GBI_MIN(bytes, (size_t)WHY_MOST));
}

/* What a peer wrote, to be shown. */
static void keep_text(char *to, size_t room, const char *name,
                      const uint8_t *text, size_t bytes) {
  gbi_text out;
  gbi_text_init(&out, to, room);
  gbi_text_add(&out, "%s has none: ", name);
  for (size_t i = 0; i < bytes; i++)
    gbi_text_add(&out, "%c", text[i] < ' ' || text[i] > '~' ? ' ' : text[i]);
}

gb_status gbi_folder_hear(gbi_folder *folder, gbi_reader *in, const char *name,
                          gb_error *error) {
  size_t bytes = 0;
  uint8_t lacks = gbi_get_u8(in), sums = gbi_get_u8(in);
  const uint8_t *text = gbi_get_blob(in, &bytes);
  if (in->bad || lacks > 1 || sums > GBI_SUMS_ON_GPU || bytes > WHY_MOST)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "%s sent a malformed word about its kernels", name);
  folder->sums = GBI_MIN(folder->sums, (gbi_sums)sums);
  if (!lacks || !folder->folds) return GB_OK;
  folder->folds = false;
  keep_text(folder->who, sizeof folder->who, name, text, bytes);
  return GB_OK;
}

/* ---- sums of the bridge ---- */

/* What a copy and a kernel take to start, the host adds up meanwhile. Between
 * more than two islands, giving the values to all is more on the bridge. */
enum { APART_LEAST = 256 << 10, APART_ISLANDS = 2 };

uint64_t gbi_folder_apart(const gbi_folder *folder, const gbi_coll *coll,
                          int islands) {
  gb_dtype dtype = gbi_coll_travel_dtype(coll);
  if (!gbi_kernel_folds(dtype, gbi_comm_redop(coll->redop))) return 0;
  if (folder->sums == GBI_SUMS_ON_GPU) return 1;
  bool pays = folder->sums == GBI_SUMS_AUTO && islands <= APART_ISLANDS;
  return pays ? APART_LEAST : 0;
}

/* ---- reductions of an island ---- */

bool gbi_folder_reduces(const gbi_folder *folder, gb_dtype dtype,
                        gb_redop redop) {
  return folder->folds && folder->kernels && gbi_kernel_folds(dtype, redop);
}

/* No vendor's library has these. */
static bool never_native(gb_dtype dtype, gb_redop redop) {
  gbi_class class = gbi_dtype_class(dtype);
  bool bitwise = redop == GB_BAND || redop == GB_BOR || redop == GB_BXOR;
  return bitwise || class == GBI_CLASS_COMPLEX || class == GBI_CLASS_BOOL ||
         dtype == GB_INT16 || dtype == GB_UINT16;
}

bool gbi_folder_refused(const gbi_folder *folder, gb_dtype dtype,
                        gb_redop redop) {
  return !folder->folds && never_native(dtype, redop);
}

gb_status gbi_folder_need(gbi_folder *folder, gb_error *error) {
  if (folder->rows) return GB_OK;
  uint64_t members = (uint64_t)folder->members;
  uint64_t piece = GBI_MIN(row_most, rows_most / members) / ALIGN * ALIGN;
  void *memory;
  GBI_TRY(folder->device->ops->memory(folder->device, piece * members, &memory,
                                      error));
  folder->rows = memory;
  folder->piece = piece;
  return GB_OK;
}

/* A piece's rows one behind the other, on this member; on the root alone where
 * there is one. */
static gb_status gather(const gbi_folder *f, const gbi_step *step,
                        const void *src, uint64_t bytes, gbi_stream stream,
                        gb_error *error) {
  if (step->verb == GBI_DO_ALL_REDUCE)
    return gbi_native_all_gather(f->native, src, f->rows, bytes, GB_UINT8,
                                 stream, error);
  if (step->root != f->me)
    return gbi_native_send(f->native, src, bytes, GB_UINT8, step->root, stream,
                           error);
  GBI_TRY(gbi_native_group_begin(f->native, error));
  gb_status status = GB_OK;
  for (int m = 0; m < f->members && status == GB_OK; m++)
    if (m != f->me)
      status = gbi_native_recv(f->native, f->rows + (uint64_t)m * bytes, bytes,
                               GB_UINT8, m, stream, error);
  gb_status ended =
      gbi_native_group_end(f->native, status == GB_OK ? error : NULL);
  return status == GB_OK ? ended : status;
}

/* Left to right, in member order, wherever this member's own row lies. */
static gb_status fold_rows(const gbi_folder *f, gb_dtype dtype, gb_redop redop,
                           void *dst, uint64_t count, gbi_stream stream,
                           gb_error *error) {
  uint64_t row = count * gb_dtype_bytes(dtype);
  gbi_fold fold = {.dtype = dtype,
                   .op = redop,
                   .out = dst,
                   .a = f->rows,
                   .b = f->rows + row,
                   .count = count,
                   .rows = (uint64_t)f->members - 1,
                   .stride = row};
  return gbi_kernel_fold(f->kernels, &fold, stream, error);
}

/* Each member folds its part of the range and gives it to all: every byte
 * travels twice, however many members there are. `part` elements a member. */
static gb_status exchange(const gbi_folder *f, gb_dtype dtype, gb_redop redop,
                          const uint8_t *src, uint8_t *dst, uint64_t part,
                          gbi_stream stream, gb_error *error) {
  uint64_t bytes = part * gb_dtype_bytes(dtype), mine = (uint64_t)f->me * bytes;
  GBI_TRY(gbi_native_group_begin(f->native, error));
  gb_status status = GB_OK;
  for (int m = 0; m < f->members && status == GB_OK; m++) {
    if (m == f->me) continue;
    uint64_t at = (uint64_t)m * bytes;
    status =
        gbi_native_send(f->native, src + at, bytes, GB_UINT8, m, stream, error);
    if (status == GB_OK)
      status = gbi_native_recv(f->native, f->rows + at, bytes, GB_UINT8, m,
                               stream, error);
  }
  gb_status ended =
      gbi_native_group_end(f->native, status == GB_OK ? error : NULL);
  GBI_TRY(status == GB_OK ? ended : status);
  GBI_TRY(f->device->ops->copy(f->device, f->rows + mine, src + mine, bytes,
                               stream, error));
  GBI_TRY(fold_rows(f, dtype, redop, dst + mine, part, stream, error));
  return gbi_native_all_gather(f->native, dst + mine, dst, bytes, GB_UINT8,
                               stream, error);
}

static gb_status gather_and_fold(const gbi_folder *f, const gbi_step *step,
                                 gb_dtype dtype, gb_redop redop,
                                 const uint8_t *src, uint8_t *dst, uint64_t n,
                                 gbi_stream stream, gb_error *error) {
  uint64_t bytes = n * gb_dtype_bytes(dtype);
  bool roots = step->verb == GBI_DO_REDUCE;
  GBI_TRY(gather(f, step, src, bytes, stream, error));
  if (roots && step->root != f->me) return GB_OK;
  if (roots)
    GBI_TRY(f->device->ops->copy(f->device, f->rows + (uint64_t)f->me * bytes,
                                 src, bytes, stream, error));
  return fold_rows(f, dtype, redop, dst, n, stream, error);
}

gb_status gbi_folder_run(gbi_folder *f, const gbi_step *step, gb_dtype dtype,
                         gb_redop redop, const void *src, void *dst,
                         gbi_stream stream, gb_error *error) {
  uint64_t size = gb_dtype_bytes(dtype), members = (uint64_t)f->members;
  const uint8_t *from = src;
  uint8_t *to = dst;
  for (uint64_t n, at = 0; at < step->count; at += n) {
    uint64_t left = step->count - at, part = f->piece / size;
    part = GBI_MIN(part, left / members);
    /* Two steps are not worth it for little, nor for what is left over. */
    bool exchanges = step->verb == GBI_DO_ALL_REDUCE && members > 2 &&
                     part * size >= EXCHANGE_LEAST;
    n = exchanges ? part * members : GBI_MIN(left, f->piece / size);
    GBI_TRY(exchanges ? exchange(f, dtype, redop, from + at * size,
                                 to + at * size, part, stream, error)
                      : gather_and_fold(f, step, dtype, redop, from + at * size,
                                        to + at * size, n, stream, error));
  }
  return GB_OK;
}

/* ---- work on the rank ---- */

bool gbi_folder_local(const gbi_folder *folder, const gbi_plan *plan,
                      const gbi_step *step) {
  const gbi_coll *coll = &plan->coll;
  gb_dtype dtype = (gb_dtype)coll->dtype;
  if (!folder->kernels || step->resource != GBI_ON_RANK) return false;
  switch (step->verb) {
    case GBI_DO_LOAD:
    case GBI_DO_DIVIDE:
    case GBI_DO_STORE: return true;
    case GBI_DO_FOLD:
      return !step->wide &&
             gbi_kernel_folds(dtype, gbi_comm_redop(coll->redop));
    case GBI_DO_COMBINE: return true;
    default: return false;
  }
}

/* One of the two is the sum so far. */
static gb_status combine(const gbi_folder *f, const gbi_coll *coll,
                         const gbi_step *step, const void *src, void *dst,
                         gbi_stream stream, gb_error *error) {
  gbi_fold fold = {
      .dtype = step->wide ? gbi_coll_travel_dtype(coll) : (gb_dtype)coll->dtype,
      .op = gbi_comm_redop(coll->redop),
      .out = dst,
      .a = step->number ? dst : src,
      .b = step->number ? src : dst,
      .count = step->count,
      .rows = 1};
  return gbi_kernel_fold(f->kernels, &fold, stream, error);
}

static gb_status run_fold(const gbi_folder *f, const gbi_coll *coll,
                          const void *rows, void *out, uint64_t count,
                          int world, gbi_stream stream, gb_error *error) {
  gb_dtype dtype = (gb_dtype)coll->dtype;
  uint64_t row = count * gb_dtype_bytes(dtype);
  gbi_fold fold = {.dtype = dtype,
                   .op = gbi_comm_redop(coll->redop),
                   .out = out,
                   .a = rows,
                   .b = (const uint8_t *)rows + row,
                   .count = count,
                   .rows = (uint64_t)world - 1,
                   .stride = row};
  GBI_TRY(gbi_kernel_fold(f->kernels, &fold, stream, error));
  if (coll->redop != GB_AVG) return GB_OK;
  return gbi_kernel_divide(f->kernels, dtype, out, count, world, stream, error);
}

gb_status gbi_folder_run_local(const gbi_folder *f, const gbi_plan *plan,
                               const gbi_step *step, const void *src, void *dst,
                               int world, double factor, gbi_stream stream,
                               gb_error *error) {
  const gbi_coll *coll = &plan->coll;
  gb_dtype dtype = (gb_dtype)coll->dtype;
  uint64_t count = step->count;
  int divisor = coll->redop == GB_AVG ? world : 1;
  switch (step->verb) {
    case GBI_DO_LOAD:
      return gbi_kernel_load(f->kernels, dtype, dst, src, count, factor, stream,
                             error);
    case GBI_DO_STORE:
      return gbi_kernel_store(f->kernels, dtype, dst, src, count, divisor,
                              stream, error);
    case GBI_DO_DIVIDE:
      return gbi_kernel_divide(f->kernels, dtype, dst, count, world, stream,
                               error);
    case GBI_DO_COMBINE: return combine(f, coll, step, src, dst, stream, error);
    default: return run_fold(f, coll, src, dst, count, world, stream, error);
  }
}

void gbi_folder_close(gbi_folder *folder) {
  if (folder->rows)
    folder->device->ops->free_memory(folder->device, folder->rows);
  folder->rows = NULL;
}
