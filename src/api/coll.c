/* Arguments of collectives are checked here, before anything is sent. */
#include "core/group.h"
#include "core/work.h"

#include <gpubridge/coll.h>

static gb_status check_buffer(const char *what, const gb_buffer *buffer,
                              int world, gb_error *error) {
  if (!buffer) return gbi_fail(error, GB_ERR_ARGUMENT, "the %s is NULL", what);
  size_t bytes = gb_dtype_bytes(buffer->dtype);
  if (!bytes)
    return gbi_fail(error, GB_ERR_TYPE,
                    "the %s's dtype code %d is not supported. Supported: "
                    "int8, uint8, int32, int64, float16, bfloat16, float32, "
                    "float64",
                    what, (int)buffer->dtype);
  if (buffer->count > (size_t)PTRDIFF_MAX / bytes / (size_t)world)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the %s has %zu elements, more than memory can hold", what,
                    buffer->count);
  if (!buffer->data && buffer->count)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the %s is NULL, but has %zu elements", what,
                    buffer->count);
  return GB_OK;
}

static gb_status check_redop(gb_redop op, gb_dtype dtype, gb_error *error) {
  if ((unsigned)op >= GB_REDOP_COUNT)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the reduction code %d is not supported. Supported: sum, "
                    "avg, max, min",
                    (int)op);
  bool floating = dtype == GB_FLOAT16 || dtype == GB_BFLOAT16 ||
                  dtype == GB_FLOAT32 || dtype == GB_FLOAT64;
  if (op == GB_AVG && !floating)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "avg of integers (%s) is refused: dividing them needs a "
                    "rounding rule. Use sum and divide as you need",
                    gb_dtype_name(dtype));
  return GB_OK;
}

/* The buffer of one rank is a part of the other: NULL data or the row itself
 * are fine, any other overlap is not. */
static gb_status check_overlap(const gb_buffer *large, const gb_buffer *small,
                               int rank, gb_error *error) {
  size_t size = gb_dtype_bytes(small->dtype);
  size_t small_bytes = small->count * size, large_bytes = large->count * size;
  uintptr_t l = (uintptr_t)large->data, s = (uintptr_t)small->data;
  if (!small_bytes || s == l + small_bytes * (size_t)rank) return GB_OK;
  if (s + small_bytes <= l || l + large_bytes <= s) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "input and output overlap otherwise than in row %d, this "
                  "rank's own",
                  rank);
}

static gb_status check_group(gb_group *group, gb_error *error) {
  if (!group) return gbi_fail(error, GB_ERR_ARGUMENT, "the group is NULL");
  return gbi_group_usable(group, error);
}

/* `large` holds world rows like `small`. */
static gb_status check_pair(const gb_group *group, const char *large_name,
                            const gb_buffer *large, const char *small_name,
                            const gb_buffer *small, gb_error *error) {
  int world = gbi_group_world(group);
  GBI_TRY(check_buffer(large_name, large, 1, error));
  GBI_TRY(check_buffer(small_name, small, world, error));
  if (large->dtype != small->dtype)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the %s is %s, but the %s is %s: they must be of one type",
                    large_name, gb_dtype_name(large->dtype), small_name,
                    gb_dtype_name(small->dtype));
  if (large->count != small->count * (size_t)world)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the %s has %zu elements, but must have %d times the %zu "
                    "of the %s, that is %zu",
                    large_name, large->count, world, small->count, small_name,
                    small->count * (size_t)world);
  return check_overlap(large, small, gbi_group_rank(group), error);
}

gb_status gb_all_reduce(gb_group *group, const gb_buffer *buffer, gb_redop op,
                        gb_work **work_p, gb_error *error) {
  GBI_TRY(check_group(group, error));
  GBI_TRY(check_buffer("buffer", buffer, 1, error));
  GBI_TRY(check_redop(op, buffer->dtype, error));
  gbi_coll coll = {.op = GBI_OP_ALL_REDUCE,
                   .dtype = (uint8_t)buffer->dtype,
                   .redop = (uint8_t)op,
                   .root = -1,
                   .count = buffer->count};
  return gbi_group_call(group, &coll, buffer->data, buffer->data, work_p,
                        error);
}

gb_status gb_broadcast(gb_group *group, const gb_buffer *buffer, int root,
                       gb_work **work_p, gb_error *error) {
  GBI_TRY(check_group(group, error));
  int world = gbi_group_world(group);
  if (root < 0 || root >= world)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the source rank is %d, but must be from 0 to %d", root,
                    world - 1);
  GBI_TRY(check_buffer("buffer", buffer, 1, error));
  gbi_coll coll = {.op = GBI_OP_BROADCAST,
                   .dtype = (uint8_t)buffer->dtype,
                   .redop = 255,
                   .root = root,
                   .count = buffer->count};
  return gbi_group_call(group, &coll, buffer->data, buffer->data, work_p,
                        error);
}

gb_status gb_all_gather(gb_group *group, const gb_buffer *output,
                        const gb_buffer *input, gb_work **work_p,
                        gb_error *error) {
  GBI_TRY(check_group(group, error));
  GBI_TRY(check_pair(group, "output", output, "input", input, error));
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
  GBI_TRY(check_group(group, error));
  GBI_TRY(check_pair(group, "input", input, "output", output, error));
  GBI_TRY(check_redop(op, input->dtype, error));
  gbi_coll coll = {.op = GBI_OP_REDUCE_SCATTER,
                   .dtype = (uint8_t)input->dtype,
                   .redop = (uint8_t)op,
                   .root = -1,
                   .count = output->count};
  return gbi_group_call(group, &coll, input->data, output->data, work_p, error);
}

gb_status gb_barrier(gb_group *group, gb_work **work_p, gb_error *error) {
  GBI_TRY(check_group(group, error));
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

int64_t gb_work_seq(const gb_work *work) { return gbi_work_seq(work); }

void gb_work_release(gb_work *work) { gbi_work_release(work); }
