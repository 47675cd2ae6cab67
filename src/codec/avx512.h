/* What the two AVX-512 sets have in common: the moves between numbers of 32, 16
 * and 8 bits. Internal to codec. */
#ifndef GBI_CODEC_AVX512_H
#define GBI_CODEC_AVX512_H

#include <immintrin.h>

#define VEC 64
#define NARROW16(out, v)                     \
  EACH(k_)                                   \
  _mm256_storeu_si256((__m256i *)(out) + k_, \
                      _mm512_cvtepi32_epi16((__m512i)(v)[k_]))
#define NARROW8(out, v)                   \
  EACH(k_)                                \
  _mm_storeu_si128((__m128i *)(out) + k_, \
                   _mm512_cvtepi32_epi8((__m512i)(v)[k_]))
#define WIDEN16(v, in)                      \
  EACH(k_)                                  \
  (v)[k_] = (vec_u32)_mm512_cvtepu16_epi32( \
      _mm256_loadu_si256((const __m256i *)(in) + k_))
#define WIDEN8(v, in)                      \
  EACH(k_)                                 \
  (v)[k_] = (vec_u32)_mm512_cvtepu8_epi32( \
      _mm_loadu_si128((const __m128i *)(in) + k_))
#define LARGER(a, b) (vec_u32) _mm512_max_epi32((__m512i)(a), (__m512i)(b))

#endif
