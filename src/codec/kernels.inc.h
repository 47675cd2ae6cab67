/* The codec kernels of one instruction set, written once with the compilers'
 * vector types. Included by kernels_<set>.c, which defines
 *   KERNELS   name of the table,  KERNELS_NAME  its text
 *   VEC       bytes of one vector: VEC / 4 values, 4 vectors are a group
 *   TARGET    function attributes that switch the instruction set on
 *   NARROW16(out, v), NARROW8(out, v)   the low 16 or 8 bits of the numbers of
 *             a group, whose other bits are 0, to memory
 *   WIDEN16(v, in), WIDEN8(v, in)       the way back
 * and may define, for compilers that do not find the instruction themselves
 *   CHOOSE(mask, a, b)   where `mask` (all bits of a lane or none) a, else b
 *   LARGER(a, b)         of numbers below 2^31
 *   BF16_OF(out, in)     bf16 codes of one vector
 *
 * Payloads do not depend on how they were made (reference.c): scaling by powers
 * of two is exact, and where it is not, far below what a code can tell. */
#include "codec/kernels.h"

#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF /* GCC contracts nothing in standard C */
#endif

#define VECTOR(type, name) typedef type name __attribute__((vector_size(VEC)))
VECTOR(uint32_t, vec_u32);
VECTOR(int32_t, vec_i32);
VECTOR(float, vec_f32);

enum { LANES = VEC / 4, GROUP = VEC };

#define INLINE TARGET __attribute__((always_inline)) static inline
#define LOAD(vector, at) memcpy(&(vector), at, sizeof(vector))
#define STORE(at, vector) memcpy(at, &(vector), sizeof(vector))
#ifndef CHOOSE
#define CHOOSE(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))
#endif
/* Of numbers below 2^31. */
#define ABOVE(a, b) ((vec_u32)((vec_i32)(a) > (vec_i32)(b)))
#if defined(__clang__) /* unrolls by itself */
#define EACH(k) for (int k = 0; k < 4; k++)
#else
#define EACH(k) _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)
#endif

INLINE vec_u32 all(uint32_t value) {
  return value - (vec_u32){0};
}

INLINE vec_f32 all_f32(uint32_t bits) {
  return (vec_f32)all(bits);
}

INLINE vec_u32 magnitude(vec_u32 bits) {
  return bits & 0x7fffffff;
}

INLINE vec_u32 quiet(vec_u32 bits) {
  vec_u32 nan = ABOVE(magnitude(bits), all(0x7f800000));
  return CHOOSE(nan, all(0x7fc00000), bits);
}

#ifndef LARGER
#define LARGER(a, b) CHOOSE(ABOVE(a, b), a, b)
#endif

INLINE uint32_t largest(vec_u32 v) {
  uint32_t most = 0;
  for (int i = 0; i < LANES; i++) most = GBI_MAX(most, v[i]);
  return most;
}

/* Keeps what was lost of x. Returns the larger of `most` and that. */
INLINE vec_u32 keep_rest(float *residual, vec_f32 x, vec_u32 sent,
                         vec_u32 most) {
  vec_u32 rest = (vec_u32)(x - (vec_f32)sent);
  vec_u32 finite = ABOVE(all(0x7f800000), magnitude(rest));
  rest &= finite;
  STORE(residual, rest);
  return LARGER(most, magnitude(rest));
}

/* ---- bf16, a group at a time ---- */

#ifndef BF16_OF
#define BF16_OF(out, in) *(out) = bf16_of(in)
#endif

INLINE vec_u32 bf16_of(vec_u32 bits) {
  vec_u32 nan = ABOVE(magnitude(bits), all(0x7f800000));
  vec_u32 code = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return CHOOSE(nan, all(0x7fc0), code);
}

/* residual: NULL for none. */
INLINE void bf16_put(uint8_t *payload, const float *values, float *residual,
                     vec_u32 *most) {
  vec_u32 codes[4], seen = *most;
  EACH(k) {
    vec_f32 x;
    LOAD(x, values + k * LANES);
    if (residual) {
      vec_f32 before;
      LOAD(before, residual + k * LANES);
      x += before;
    }
    BF16_OF(&codes[k], (vec_u32)x);
    if (residual)
      seen = keep_rest(residual + k * LANES, x, codes[k] << 16, seen);
  }
  *most = seen;
  NARROW16(payload, codes);
}

/* adds: to what is there. */
INLINE void bf16_get(float *values, const uint8_t *payload, bool adds) {
  vec_u32 codes[4];
  WIDEN16(codes, payload);
  EACH(k) {
    vec_u32 bits = codes[k] << 16;
    if (adds) {
      vec_f32 sum;
      LOAD(sum, values + k * LANES);
      bits = (vec_u32)(sum + (vec_f32)bits);
    }
    bits = quiet(bits);
    STORE(values + k * LANES, bits);
  }
}

