/* The collectives: arguments are checked here, before anything is sent. */
#include "api/check.h"
#include "base/memory.h"
#include "core/work.h"

#include <gpubridge/coll.h>
#include <stdlib.h>

/* `what`: "source" or "destination". */
static gb_status check_root(const gb_group *group, const char *what, int root,
                            gb_error *error) {
  int world = gbi_group_world(group);
  if (root >= 0 && root < world) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "the %s rank is %d, but must be from 0 to %d", what, root,
                  world - 1);
}

static gb_status check_scaled(gb_dtype dtype, gb_error *error) {
  if (gb_redop_supported(GB_PREMUL_SUM, dtype)) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "premul_sum of %s is refused: factors are for floating "
                  "types. Multiply the elements and use sum",
                  gb_dtype_name(dtype));
}

/* ---- in place ---- */

static gb_status call_in_place(gb_group *group, gbi_op op,
                               const gb_buffer *buffer, int redop, int root,
                               double factor, gb_work **work_p,
                               gb_error *error) {
  gbi_coll coll = {.op = (uint8_t)op,
                   .dtype = (uint8_t)buffer->dtype,
                   .redop = (uint8_t)redop,
                   .root = root,
                   .count = buffer->count};
  return gbi_group_call_scaled(group, &coll, buffer->data, buffer->data, factor,
                               work_p, error);
}

gb_status gb_all_reduce(gb_group *group, const gb_buffer *buffer, gb_redop op,
                        gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(gbi_check_buffer("buffer", buffer, 1, error));
  GBI_TRY(gbi_check_redop(op, buffer->dtype, error));
  return call_in_place(group, GBI_OP_ALL_REDUCE, buffer, (int)op, -1, 1, work_p,
                       error);
}

gb_status gb_all_reduce_scaled(gb_group *group, const gb_buffer *buffer,
                               double factor, gb_work **work_p,
                               gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(gbi_check_buffer("buffer", buffer, 1, error));
  GBI_TRY(check_scaled(buffer->dtype, error));
  return call_in_place(group, GBI_OP_ALL_REDUCE, buffer, GB_PREMUL_SUM, -1,
                       factor, work_p, error);
}

gb_status gb_reduce(gb_group *group, const gb_buffer *buffer, gb_redop op,
                    int root, gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(check_root(group, "destination", root, error));
  GBI_TRY(gbi_check_buffer("buffer", buffer, 1, error));
  GBI_TRY(gbi_check_redop(op, buffer->dtype, error));
  return call_in_place(group, GBI_OP_REDUCE, buffer, (int)op, root, 1, work_p,
                       error);
}

gb_status gb_reduce_scaled(gb_group *group, const gb_buffer *buffer,
                           double factor, int root, gb_work **work_p,
                           gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(check_root(group, "destination", root, error));
  GBI_TRY(gbi_check_buffer("buffer", buffer, 1, error));
  GBI_TRY(check_scaled(buffer->dtype, error));
  return call_in_place(group, GBI_OP_REDUCE, buffer, GB_PREMUL_SUM, root,
                       factor, work_p, error);
}

gb_status gb_broadcast(gb_group *group, const gb_buffer *buffer, int root,
                       gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(check_root(group, "source", root, error));
  GBI_TRY(gbi_check_buffer("buffer", buffer, 1, error));
  return call_in_place(group, GBI_OP_BROADCAST, buffer, 255, root, 1, work_p,
                       error);
}

/* ---- equal rows ---- */

gb_status gb_all_gather(gb_group *group, const gb_buffer *output,
                        const gb_buffer *input, gb_work **work_p,
                        gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(gbi_check_pair(group, "output", output, "input", input, error));
  gbi_coll coll = {.op = GBI_OP_ALL_GATHER,
                   .dtype = (uint8_t)input->dtype,
                   .redop = 255,
                   .root = -1,
                   .count = input->count};
  return gbi_group_call(group, &coll, input->data, output->data, work_p, error);
}

gb_status gb_reduce_scatter(gb_group *group, const gb_buffer *output,
                            const gb_buffer *input, gb_redop op,
                            gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(gbi_check_pair(group, "input", input, "output", output, error));
  GBI_TRY(gbi_check_redop(op, input->dtype, error));
  gbi_coll coll = {.op = GBI_OP_REDUCE_SCATTER,
                   .dtype = (uint8_t)input->dtype,
                   .redop = (uint8_t)op,
                   .root = -1,
                   .count = output->count};
  return gbi_group_call(group, &coll, input->data, output->data, work_p, error);
}

