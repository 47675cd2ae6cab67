#if defined(__x86_64__)
#include <immintrin.h>

#define KERNELS gbi_codec_avx2
#define KERNELS_NAME "avx2"
#define VEC 32
#define TARGET __attribute__((target("avx2")))
/* Packing works within halves of a vector: the permutations put them right. */
#define PACK16(a, b) _mm256_packus_epi32((__m256i)(a), (__m256i)(b))
#define NARROW16(out, v)                                                  \
  do {                                                                    \
    __m256i *to_ = (__m256i *)(out);                                      \
    _mm256_storeu_si256(                                                  \
        to_, _mm256_permute4x64_epi64(PACK16((v)[0], (v)[1]), 0xd8));     \
    _mm256_storeu_si256(                                                  \
        to_ + 1, _mm256_permute4x64_epi64(PACK16((v)[2], (v)[3]), 0xd8)); \
  } while (0)
#define NARROW8(out, v)                                                      \
  do {                                                                       \
    __m256i bytes_ =                                                         \
        _mm256_packus_epi16(PACK16((v)[0], (v)[1]), PACK16((v)[2], (v)[3])); \
    __m256i order_ = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);              \
    _mm256_storeu_si256((__m256i *)(out),                                    \
                        _mm256_permutevar8x32_epi32(bytes_, order_));        \
  } while (0)
#define WIDEN16(v, in)                      \
  EACH(k_)                                  \
  (v)[k_] = (vec_u32)_mm256_cvtepu16_epi32( \
      _mm_loadu_si128((const __m128i *)(in) + k_))
#define WIDEN8(v, in)                      \
  EACH(k_)                                 \
  (v)[k_] = (vec_u32)_mm256_cvtepu8_epi32( \
      _mm_loadl_epi64((const __m128i *)((in) + k_ * 8)))
#define CHOOSE(mask, a, b) \
  (vec_u32) _mm256_blendv_epi8((__m256i)(b), (__m256i)(a), (__m256i)(mask))
#define LARGER(a, b) (vec_u32) _mm256_max_epi32((__m256i)(a), (__m256i)(b))
#include "codec/kernels.inc.h"
#endif
