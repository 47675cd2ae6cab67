/* Small exact values in every type, for tests that compare results bit by bit.
 */
#ifndef GB_TESTS_VALUES_H
#define GB_TESTS_VALUES_H

#include <math.h>

#include "job/job.h"

enum { PERIOD = 7 }; /* of values of one rank */
static inline int value_of(int rank, size_t i) {
  return (int)((i + (size_t)rank) % 7) + 1;
}

/* A positive value of the type's normal range, rounded to nearest even. */
static inline unsigned bits_of(double v, int mantissa, int bias) {
  if (v == 0) return 0;
  int e;
  frexp(v, &e);
  double units = nearbyint(ldexp(v, mantissa + 1 - e));
  return ((unsigned)(e - 1 + bias) << mantissa) + (unsigned)units -
         (1u << mantissa);
}

/* In complex numbers the second part is the negative. */
static inline void put(void *data, size_t i, gb_dtype dtype, double v) {
  uint8_t *byte = data;
  uint16_t *two = data;
  switch (dtype) {
    case GB_INT8:
    case GB_UINT8:
    case GB_BOOL: byte[i] = (uint8_t)v; break;
    case GB_FLOAT8_E4M3FN: byte[i] = (uint8_t)bits_of(v, 3, 7); break;
    case GB_FLOAT8_E5M2: byte[i] = (uint8_t)bits_of(v, 2, 15); break;
    case GB_FLOAT8_E4M3FNUZ: byte[i] = (uint8_t)bits_of(v, 3, 8); break;
    case GB_FLOAT8_E5M2FNUZ: byte[i] = (uint8_t)bits_of(v, 2, 16); break;
    case GB_INT16:
    case GB_UINT16: two[i] = (uint16_t)v; break;
    case GB_FLOAT16: two[i] = (uint16_t)bits_of(v, 10, 15); break;
    case GB_BFLOAT16: two[i] = (uint16_t)bits_of(v, 7, 127); break;
    case GB_INT32:
    case GB_UINT32: ((int32_t *)data)[i] = (int32_t)v; break;
    case GB_INT64:
    case GB_UINT64: ((int64_t *)data)[i] = (int64_t)v; break;
    case GB_FLOAT32: ((float *)data)[i] = (float)v; break;
    case GB_COMPLEX64:
      ((float *)data)[2 * i] = (float)v;
      ((float *)data)[2 * i + 1] = (float)-v;
      break;
    case GB_COMPLEX128:
      ((double *)data)[2 * i] = v;
      ((double *)data)[2 * i + 1] = -v;
      break;
    default: ((double *)data)[i] = v;
  }
}

static inline void check(const void *data, size_t i, gb_dtype dtype, double v,
                         const char *what) {
  uint8_t want[16] __attribute__((aligned(16))) = {0};
  size_t bytes = gb_dtype_bytes(dtype);
  put(want, 0, dtype, v);
  if (memcmp(want, (const uint8_t *)data + i * bytes, bytes))
    gb_test_fail(__FILE__, __LINE__, "%s, %s: element %zu is not %g", what,
                 gb_dtype_name(dtype), i, v);
}

/* How many of n values that ought to repeat are to be written, or looked at,
 * one by one: the first of them; all where the others do not repeat these. */
static inline size_t to_put(size_t n) {
  return n < PERIOD ? n : PERIOD;
}
static inline size_t to_check(const void *data, size_t n, gb_dtype dtype) {
  size_t each = gb_dtype_bytes(dtype);
  return gb_test_repeats(data, PERIOD * each, n * each) ? to_put(n) : n;
}
static inline void go_on(void *data, size_t n, gb_dtype dtype) {
  size_t each = gb_dtype_bytes(dtype);
  gb_test_repeat(data, PERIOD * each, n * each);
}
static inline void put_own(void *data, size_t n, gb_dtype dtype) {
  for (size_t i = 0; i < to_put(n); i++)
    put(data, i, dtype, value_of(gb_rank(), i));
  go_on(data, n, dtype);
}
/* That `data` are a rank's values from `first` on. */
static inline void check_from(const void *data, size_t n, gb_dtype dtype,
                              int rank, size_t first, const char *what) {
  for (size_t i = 0, k = to_check(data, n, dtype); i < k; i++)
    check(data, i, dtype, value_of(rank, first + i), what);
}
/* The same of this rank's, but not of those from `from` to `to`. */
static inline void check_but(const void *data, size_t n, size_t from, size_t to,
                             gb_dtype dtype, const char *what) {
  const uint8_t *rest = (const uint8_t *)data + to * gb_dtype_bytes(dtype);
  check_from(data, from, dtype, gb_rank(), 0, what);
  check_from(rest, n - to, dtype, gb_rank(), to, what);
}

#endif