gb_status gb_reduce_scatter_scaled(gb_group *group, const gb_buffer *output,
                                   const gb_buffer *input, double factor,
                                   gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(gbi_check_pair(group, "input", input, "output", output, error));
  GBI_TRY(check_scaled(input->dtype, error));
  gbi_coll coll = {.op = GBI_OP_REDUCE_SCATTER,
                   .dtype = (uint8_t)input->dtype,
                   .redop = GB_PREMUL_SUM,
                   .root = -1,
                   .count = output->count};
  return gbi_group_call_scaled(group, &coll, input->data, output->data, factor,
                               work_p, error);
}

/* The large buffer of a gather or scatter: on root it pairs with the small one,
 * elsewhere it is NULL. */
static gb_status check_rooted(const gb_group *group, int root,
                              const char *large_name, const gb_buffer *large,
                              const char *small_name, const gb_buffer *small,
                              gb_error *error) {
  if (gbi_group_rank(group) == root)
    return gbi_check_pair(group, large_name, large, small_name, small, error);
  GBI_TRY(gbi_check_buffer(small_name, small, gbi_group_world(group), error));
  if (!large) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "the %s must be NULL on rank %d: rank %d alone has one",
                  large_name, gbi_group_rank(group), root);
}

static gb_status call_rooted(gb_group *group, gbi_op op, const gb_buffer *small,
                             int root, const void *in, void *out,
                             gb_work **work_p, gb_error *error) {
  gbi_coll coll = {.op = (uint8_t)op,
                   .dtype = (uint8_t)small->dtype,
                   .redop = 255,
                   .root = root,
                   .count = small->count};
  return gbi_group_call(group, &coll, in, out, work_p, error);
}

gb_status gb_gather(gb_group *group, const gb_buffer *output,
                    const gb_buffer *input, int root, gb_work **work_p,
                    gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(check_root(group, "destination", root, error));
  GBI_TRY(check_rooted(group, root, "output", output, "input", input, error));
  return call_rooted(group, GBI_OP_GATHER, input, root, input->data,
                     output ? output->data : NULL, work_p, error);
}

gb_status gb_scatter(gb_group *group, const gb_buffer *output,
                     const gb_buffer *input, int root, gb_work **work_p,
                     gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(check_root(group, "source", root, error));
  GBI_TRY(check_rooted(group, root, "input", input, "output", output, error));
  return call_rooted(group, GBI_OP_SCATTER, output, root,
                     input ? input->data : NULL, output->data, work_p, error);
}

/* ---- rows of their own lengths ---- */

static gb_status check_types(const char *a_name, const gb_buffer *a,
                             const char *b_name, const gb_buffer *b,
                             gb_error *error) {
  GBI_TRY(gbi_check_buffer(a_name, a, 1, error));
  GBI_TRY(gbi_check_buffer(b_name, b, 1, error));
  if (a->dtype == b->dtype) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "the %s is %s, but the %s is %s: they must be of one type",
                  a_name, gb_dtype_name(a->dtype), b_name,
                  gb_dtype_name(b->dtype));
}

/* The lengths must add up to the buffer. */
static gb_status check_lengths(const char *name, const gb_buffer *buffer,
                               const char *counts_name, const size_t *counts,
                               int world, gb_error *error) {
  size_t sum = 0;
  for (int r = 0; r < world; r++)
    if (__builtin_add_overflow(sum, counts[r], &sum))
      return gbi_fail(error, GB_ERR_ARGUMENT,
                      "the %s add up to more than memory can hold",
                      counts_name);
  if (sum == buffer->count) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "the %s has %zu elements, but the %s add up to %zu", name,
                  buffer->count, counts_name, sum);
}

static bool overlap(const gb_buffer *a, const gb_buffer *b) {
  size_t size = gb_dtype_bytes(a->dtype);
  uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
  return a->count && b->count && x < y + b->count * size &&
         y < x + a->count * size;
}

/* `large` is packed from rows, of which `small` is this rank's. */
static gb_status check_rows(const gb_group *group, const char *large_name,
                            const gb_buffer *large, const char *small_name,
                            const gb_buffer *small, const size_t *counts,
                            gb_error *error) {
  int rank = gbi_group_rank(group);
  GBI_TRY(check_types(large_name, large, small_name, small, error));
  if (!counts)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the counts are NULL. Pass one entry a rank");
  GBI_TRY(check_lengths(large_name, large, "counts", counts,
                        gbi_group_world(group), error));
  if (small->count != counts[rank])
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the %s has %zu elements, but this rank's entry of the "
                    "counts is %zu",
                    small_name, small->count, counts[rank]);
  size_t at = 0;
  for (int r = 0; r < rank; r++) at += counts[r];
  uintptr_t row = (uintptr_t)large->data + at * gb_dtype_bytes(large->dtype);
  if (!overlap(large, small) || (uintptr_t)small->data == row) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "input and output overlap otherwise than in row %d, this "
                  "rank's own",
                  rank);
}