INLINE uint32_t bf16_put_run(uint8_t *payload, const float *values,
                             float *residual, size_t count) {
  vec_u32 most = all(0);
  size_t i = 0;
  for (; i + GROUP <= count; i += GROUP)
    bf16_put(payload + 2 * i, values + i, residual ? residual + i : NULL,
             &most);
  size_t rest = count - i;
  if (!rest) return largest(most);
  float x[GROUP] = {0}, r[GROUP] = {0};
  uint8_t codes[GROUP * 2];
  memcpy(x, values + i, rest * 4);
  if (residual) memcpy(r, residual + i, rest * 4);
  bf16_put(codes, x, residual ? r : NULL, &most);
  memcpy(payload + 2 * i, codes, rest * 2);
  if (residual) memcpy(residual + i, r, rest * 4);
  return largest(most);
}

INLINE void bf16_get_run(float *values, const uint8_t *payload, size_t count,
                         bool adds) {
  size_t i = 0;
  for (; i + GROUP <= count; i += GROUP)
    bf16_get(values + i, payload + 2 * i, adds);
  size_t rest = count - i;
  if (!rest) return;
  float x[GROUP] = {0};
  uint8_t codes[GROUP * 2] = {0};
  memcpy(codes, payload + 2 * i, rest * 2);
  if (adds) memcpy(x, values + i, rest * 4);
  bf16_get(x, codes, adds);
  memcpy(values + i, x, rest * 4);
}

/* ---- fp8, a block at a time ---- */

/* A scale in two steps, each a normal number. */
typedef struct factors {
  vec_f32 first, second;
} factors;

INLINE factors powers_of_two(int first, int second) {
  return (factors){all_f32((uint32_t)(first + 127) << 23),
                   all_f32((uint32_t)(second + 127) << 23)};
}

INLINE factors encode_factors(unsigned scale) {
  int up = GBI_FP8_BIAS - (int)scale, first = GBI_MIN(up, 126);
  return powers_of_two(first, up - first);
}

INLINE factors decode_factors(unsigned scale) {
  int e = (int)scale - GBI_FP8_BIAS, second = GBI_MAX(e, -126);
  return powers_of_two(e - second, second);
}

/* Codes; *as_sent: the magnitudes that they stand for, before the scale. */
INLINE vec_u32 fp8_of(vec_f32 x, factors f, vec_f32 *as_sent) {
  vec_f32 big = all_f32(0x46800000);
  vec_u32 y = magnitude((vec_u32)(x * f.first * f.second));
  vec_u32 normal = y + 0x7ffff + ((y >> 20) & 1);
  /* 2^14 has a last place of 2^-9, as the subnormal codes have. */
  vec_f32 small = (vec_f32)y + big;
  vec_u32 is_small = ABOVE(all(0x3c800000), y);
  *as_sent =
      (vec_f32)CHOOSE(is_small, (vec_u32)(small - big), normal & 0xfff00000);
  vec_u32 code = CHOOSE(is_small, (vec_u32)small - 0x46800000,
                        (normal >> 20) - (120 << 3));
  return code | (((vec_u32)x >> 24) & 0x80);
}

INLINE vec_u32 fp8_bits(vec_u32 code, factors f) {
  vec_u32 low = code & 0x7f;
  vec_u32 normal = (low << 20) + (UINT32_C(120) << 23);
  vec_f32 small = (vec_f32)(low | 0x46800000) - all_f32(0x46800000);
  vec_u32 is_small = ABOVE(all(8), low);
  vec_f32 v = (vec_f32)CHOOSE(is_small, (vec_u32)small, normal);
  vec_u32 bits = (vec_u32)(v * f.first * f.second);
  vec_u32 nan = ABOVE(low, all(0x7e));
  return CHOOSE(nan, all(0x7fc00000), bits | ((code & 0x80) << 24));
}

INLINE uint32_t peak_of(const float *values, size_t count) {
  vec_u32 most = all(0);
  for (size_t i = 0; i < count; i += LANES) {
    vec_u32 bits;
    LOAD(bits, values + i);
    most = LARGER(most, magnitude(bits));
  }
  return largest(most);
}

/* count: whole groups. Returns the scale byte. residual: NULL, or where what
 * was lost of the values goes. */
INLINE unsigned fp8_put(uint8_t *codes, const float *values, float *residual,
                        size_t count, vec_u32 *most) {
  uint32_t peak = peak_of(values, count);
  if (peak >= 0x7f800000) {
    memset(codes, 0, count);
    if (residual) memset(residual, 0, count * 4);
    return GBI_FP8_RESERVED;
  }
  unsigned scale = gbi_fp8_scale(peak);
  factors f = encode_factors(scale), back = decode_factors(scale);
  vec_u32 seen = *most;
  for (size_t i = 0; i < count; i += GROUP) {
    vec_u32 group[4];
    EACH(k) {
      size_t at = i + (size_t)k * LANES;
      vec_f32 x, sent;
      LOAD(x, values + at);
      group[k] = fp8_of(x, f, &sent);
      if (!residual) continue;
      sent = sent * back.first * back.second;
      vec_u32 sign = (vec_u32)x & 0x80000000;
      seen = keep_rest(residual + at, x, (vec_u32)sent | sign, seen);
    }
    NARROW8(codes + i, group);
  }
  *most = seen;
  return scale;
}

