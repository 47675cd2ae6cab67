/* The plain C that defines every payload. Conversions are done with whole
 * numbers only; what is floating is one addition or subtraction a value. */
#include "codec/kernels.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}

static float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

/* Callers' buffers may lie at any byte. */
static float get(const float *values, size_t i) {
  float f;
  memcpy(&f, values + i, 4);
  return f;
}

static void put(float *values, size_t i, float f) {
  memcpy(values + i, &f, 4);
}

static const uint32_t infinity = 0x7f800000, quiet_nan = 0x7fc00000;

static uint32_t magnitude(float f) {
  return bits_of(f) & 0x7fffffff;
}

/* Which NaN comes out of an addition differs between processors. */
static float sum_of(float a, float b) {
  float sum = a + b;
  return magnitude(sum) > infinity ? float_of(quiet_nan) : sum;
}

/* What is lost of x; 0 where that is not finite. */
static float lost(float x, float sent, uint32_t *most) {
  float rest = x - sent;
  if (magnitude(rest) >= infinity) return 0;
  *most = GBI_MAX(*most, magnitude(rest));
  return rest;
}

/* value * 2^-shift, to nearest even. */
static uint32_t round_shift(uint32_t value, int shift) {
  if (shift > 25) return 0;
  uint32_t half = UINT32_C(1) << (shift - 1), odd = value >> shift & 1;
  return (value + half - 1 + odd) >> shift;
}

/* ---- bf16 ---- */

static uint16_t bf16_of(float f) {
  if (magnitude(f) > infinity) return 0x7fc0;
  uint32_t bits = bits_of(f);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bf16_value(uint16_t code) {
  uint32_t bits = (uint32_t)code << 16;
  return (bits & 0x7fffffff) > infinity ? float_of(quiet_nan) : float_of(bits);
}

static void bf16_put(uint8_t *at, uint16_t code) {
  at[0] = (uint8_t)code;
  at[1] = (uint8_t)(code >> 8);
}

static float bf16_get(const uint8_t *at) {
  return bf16_value((uint16_t)(at[0] | at[1] << 8));
}

static void bf16_encode(uint8_t *payload, const float *values, size_t count) {
  for (size_t i = 0; i < count; i++)
    bf16_put(payload + 2 * i, bf16_of(get(values, i)));
}

static float bf16_encode_feedback(uint8_t *payload, const float *values,
                                  float *residual, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; i++) {
    float x = get(values, i) + get(residual, i);
    bf16_put(payload + 2 * i, bf16_of(x));
    put(residual, i, lost(x, bf16_value(bf16_of(x)), &most));
  }
  return float_of(most);
}

static void bf16_decode(float *values, const uint8_t *payload, size_t count) {
  for (size_t i = 0; i < count; i++) put(values, i, bf16_get(payload + 2 * i));
}

static void bf16_add(float *sums, const uint8_t *payload, size_t count) {
  for (size_t i = 0; i < count; i++)
    put(sums, i, sum_of(get(sums, i), bf16_get(payload + 2 * i)));
}

/* ---- fp8 ---- */

/* The code of x / 2^e, which is at most 448. */
static uint8_t fp8_of(float x, int e) {
  uint32_t bits = magnitude(x);
  uint8_t sign = (uint8_t)(bits_of(x) >> 24 & 0x80);
  if (!bits) return sign;
  int place = (int)(bits >> 23); /* the value is whole * 2^(place - 150) */
  uint32_t whole = (bits & 0x7fffff) | 0x800000;
  if (!place) {
    place = 1;
    for (whole = bits; whole < 0x800000; whole *= 2) place--;
  }
  int exponent =
      place - 127 - e; /* the value / 2^e is in 2^exponent * [1, 2) */
  int coarse = GBI_MAX(exponent, -6);
  uint32_t units = round_shift(whole, 20 + coarse - exponent);
  /* A carry of the fraction goes over into the exponent by itself. */
  return (uint8_t)((((unsigned)(coarse + 6) << 3) + units) | sign);
}

static float fp8_value(uint8_t code, int e) {
  int low = code & 0x7f, exponent = low >> 3, units = low & 7;
  if (low == 0x7f) return float_of(quiet_nan);
  if (exponent) units += 8;
  float value = ldexpf((float)units, GBI_MAX(exponent, 1) - 10 + e);
  return code & 0x80 ? -value : value;
}

static void fp8_block(uint8_t *block, const float *values, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; i++)
    most = GBI_MAX(most, magnitude(get(values, i)));
  bool finite = most < infinity;
  *block = finite ? (uint8_t)gbi_fp8_scale(most) : GBI_FP8_RESERVED;
  for (size_t i = 0; i < count; i++)
    block[i + 1] = finite ? fp8_of(get(values, i), *block - GBI_FP8_BIAS) : 0;
}

static float fp8_get(const uint8_t *block, size_t i) {
  if (*block == GBI_FP8_RESERVED) return float_of(quiet_nan);
  return fp8_value(block[i + 1], *block - GBI_FP8_BIAS);
}

static void fp8_encode(uint8_t *payload, const float *values, size_t count) {
  for (size_t at = 0; at < count; at += GBI_CODEC_BLOCK) {
    fp8_block(payload, values + at, GBI_MIN(count - at, GBI_CODEC_BLOCK));
    payload += GBI_FP8_STRIDE;
  }
}

static float fp8_encode_feedback(uint8_t *payload, const float *values,
                                 float *residual, size_t count) {
  uint32_t most = 0;
  for (size_t at = 0; at < count; at += GBI_CODEC_BLOCK) {
    float x[GBI_CODEC_BLOCK];
    size_t n = GBI_MIN(count - at, GBI_CODEC_BLOCK);
    for (size_t i = 0; i < n; i++)
      x[i] = get(values, at + i) + get(residual, at + i);
    fp8_block(payload, x, n);
    for (size_t i = 0; i < n; i++)
      put(residual, at + i, lost(x[i], fp8_get(payload, i), &most));
    payload += GBI_FP8_STRIDE;
  }
  return float_of(most);
}

static float fp8_at(const uint8_t *payload, size_t i) {
  return fp8_get(payload + i / GBI_CODEC_BLOCK * GBI_FP8_STRIDE,
                 i % GBI_CODEC_BLOCK);
}

static void fp8_decode(float *values, const uint8_t *payload, size_t count) {
  for (size_t i = 0; i < count; i++) put(values, i, fp8_at(payload, i));
}

static void fp8_add(float *sums, const uint8_t *payload, size_t count) {
  for (size_t i = 0; i < count; i++)
    put(sums, i, sum_of(get(sums, i), fp8_at(payload, i)));
}

const gbi_codec_kernels gbi_codec_portable = {
    .name = "portable",
    .sets = {[GBI_CODEC_BF16] = {bf16_encode, bf16_encode_feedback, bf16_decode,
                                 bf16_add},
             [GBI_CODEC_FP8] = {fp8_encode, fp8_encode_feedback, fp8_decode,
                                fp8_add}},
};
