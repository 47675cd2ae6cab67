#include "device/host/reduce.h"

#include "base/cpu.h"
#include "device/host/kernels.h"

#include <stdatomic.h>
#include <string.h>

static bool runs_here(const gbi_kernels *kernels) {
#if defined(__x86_64__)
  if (kernels == &gbi_kernels_avx512) return gbi_cpu_has_avx512();
  /* Every AVX2 processor has F16C; the compilers' test lacks the name. */
  if (kernels == &gbi_kernels_avx2) return __builtin_cpu_supports("avx2");
#endif
  return true;
}

/* Best first. */
static const gbi_kernels *const variants[] = {
#if defined(__x86_64__)
    &gbi_kernels_avx512,
    &gbi_kernels_avx2,
#elif defined(__aarch64__)
    &gbi_kernels_neon,
#endif
    &gbi_kernels_portable,
};

/* Written once or by tests; any thread that finds NULL computes the same. */
static _Atomic(const gbi_kernels *) chosen;

static const gbi_kernels *kernels_in_use(void) {
  const gbi_kernels *kernels =
      atomic_load_explicit(&chosen, memory_order_acquire);
  for (size_t i = 0; !kernels; i++)
    if (runs_here(variants[i])) {
      kernels = variants[i];
      atomic_store_explicit(&chosen, kernels, memory_order_release);
    }
  return kernels;
}

const char *gbi_kernels_name(void) {
  return kernels_in_use()->name;
}

bool gbi_kernels_select(const char *name) {
  for (size_t i = 0; i < GBI_COUNT(variants); i++)
    if (!strcmp(variants[i]->name, name) && runs_here(variants[i])) {
      atomic_store_explicit(&chosen, variants[i], memory_order_release);
      return true;
    }
  return false;
}

/* -1: AVG, PREMUL_SUM or unknown. */
static int op_index(gb_redop op) {
  switch (op) {
    case GB_SUM: return GBI_KERNEL_SUM;
    case GB_MAX: return GBI_KERNEL_MAX;
    case GB_MIN: return GBI_KERNEL_MIN;
    case GB_PRODUCT: return GBI_KERNEL_PRODUCT;
    case GB_BAND: return GBI_KERNEL_BAND;
    case GB_BOR: return GBI_KERNEL_BOR;
    case GB_BXOR: return GBI_KERNEL_BXOR;
    default: return -1;
  }
}

gbi_reduce_fn gbi_reduce_kernel(gb_dtype dtype, gb_redop op) {
  int index = op_index(op);
  if (index < 0 || (unsigned)dtype >= GB_DTYPE_COUNT) return NULL;
  return kernels_in_use()->reduce[dtype][index];
}

gbi_combine_fn gbi_combine_kernel(gb_dtype dtype, gb_redop op) {
  int index = op_index(op);
  if (index < 0 || (unsigned)dtype >= GB_DTYPE_COUNT) return NULL;
  return kernels_in_use()->combine[dtype][index];
}

void gbi_divide(void *data, size_t count, gb_dtype dtype, int divisor) {
  if ((unsigned)dtype < GB_DTYPE_COUNT && kernels_in_use()->divide[dtype])
    kernels_in_use()->divide[dtype](data, data, count, divisor);
}

/* Types that are their own wide type. */
static void copy(void *out, const void *in, size_t count, gb_dtype dtype) {
  if (out != in && count) memmove(out, in, count * gb_dtype_bytes(dtype));
}

void gbi_wide_load(void *wide, const void *in, size_t count, gb_dtype dtype,
                   double factor) {
  if ((unsigned)dtype >= GB_DTYPE_COUNT) return;
  bool same = gbi_wide_dtype(dtype) == dtype;
  if (!kernels_in_use()->load[dtype] || (same && factor == 1))
    copy(wide, in, count, dtype);
  else
    kernels_in_use()->load[dtype](wide, in, count, factor);
}

void gbi_wide_store(void *out, const void *wide, size_t count, gb_dtype dtype,
                    int divisor) {
  if ((unsigned)dtype >= GB_DTYPE_COUNT) return;
  bool same = gbi_wide_dtype(dtype) == dtype;
  if (!kernels_in_use()->store[dtype] || (same && divisor == 1))
    copy(out, wide, count, dtype);
  else
    kernels_in_use()->store[dtype](out, wide, count, divisor);
}