static gbi_coll rows_coll(const gb_group *group, gbi_op op, int redop,
                          const gb_buffer *large, const size_t *counts) {
  return (gbi_coll){.op = (uint8_t)op,
                    .dtype = (uint8_t)large->dtype,
                    .redop = (uint8_t)redop,
                    .root = -1,
                    .count = large->count,
                    .counts = counts,
                    .counts_count = (uint32_t)gbi_group_world(group)};
}

gb_status gb_all_gather_v(gb_group *group, const gb_buffer *output,
                          const gb_buffer *input, const size_t *counts,
                          gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(check_rows(group, "output", output, "input", input, counts, error));
  gbi_coll coll = rows_coll(group, GBI_OP_ALL_GATHER_V, 255, output, counts);
  return gbi_group_call(group, &coll, input->data, output->data, work_p, error);
}

gb_status gb_reduce_scatter_v(gb_group *group, const gb_buffer *output,
                              const gb_buffer *input, const size_t *counts,
                              gb_redop op, gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(check_rows(group, "input", input, "output", output, counts, error));
  GBI_TRY(gbi_check_redop(op, input->dtype, error));
  gbi_coll coll =
      rows_coll(group, GBI_OP_REDUCE_SCATTER_V, (int)op, input, counts);
  return gbi_group_call(group, &coll, input->data, output->data, work_p, error);
}

/* ---- all_to_all ---- */

/* The parts of one buffer; NULL counts: equal ones. */
static gb_status check_parts(const char *name, const gb_buffer *buffer,
                             const char *counts_name, const size_t *counts,
                             int world, gb_error *error) {
  if (counts)
    return check_lengths(name, buffer, counts_name, counts, world, error);
  if (buffer->count % (size_t)world == 0) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "the %s has %zu elements, which is not a multiple of the %d "
                  "ranks. Pass the %s",
                  name, buffer->count, world, counts_name);
}

static size_t part(const gb_buffer *buffer, const size_t *counts, int world,
                   int rank) {
  return counts ? counts[rank] : buffer->count / (size_t)world;
}

static gb_status check_exchange(const gb_group *group, const gb_buffer *output,
                                const size_t *out_counts,
                                const gb_buffer *input, const size_t *in_counts,
                                gb_error *error) {
  int world = gbi_group_world(group), rank = gbi_group_rank(group);
  GBI_TRY(check_types("output", output, "input", input, error));
  GBI_TRY(
      check_parts("output", output, "out_counts", out_counts, world, error));
  GBI_TRY(check_parts("input", input, "in_counts", in_counts, world, error));
  size_t sent = part(input, in_counts, world, rank);
  size_t got = part(output, out_counts, world, rank);
  if (sent != got)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the part that this rank keeps has %zu elements in the "
                    "input, but %zu in the output",
                    sent, got);
  if (overlap(output, input))
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "input and output overlap. all_to_all needs two buffers");
  return GB_OK;
}

gb_status gb_all_to_all(gb_group *group, const gb_buffer *output,
                        const size_t *out_counts, const gb_buffer *input,
                        const size_t *in_counts, gb_work **work_p,
                        gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  GBI_TRY(check_exchange(group, output, out_counts, input, in_counts, error));
  int world = gbi_group_world(group);
  gbi_coll coll = {.op = GBI_OP_ALL_TO_ALL,
                   .dtype = (uint8_t)input->dtype,
                   .redop = 255,
                   .root = -1};
  uint64_t *counts = NULL;
  if (in_counts || out_counts) {
    counts = gbi_malloc((size_t)world * 2 * sizeof *counts);
    if (!counts) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a call");
    for (int r = 0; r < world; r++) {
      counts[r] = part(input, in_counts, world, r);
      counts[world + r] = part(output, out_counts, world, r);
    }
    coll.counts = counts;
    coll.counts_count = (uint32_t)world * 2;
  } else {
    coll.count = input->count / (size_t)world;
  }
  gb_status status =
      gbi_group_call(group, &coll, input->data, output->data, work_p, error);
  free(counts);
  return status;
}

/* ---- barrier and works ---- */

gb_status gb_barrier(gb_group *group, gb_work **work_p, gb_error *error) {
  GBI_TRY(gbi_check_group(group, error));
  gbi_coll coll = {.op = GBI_OP_BARRIER,
                   .dtype = GB_UINT8,
                   .redop = GB_MAX,
                   .root = -1,
                   .count = 1};
  return gbi_group_call(group, &coll, NULL, NULL, work_p, error);
}

gb_status gb_work_wait(gb_work *work, uint64_t timeout_ms, gb_error *error) {
  return gbi_work_wait(work, timeout_ms, error);
}

gb_status gb_work_test(gb_work *work, int *done_p, gb_error *error) {
  return gbi_work_test(work, done_p, error);
}

int64_t gb_work_seq(const gb_work *work) {
  return gbi_work_seq(work);
}

void gb_work_release(gb_work *work) {
  gbi_work_release(work);
}