INLINE void fill_nan(float *values, size_t count) {
  vec_u32 nan = all(0x7fc00000);
  for (size_t i = 0; i < count; i += LANES) STORE(values + i, nan);
}

INLINE void fp8_get(float *values, const uint8_t *codes, unsigned scale,
                    size_t count, bool adds) {
  if (scale == GBI_FP8_RESERVED) {
    fill_nan(values, count);
    return;
  }
  factors f = decode_factors(scale);
  for (size_t i = 0; i < count; i += GROUP) {
    vec_u32 group[4];
    WIDEN8(group, codes + i);
    EACH(k) {
      float *at = values + i + (size_t)k * LANES;
      vec_u32 bits = fp8_bits(group[k], f);
      if (adds) {
        vec_f32 sum;
        LOAD(sum, at);
        bits = quiet((vec_u32)(sum + (vec_f32)bits));
      }
      STORE(at, bits);
    }
  }
}

INLINE size_t groups(size_t count) {
  return (count + GROUP - 1) / GROUP * GROUP;
}

INLINE void add_up(float *out, const float *a, const float *b, size_t count) {
  for (size_t i = 0; i < count; i += LANES) {
    vec_f32 x, y;
    LOAD(x, a + i);
    LOAD(y, b + i);
    x += y;
    STORE(out + i, x);
  }
}

/* residual: NULL for none. */
INLINE void fp8_put_block(uint8_t *block, const float *values, float *residual,
                          vec_u32 *most) {
  float x[GBI_CODEC_BLOCK];
  if (residual) {
    add_up(x, values, residual, GBI_CODEC_BLOCK);
    values = x;
  }
  *block = (uint8_t)fp8_put(block + 1, values, residual, GBI_CODEC_BLOCK, most);
}

/* The last block: zeros behind it change nothing. */
INLINE void fp8_put_short(uint8_t *block, const float *values, float *residual,
                          size_t count, vec_u32 *most) {
  float x[GBI_CODEC_BLOCK] = {0}, r[GBI_CODEC_BLOCK] = {0};
  uint8_t codes[GBI_CODEC_BLOCK];
  memcpy(x, values, count * 4);
  if (residual) {
    memcpy(r, residual, count * 4);
    add_up(x, x, r, groups(count));
  }
  *block = (uint8_t)fp8_put(codes, x, residual ? r : NULL, groups(count), most);
  memcpy(block + 1, codes, count);
  if (residual) memcpy(residual, r, count * 4);
}

INLINE uint32_t fp8_put_run(uint8_t *payload, const float *values,
                            float *residual, size_t count) {
  vec_u32 most = all(0);
  for (; count >= GBI_CODEC_BLOCK; count -= GBI_CODEC_BLOCK) {
    fp8_put_block(payload, values, residual, &most);
    values += GBI_CODEC_BLOCK;
    if (residual) residual += GBI_CODEC_BLOCK;
    payload += GBI_FP8_STRIDE;
  }
  if (count) fp8_put_short(payload, values, residual, count, &most);
  return largest(most);
}

INLINE void fp8_get_run(float *values, const uint8_t *payload, size_t count,
                        bool adds) {
  for (; count >= GBI_CODEC_BLOCK; count -= GBI_CODEC_BLOCK) {
    fp8_get(values, payload + 1, *payload, GBI_CODEC_BLOCK, adds);
    values += GBI_CODEC_BLOCK;
    payload += GBI_FP8_STRIDE;
  }
  if (!count) return;
  float x[GBI_CODEC_BLOCK] = {0};
  uint8_t codes[GBI_CODEC_BLOCK] = {0};
  if (adds) memcpy(x, values, count * 4);
  memcpy(codes, payload + 1, count);
  fp8_get(x, codes, *payload, groups(count), adds);
  memcpy(values, x, count * 4);
}

/* ---- the table ---- */

#define RUNS(name)                                                            \
  TARGET static void name##_encode(uint8_t *payload, const float *values,     \
                                   size_t count) {                            \
    (void)name##_put_run(payload, values, NULL, count);                       \
  }                                                                           \
  TARGET static float name##_encode_feedback(                                 \
      uint8_t *payload, const float *values, float *residual, size_t count) { \
    uint32_t most = name##_put_run(payload, values, residual, count);         \
    float error;                                                              \
    memcpy(&error, &most, 4);                                                 \
    return error;                                                             \
  }                                                                           \
  TARGET static void name##_decode(float *values, const uint8_t *payload,     \
                                   size_t count) {                            \
    name##_get_run(values, payload, count, false);                            \
  }                                                                           \
  TARGET static void name##_add(float *sums, const uint8_t *payload,          \
                                size_t count) {                               \
    name##_get_run(sums, payload, count, true);                               \
  }
RUNS(bf16)
RUNS(fp8)

const gbi_codec_kernels KERNELS = {
    .name = KERNELS_NAME,
    .sets = {[GBI_CODEC_BF16] = {bf16_encode, bf16_encode_feedback, bf16_decode,
                                 bf16_add},
             [GBI_CODEC_FP8] = {fp8_encode, fp8_encode_feedback, fp8_decode,
                                fp8_add}},
};
