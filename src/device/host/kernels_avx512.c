#if defined(__x86_64__)
#include <immintrin.h>

#define KERNELS gbi_kernels_avx512
#define KERNELS_NAME "avx512"
#define VEC 64
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define F16_TO_F32(out, in)                    \
  do {                                         \
    __m256i f16_in;                            \
    memcpy(&f16_in, in, sizeof f16_in);        \
    *(out) = (vec_f32)_mm512_cvtph_ps(f16_in); \
  } while (0)
#define F32_TO_F16(out, in)                                          \
  do {                                                               \
    __m256i f16_out =                                                \
        _mm512_cvtps_ph((__m512) * (in), _MM_FROUND_TO_NEAREST_INT); \
    memcpy(out, &f16_out, sizeof f16_out);                           \
  } while (0)
#define U8_TO_U32(out, in)                         \
  do {                                             \
    __m128i u8_in;                                 \
    memcpy(&u8_in, in, sizeof u8_in);              \
    *(out) = (vec_u32)_mm512_cvtepu8_epi32(u8_in); \
  } while (0)
#define U32_TO_U8(out, in)                                   \
  do {                                                       \
    __m128i u8_out = _mm512_cvtepi32_epi8((__m512i) * (in)); \
    memcpy(out, &u8_out, sizeof u8_out);                     \
  } while (0)
#include "device/host/kernels.inc.h"
#endif
