#if defined(__x86_64__)
#include "codec/avx512.h"

#define KERNELS gbi_codec_avx512bf16
#define KERNELS_NAME "avx512bf16"
#define TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
/* The instruction takes denormals for 0 and keeps parts of a NaN, whatever the
 * mode. A vector that holds one (0 < |x| < 2^-126, or a NaN) goes the way of
 * whole numbers; all others are rounded as the reference rounds. */
#define BF16_OF(out, in)                                                   \
  do {                                                                     \
    __m512i bits_ = (__m512i)(in);                                         \
    __m512i low_ = _mm512_and_si512(bits_, _mm512_set1_epi32(0x7fffffff)); \
    __mmask16 odd_ = _mm512_cmpgt_epu32_mask(                              \
        _mm512_sub_epi32(low_, _mm512_set1_epi32(0x00800000)),             \
        _mm512_set1_epi32(0x7f000000));                                    \
    odd_ = _mm512_mask_test_epi32_mask(odd_, low_, low_);                  \
    if (GBI_UNLIKELY(odd_))                                                \
      *(out) = bf16_of(in);                                                \
    else                                                                   \
      *(out) = (vec_u32)_mm512_cvtepu16_epi32(                             \
          (__m256i)_mm512_cvtneps_pbh((__m512)bits_));                     \
  } while (0)
#include "codec/kernels.inc.h"
#endif
