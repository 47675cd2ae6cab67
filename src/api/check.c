#include "api/check.h"

gb_status gbi_check_buffer(const char *what, const gb_buffer *buffer, int world,
                           gb_error *error) {
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

gb_status gbi_check_redop(gb_redop op, gb_dtype dtype, gb_error *error) {
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

gb_status gbi_check_group(gb_group *group, gb_error *error) {
  if (!group) return gbi_fail(error, GB_ERR_ARGUMENT, "the group is NULL");
  return gbi_group_usable(group, error);
}

/* `large` holds world rows like `small`. */
gb_status gbi_check_pair(const gb_group *group, const char *large_name,
                         const gb_buffer *large, const char *small_name,
                         const gb_buffer *small, gb_error *error) {
  int world = gbi_group_world(group);
  GBI_TRY(gbi_check_buffer(large_name, large, 1, error));
  GBI_TRY(gbi_check_buffer(small_name, small, world, error));
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
