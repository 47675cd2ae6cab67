/* One set of kernels per instruction set, made from kernels.inc.h. Internal to
 * device/host. */
#ifndef GBI_DEVICE_HOST_KERNELS_H
#define GBI_DEVICE_HOST_KERNELS_H

#include "device/host/reduce.h"

enum {
  GBI_KERNEL_SUM,
  GBI_KERNEL_MAX,
  GBI_KERNEL_MIN,
  GBI_KERNEL_PRODUCT,
  GBI_KERNEL_BAND,
  GBI_KERNEL_BOR,
  GBI_KERNEL_BXOR,
  GBI_KERNEL_OPS
};

typedef struct gbi_kernels {
  const char *name;
  /* NULL where the dtype has none. */
  gbi_reduce_fn reduce[GB_DTYPE_COUNT][GBI_KERNEL_OPS];
  gbi_combine_fn combine[GB_DTYPE_COUNT][GBI_KERNEL_OPS];
  /* out may be in. */
  void (*divide[GB_DTYPE_COUNT])(void *out, const void *in, size_t count,
                                 int divisor);
  void (*load[GB_DTYPE_COUNT])(void *wide, const void *in, size_t count,
                               double factor);
  void (*store[GB_DTYPE_COUNT])(void *out, const void *wide, size_t count,
                                int divisor);
} gbi_kernels;

extern const gbi_kernels gbi_kernels_portable;
extern const gbi_kernels gbi_kernels_avx2;
extern const gbi_kernels gbi_kernels_avx512;
extern const gbi_kernels gbi_kernels_neon;

#endif
