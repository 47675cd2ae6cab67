/* device/host: element-wise kernels on host memory.
 *
 * May call base only. Chosen once at run time: AVX-512, AVX2, NEON or portable
 * C; all variants give the same bits for every input. Pointers need no
 * alignment. Thread-safe, no allocation.
 *
 * Arithmetic: float16 and bfloat16 are widened to float32, combined, and
 * rounded to nearest even once per combination. Integers wrap (no undefined
 * behaviour). bool: any byte but 0 is true, results are 0 or 1; SUM and MAX
 * are or, PRODUCT and MIN and. MAX and MIN of floating types give a quiet NaN
 * if either is NaN; -0 and +0: MAX gives +0, MIN gives -0. Complex numbers are
 * pairs.
 *
 * float8 has no kernels: it is loaded to float32, reduced there and stored
 * once. Storing rounds to nearest even; what is too large becomes, as in
 * PyTorch 2.13, 448 for e4m3fn, infinity for e5m2, NaN for the fnuz types. A
 * NaN becomes 0x7f, or 0x80 for the fnuz types, whatever its sign was. */
#ifndef GBI_DEVICE_HOST_REDUCE_H
#define GBI_DEVICE_HOST_REDUCE_H

#include "base/base.h"

/* acc[i] = acc[i] (op) in[i]; regions do not overlap. op: SUM, MAX, MIN,
 * PRODUCT, BAND, BOR, BXOR. NULL where gb_redop_supported says no, for AVG and
 * PREMUL_SUM, and for float8. */
typedef void (*gbi_reduce_fn)(void *acc, const void *in, size_t count);
gbi_reduce_fn gbi_reduce_kernel(gb_dtype dtype, gb_redop op);
/* out[i] = a[i] (op) b[i]; out may be a or b. */
typedef void (*gbi_combine_fn)(void *out, const void *a, const void *b,
                               size_t count);
gbi_combine_fn gbi_combine_kernel(gb_dtype dtype, gb_redop op);
/* data[i] = data[i] / divisor for float16 to float64 and complex, in float32
 * for the half types (in its own type for the others), rounded once. Other
 * types stay as they are. */
void gbi_divide(void *data, size_t count, gb_dtype dtype, int divisor);
/* wide[i] = in[i] * factor in gbi_wide_dtype(dtype), factor rounded to that
 * type. Factor 1: no multiplication, and an exact copy where the wide type is
 * dtype itself; types that are not floating take no other factor. The regions
 * are apart or, where the types are equal, the same. */
void gbi_wide_load(void *wide, const void *in, size_t count, gb_dtype dtype,
                   double factor);
/* out[i] = wide[i] / divisor, rounded once to dtype; divisor 1: no division.
 * The way back from gbi_wide_load. */
void gbi_wide_store(void *out, const void *wide, size_t count, gb_dtype dtype,
                    int divisor);
/* "avx512", "avx2", "neon", "portable": what is in use. */
const char *gbi_kernels_name(void);
/* For tests: forces a variant by name; false when this machine lacks it. */
bool gbi_kernels_select(const char *name);

#endif
