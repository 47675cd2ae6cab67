#if defined(__x86_64__)
#include <immintrin.h>

#define KERNELS gbi_kernels_avx512
#define KERNELS_NAME "avx512"
#define VEC 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define F16_TO_F32(out, in)                                                    \
  do {                                                                         \
    __m256i f16_in;                                                            \
    memcpy(&f16_in, in, sizeof f16_in);                                        \
    *(out) = (vec_f32)_mm512_cvtph_ps(f16_in);                                 \
  } while (0)
#define F32_TO_F16(out, in)                                                    \
  do {                                                                         \
    __m256i f16_out =                                                          \
        _mm512_cvtps_ph((__m512)*(in), _MM_FROUND_TO_NEAREST_INT);             \
    memcpy(out, &f16_out, sizeof f16_out);                                     \
  } while (0)
#include "device/host/kernels.inc.h"
#endif
