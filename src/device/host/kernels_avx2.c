#if defined(__x86_64__)
#include <immintrin.h>

#define KERNELS gbi_kernels_avx2
#define KERNELS_NAME "avx2"
#define VEC 32
/* No fma: a fused product would round differently. */
#define TARGET __attribute__((target("avx2,f16c")))
#define F16_TO_F32(out, in)                                                    \
  do {                                                                         \
    __m128i f16_in;                                                            \
    memcpy(&f16_in, in, sizeof f16_in);                                        \
    *(out) = (vec_f32)_mm256_cvtph_ps(f16_in);                                 \
  } while (0)
#define F32_TO_F16(out, in)                                                    \
  do {                                                                         \
    __m128i f16_out =                                                          \
        _mm256_cvtps_ph((__m256)*(in), _MM_FROUND_TO_NEAREST_INT);             \
    memcpy(out, &f16_out, sizeof f16_out);                                     \
  } while (0)
#include "device/host/kernels.inc.h"
#endif
