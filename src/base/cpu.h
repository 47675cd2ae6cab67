/* What this processor can do, for code that comes in several variants. */
#ifndef GBI_BASE_CPU_H
#define GBI_BASE_CPU_H

#include <stdbool.h>

#if defined(__x86_64__)
/* The parts of AVX-512 that our kernels are compiled for. */
static inline bool gbi_cpu_has_avx512(void) {
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}
#endif

#endif
