/* device/host: element-wise kernels on host memory.
 *
 * May call base only. Chosen once at run time: AVX-512, AVX2, NEON or portable
 * C; all variants give the same bits for every input. Pointers need no
 * alignment. Thread-safe, no allocation.
 *
 * Arithmetic: float16 and bfloat16 are widened to float32, combined, and
 * rounded to nearest even once per combination. Integers wrap (no undefined
 * behaviour). MAX and MIN of floating types give a quiet NaN if either is NaN;
 * -0 and +0: MAX gives +0, MIN gives -0. */
#ifndef GBI_DEVICE_HOST_REDUCE_H
#define GBI_DEVICE_HOST_REDUCE_H

#include "base/base.h"

/* acc[i] = acc[i] (op) in[i]; regions do not overlap. op: SUM, MAX, MIN. */
typedef void (*gbi_reduce_fn)(void *acc, const void *in, size_t count);
gbi_reduce_fn gbi_reduce_kernel(gb_dtype dtype, gb_redop op);
/* out[i] = a[i] (op) b[i]; out may be a or b. */
typedef void (*gbi_combine_fn)(void *out, const void *a, const void *b,
                               size_t count);
gbi_combine_fn gbi_combine_kernel(gb_dtype dtype, gb_redop op);
/* data[i] = data[i] / divisor for the four floating dtypes, in float32 for the
 * half types (float64 for float64), rounded once. */
void gbi_divide(void *data, size_t count, gb_dtype dtype, int divisor);
/* out[i] = float32 of half[i]; dtype float16 or bfloat16. */
void gbi_widen(float *out, const void *half, size_t count, gb_dtype dtype);
/* half[i] = in[i] / divisor in float32, rounded once to dtype. An AVG of
 * float16 travels as float32 sums and ends here, so that it cannot overflow. */
void gbi_narrow_divide(void *half, const float *in, size_t count,
                       gb_dtype dtype, int divisor);
/* "avx512", "avx2", "neon", "portable": what is in use. */
const char *gbi_kernels_name(void);
/* For tests: forces a variant by name; false when this machine lacks it. */
bool gbi_kernels_select(const char *name);

#endif
