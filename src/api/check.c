#include "api/check.h"

static gb_status fail_dtype(const char *what, gb_dtype dtype,
                            gb_error *error) {
  char names[400];
  gbi_text text;
  gbi_text_init(&text, names, sizeof names);
  for (int i = 0; i < GB_DTYPE_COUNT; i++)
    gbi_text_add(&text, "%s%s", i ? ", " : "", gb_dtype_name((gb_dtype)i));
  return gbi_fail(error, GB_ERR_TYPE,
                  "the %s's dtype code %d is not supported. Supported: %s",
                  what, (int)dtype, names);
}

gb_status gbi_check_buffer(const char *what, const gb_buffer *buffer, int world,
                           gb_error *error) {
  if (!buffer) return gbi_fail(error, GB_ERR_ARGUMENT, "the %s is NULL", what);
  size_t bytes = gb_dtype_bytes(buffer->dtype);
  if (!bytes) return fail_dtype(what, buffer->dtype, error);
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

static gb_status fail_redop(gb_redop op, gb_error *error) {
  char names[200];
  gbi_text text;
  gbi_text_init(&text, names, sizeof names);
  for (int i = 0; i < GB_REDOP_COUNT; i++)
    gbi_text_add(&text, "%s%s", i ? ", " : "", gb_redop_name((gb_redop)i));
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "the reduction code %d is not supported. Supported: %s",
                  (int)op, names);
}

gb_status gbi_check_redop(gb_redop op, gb_dtype dtype, gb_error *error) {
  const char *type = gb_dtype_name(dtype), *name = gb_redop_name(op);
  if ((unsigned)op >= GB_REDOP_COUNT) return fail_redop(op, error);
  if (op == GB_PREMUL_SUM)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "premul_sum needs a factor. Call gb_all_reduce_scaled, "
                    "gb_reduce_scaled or gb_reduce_scatter_scaled");
  if (gb_redop_supported(op, dtype)) return GB_OK;
  if (op == GB_AVG)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "avg of integers (%s) is refused: dividing them needs a "
                    "rounding rule. Use sum and divide as you need",
                    type);
  if (op == GB_PRODUCT)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "product of %s is refused: complex numbers have sum and "
                    "avg only. Gather the factors and multiply them",
                    type);
  if (op == GB_MAX || op == GB_MIN)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "%s of %s is refused: complex numbers have no order. Use "
                    "sum or avg, or reduce a real type",
                    name, type);
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "%s of %s is refused: bitwise reductions are for integers "
                  "and bool. Pass the bits as an integer type",
                  name, type);
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
