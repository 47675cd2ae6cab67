#include "device/host/reduce.h"

#include "device/host/kernels.h"

#include <stdatomic.h>
#include <string.h>

static bool runs_here(const gbi_kernels *kernels) {
#if defined(__x86_64__)
  if (kernels == &gbi_kernels_avx512)
    return __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
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

const char *gbi_kernels_name(void) { return kernels_in_use()->name; }

bool gbi_kernels_select(const char *name) {
  for (size_t i = 0; i < GBI_COUNT(variants); i++)
    if (!strcmp(variants[i]->name, name) && runs_here(variants[i])) {
      atomic_store_explicit(&chosen, variants[i], memory_order_release);
      return true;
    }
  return false;
}

/* -1: AVG or unknown. */
static int op_index(gb_redop op) {
  switch (op) {
    case GB_SUM: return GBI_KERNEL_SUM;
    case GB_MAX: return GBI_KERNEL_MAX;
    case GB_MIN: return GBI_KERNEL_MIN;
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
    kernels_in_use()->divide[dtype](data, count, divisor);
}

void gbi_widen(float *out, const void *half, size_t count, gb_dtype dtype) {
  if ((unsigned)dtype < GB_DTYPE_COUNT && kernels_in_use()->widen[dtype])
    kernels_in_use()->widen[dtype](out, half, count);
}

void gbi_narrow_divide(void *half, const float *in, size_t count,
                       gb_dtype dtype, int divisor) {
  if ((unsigned)dtype < GB_DTYPE_COUNT &&
      kernels_in_use()->narrow_divide[dtype])
    kernels_in_use()->narrow_divide[dtype](half, in, count, divisor);
}
