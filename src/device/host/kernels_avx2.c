#if defined(__x86_64__)
#include <immintrin.h>

#define KERNELS gbi_kernels_avx2
#define KERNELS_NAME "avx2"
#define VEC 32
/* No fma: a fused product would round differently. */
#define TARGET __attribute__((target("avx2,f16c")))
#define F16_TO_F32(out, in)                    \
  do {                                         \
    __m128i f16_in;                            \
    memcpy(&f16_in, in, sizeof f16_in);        \
    *(out) = (vec_f32)_mm256_cvtph_ps(f16_in); \
  } while (0)
#define F32_TO_F16(out, in)                                          \
  do {                                                               \
    __m128i f16_out =                                                \
        _mm256_cvtps_ph((__m256) * (in), _MM_FROUND_TO_NEAREST_INT); \
    memcpy(out, &f16_out, sizeof f16_out);                           \
  } while (0)
#define U8_TO_U32(out, in)                                            \
  do {                                                                \
    int64_t u8_in;                                                    \
    memcpy(&u8_in, in, sizeof u8_in);                                 \
    *(out) = (vec_u32)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(u8_in)); \
  } while (0)
#define U32_TO_U8(out, in)                                                   \
  do {                                                                       \
    __m256i u32_in = (__m256i) * (in);                                       \
    __m128i u16_out = _mm_packus_epi32(_mm256_castsi256_si128(u32_in),       \
                                       _mm256_extracti128_si256(u32_in, 1)); \
    int64_t u8_out = _mm_cvtsi128_si64(_mm_packus_epi16(u16_out, u16_out));  \
    memcpy(out, &u8_out, sizeof u8_out);                                     \
  } while (0)
#include "device/host/kernels.inc.h"
#endif
