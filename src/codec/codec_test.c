/* Proves that the plain C reference gives what the formats say, by other means
 * (through double, where everything is exact): bf16 at all 2^16 upper halves
 * with each kind of rest, fp8 at every code, every midpoint and beside it, at
 * every scale; that every variant this machine has gives the reference's bits
 * for the same inputs, for noise, at odd addresses and counts, and in every
 * rounding and flushing mode; that the errors keep spec 7.4's bounds; and that
 * feedback loses nothing over time (S115, S116). All 2^32 inputs: codec_bench
 * --all. */
#include "codec/codec.h"
#include "harness/gb_test.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>

static const char *const names[] = {"portable", "avx2", "avx512", "avx512bf16",
                                    "neon"};

#define EACH_VARIANT                               \
  for (size_t v_ = 0; v_ < GBI_COUNT(names); v_++) \
    if (gbi_codec_kernels_select(names[v_]))

static float float_of(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  return bits;
}

static uint32_t noise(uint64_t i) {
  uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return (uint32_t)(x >> 32);
}

/* ---- The formats, through double ---- */

/* To nearest even with `digits` binary places after the first, not below
 * 2^least. */
static double rounded(double v, int digits, int least) {
  int e;
  frexp(v, &e);
  int unit = v == 0 || e - 1 < least ? least - digits : e - 1 - digits;
  return ldexp(nearbyint(ldexp(v, -unit)), unit);
}

static uint16_t bf16_want(float f) {
  if (isnan(f)) return 0x7fc0;
  float r = (float)(isinf(f) ? f : rounded((double)f, 7, -126));
  return (uint16_t)(bits_of(r) >> 16); /* an overflow is the infinity */
}

static double e4m3_value(uint8_t code) {
  int e = code >> 3 & 15, m = code & 7;
  double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
  if (e == 15 && m == 7) v = NAN;
  return code & 0x80 ? -v : v;
}

static uint8_t e4m3_want(double v) {
  double r = rounded(fabs(v), 3, -6);
  for (int code = 0; code < 0x7f; code++)
    if (e4m3_value((uint8_t)code) == r)
      return (uint8_t)(code | (signbit(v) ? 0x80 : 0));
  return 0x7f;
}

/* By trying: the smallest e of the range with most / 2^e <= 448. */
static int scale_want(double most) {
  if (most == 0) return 0;
  int e = -134;
  while (ldexp(most, -e) > 448) e++;
  return e;
}

/* ---- Helpers ---- */

enum { ROOM = 1 << 16 };
static uint8_t payload[ROOM * 2 + 64], expected[ROOM * 2 + 64];
static float values[ROOM + 16], out[ROOM + 16], want[ROOM + 16];
static float rest[ROOM + 16], rest_want[ROOM + 16];

static void same(const void *a, const void *b, size_t bytes, const char *what) {
  if (memcmp(a, b, bytes)) gb_test_fail(__FILE__, __LINE__, "%s differs", what);
}

/* Everything that a codec does with `count` values, against the reference. */
static void compare(gbi_codec codec, const float *in, size_t count) {
  size_t bytes = gbi_codec_bytes(codec, count);
  char what[64];
  gbi_codec_kernels_select("portable");
  gbi_codec_encode(codec, expected, in, count);
  gbi_codec_decode(codec, want, expected, count);
  for (size_t i = 0; i < count; i++)
    rest_want[i] = float_of(noise(i) & 0x83ffffff);
  static uint8_t fed[ROOM * 2 + 64], fed_want[ROOM * 2 + 64];
  static float sum[ROOM + 16], sum_want[ROOM + 16];
  memcpy(rest, rest_want, count * 4);
  float error_want =
      gbi_codec_encode_feedback(codec, fed_want, in, rest_want, count);
  memcpy(sum_want, in, count * 4);
  gbi_codec_add(codec, sum_want, fed_want, count);
  static float start[ROOM + 16];
  memcpy(start, rest, count * 4);
  EACH_VARIANT {
    snprintf(what, sizeof what, "%s %s of %zu", names[v_],
             gbi_codec_name((int)codec), count);
    memset(payload, 0x5a, bytes + 2);
    memset(out, 0x5a, (count + 1) * 4);
    gbi_codec_encode(codec, payload + 1, in, count);
    same(payload + 1, expected, bytes, what);
    GB_CHECK(payload[0] == 0x5a && payload[1 + bytes] == 0x5a);
    gbi_codec_decode(codec, out, expected, count);
    same(out, want, count * 4, what);
    GB_CHECK_INT(bits_of(out[count]), 0x5a5a5a5a);
    memcpy(rest, start, count * 4);
    float error = gbi_codec_encode_feedback(codec, fed, in, rest, count);
    same(fed, fed_want, bytes, what);
    same(rest, rest_want, count * 4, what);
    GB_CHECK_INT(bits_of(error), bits_of(error_want));
    memcpy(sum, in, count * 4);
    gbi_codec_add(codec, sum, fed, count);
    same(sum, sum_want, count * 4, what);
  }
}

/* ---- bf16 ---- */

GB_TEST(codec, bf16_all_halves) {
  static const uint32_t below[] = {0,      1,      0x7fff, 0x8000,
                                   0x8001, 0xffff, 0x1234, 0xc000};
  for (size_t k = 0; k < GBI_COUNT(below); k++) {
    for (uint32_t i = 0; i < ROOM; i++)
      values[i] = float_of(i << 16 | below[k]);
    compare(GBI_CODEC_BF16, values, ROOM);
    for (uint32_t i = 0; i < ROOM; i++) {
      uint16_t got = (uint16_t)(expected[2 * i] | expected[2 * i + 1] << 8);
      GB_CHECK_INT(got, bf16_want(values[i]));
    }
  }
  /* And back: every code is the number of its upper half. */
  for (uint32_t i = 0; i < ROOM; i++) {
    expected[2 * i] = (uint8_t)i;
    expected[2 * i + 1] = (uint8_t)(i >> 8);
  }
  EACH_VARIANT {
    gbi_codec_decode(GBI_CODEC_BF16, out, expected, ROOM);
    for (uint32_t i = 0; i < ROOM; i++) {
      uint32_t bits = isnan(float_of(i << 16)) ? 0x7fc00000 : i << 16;
      GB_CHECK_INT(bits_of(out[i]), bits);
    }
  }
}

/* ---- fp8 ---- */

/* The block of `count` values at `in`, as the format says. */
static void check_block(const float *in, size_t count, const uint8_t *block) {
  double most = 0;
  bool finite = true;
  for (size_t i = 0; i < count; i++) {
    finite &= isfinite(in[i]);
    most = fmax(most, fabs((double)in[i]));
  }
  int e = finite ? scale_want(most) : 121;
  GB_CHECK_INT(block[0], e + 134);
  for (size_t i = 0; i < count; i++)
    GB_CHECK_INT(block[i + 1],
                 finite ? e4m3_want(ldexp((double)in[i], -e)) : 0);
}

/* Every positive code, midpoint and its neighbours times 2^e, with 448 * 2^e
 * in front; odd ones negative. */
static size_t borders(float *to, int e) {
  size_t n = 0;
  for (int code = 0; code < 0x7e; code++)
    for (int half = 0; half < 2; half++)
      for (int d = -1; d < 2; d++) {
        if (n % 256 == 0) to[n++] = ldexpf(448, e);
        double low = e4m3_value((uint8_t)code);
        double v = half ? (low + e4m3_value((uint8_t)(code + 1))) / 2 : low;
        uint32_t bits = bits_of((float)ldexp(v, e));
        to[n] = float_of(bits ? bits + (uint32_t)d : 0);
        if (n % 2) to[n] = -to[n];
        n++;
      }
  return n;
}

GB_TEST(codec, fp8_borders_at_every_scale, .timeout_ms = 120000) {
  for (int e = -134; e <= 119; e++) {
    size_t n = borders(values, e);
    compare(GBI_CODEC_FP8, values, n);
    for (size_t at = 0, k = 0; at < n; at += 256, k++)
      check_block(values + at, GBI_MIN(n - at, 256), expected + k * 257);
  }
}

GB_TEST(codec, fp8_all_codes_at_every_scale) {
  static uint8_t blocks[256 * 257];
  for (int scale = 0; scale < 256; scale++) {
    blocks[scale * 257] = (uint8_t)scale;
    for (int code = 0; code < 256; code++)
      blocks[scale * 257 + 1 + code] = (uint8_t)code;
  }
  EACH_VARIANT {
    for (int i = 0; i < ROOM; i++) want[i] = out[i] = 1.5f;
    gbi_codec_add(GBI_CODEC_FP8, want, blocks, ROOM);
    gbi_codec_decode(GBI_CODEC_FP8, out, blocks, ROOM);
    for (int i = 0; i < ROOM; i++) {
      float v = (float)ldexp(e4m3_value((uint8_t)i), (i >> 8) - 134);
      bool nan = isnan(v) || i >> 8 == 255;
      float sum = v + 1.5f;
      GB_CHECK_INT(bits_of(out[i]), nan ? 0x7fc00000 : bits_of(v));
      GB_CHECK_INT(bits_of(want[i]), nan ? 0x7fc00000 : bits_of(sum));
    }
  }
}

GB_TEST(codec, fp8_special_blocks) {
  static const uint32_t peaks[] = {
      0,          0x80000000, 1,          0x80000001, 0x007fffff,
      0x00800000, 0x00e00000, 0x00e00001, 0x43e00000, 0x43e00001,
      0x3f800000, 0x7f7fffff, 0xff7fffff, 0x7f600000, 0x7f600001,
      0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc12345};
  for (size_t k = 0; k < GBI_COUNT(peaks); k++)
    for (size_t at = 0; at < 256; at += 51) {
      memset(values, 0, 256 * 4);
      values[255 - at] = float_of(peaks[k] & 0x80ffffff);
      values[at] = float_of(peaks[k]);
      compare(GBI_CODEC_FP8, values, 256);
      check_block(values, 256, expected);
      compare(GBI_CODEC_BF16, values, 256);
    }
}

/* S115: equal small whole numbers and zeros stay exact; 1.0 beside 448. */
GB_TEST(codec, fp8_exact_values) {
  EACH_VARIANT {
    for (int i = 0; i < 1024; i++) values[i] = i < 256 ? 0 : (float)(i / 256);
    values[700] = 448;
    gbi_codec_encode(GBI_CODEC_FP8, payload, values, 1024);
    gbi_codec_decode(GBI_CODEC_FP8, out, payload, 1024);
    for (int i = 0; i < 1024; i++) GB_CHECK(out[i] == values[i]);
  }
}

/* ---- Both ---- */

/* Numbers of all magnitudes; mostly of one, as gradients are. */
static void fill(size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i++) {
    uint32_t bits = noise(seed + i);
    bool wild = noise(seed / 256 + i / 256) % 4 == 0;
    values[i] = float_of(wild ? bits : (bits & 0x83ffffff) + 0x38000000);
  }
}

GB_TEST(codec, variants_agree_on_noise, .timeout_ms = 120000) {
  for (uint64_t round = 0; round < 12; round++) {
    fill(ROOM, round * ROOM);
    compare(GBI_CODEC_BF16, values, ROOM - round);
    compare(GBI_CODEC_FP8, values, ROOM - round);
  }
}

GB_TEST(codec, short_runs) {
  fill(1100, 5);
  for (size_t n = 0; n < 600; n++) {
    compare(GBI_CODEC_BF16, values + n % 7, n);
    compare(GBI_CODEC_FP8, values + n % 7, n);
  }
  /* A caller's buffer may lie at an odd address. */
  const float *odd = (const float *)((uintptr_t)values + 1);
  compare(GBI_CODEC_BF16, odd, 700);
  compare(GBI_CODEC_FP8, odd, 700);
}

static void check_bound(gbi_codec codec, const float *in, const float *got,
                        size_t count) {
  double most = 0;
  for (size_t i = 0; i < count; i++) {
    double v = fabs((double)in[i]);
    if (v > most) most = v;
  }
  for (size_t i = 0; i < count; i++) {
    double v = fabs((double)in[i]), error = fabs((double)in[i] - got[i]);
    double bound = codec == GBI_CODEC_BF16
                       ? ldexp(v, -8)
                       : fmax(ldexp(v, -4), ldexp(most, -10) / 224);
    if (error > bound)
      gb_test_fail(__FILE__, __LINE__, "%a became %a, block maximum %a",
                   (double)in[i], (double)got[i], most);
  }
}

GB_TEST(codec, errors_keep_the_bounds) {
  for (uint64_t round = 0; round < 8; round++) {
    for (size_t i = 0; i < ROOM; i++) {
      uint32_t bits = noise(round * ROOM + i);
      /* Block by block another range: 2^-100 to 2^100, 32 powers wide. */
      uint32_t base = 27 + noise(i / 256 + round) % 170;
      values[i] =
          float_of((bits & 0x807fffff) | (base + (bits >> 26 & 31)) << 23);
    }
    for (int codec = GBI_CODEC_BF16; codec < GBI_CODECS; codec++) {
      gbi_codec_encode((gbi_codec)codec, payload, values, ROOM);
      gbi_codec_decode((gbi_codec)codec, out, payload, ROOM);
      for (size_t at = 0; at < ROOM; at += 256)
        check_bound((gbi_codec)codec, values + at, out + at, 256);
    }
  }
}

/* What arrives over many steps adds up to what was given; without feedback it
 * stays off by the same amount each time. */
GB_TEST(codec, feedback_loses_nothing) {
  enum { N = 300, STEPS = 500 };
  EACH_VARIANT for (int codec = GBI_CODEC_BF16; codec < GBI_CODECS; codec++) {
    double with[N] = {0}, without[N] = {0};
    memset(rest, 0, sizeof rest);
    for (int i = 0; i < N; i++) values[i] = 1 + (float)i / 997;
    for (int step = 0; step < STEPS; step++) {
      float most =
          gbi_codec_encode_feedback((gbi_codec)codec, payload, values, rest, N);
      gbi_codec_decode((gbi_codec)codec, out, payload, N);
      float seen = 0;
      for (int i = 0; i < N; i++) {
        with[i] += out[i];
        seen = fmaxf(seen, fabsf(rest[i]));
      }
      GB_CHECK(seen == most);
      gbi_codec_encode((gbi_codec)codec, payload, values, N);
      gbi_codec_decode((gbi_codec)codec, out, payload, N);
      for (int i = 0; i < N; i++) without[i] += out[i];
    }
    double off = 0;
    for (int i = 0; i < N; i++) {
      double v = (double)values[i] * STEPS;
      GB_CHECK(fabs(with[i] - v) < 0.07 + 1e-3); /* one step's, not 500 */
      off = fmax(off, fabs(without[i] - v));
    }
    GB_CHECK(off > 0.5);
  }
}

/* A NaN leaves nothing behind: the step after it is clean (S116). */
GB_TEST(codec, feedback_forgets_what_is_not_finite) {
  EACH_VARIANT for (int codec = GBI_CODEC_BF16; codec < GBI_CODECS; codec++) {
    memset(rest, 0, sizeof rest);
    for (int i = 0; i < 600; i++) values[i] = 1;
    values[3] = NAN;
    values[300] = INFINITY;
    values[599] = float_of(0x7f7fffff); /* rounds to infinity */
    (void)gbi_codec_encode_feedback((gbi_codec)codec, payload, values, rest,
                                    600);
    gbi_codec_decode((gbi_codec)codec, out, payload, 600);
    GB_CHECK_INT(bits_of(out[3]), 0x7fc00000);
    GB_CHECK(!isfinite(out[300]) && isinf(out[599]));
    GB_CHECK(codec == GBI_CODEC_BF16 ? out[0] == 1 : isnan(out[0]));
    for (int i = 0; i < 600; i++) {
      GB_CHECK(isfinite(rest[i]));
      values[i] = 1;
    }
    memset(rest + 512, 0, 88 * 4); /* 1.0 beside FLT_MAX was lost, and kept */
    GB_CHECK(gbi_codec_encode_feedback((gbi_codec)codec, payload, values, rest,
                                       600) == 0);
    gbi_codec_decode((gbi_codec)codec, out, payload, 600);
    for (int i = 0; i < 600; i++) GB_CHECK(out[i] == 1);
  }
}

/* The caller's thread may round upwards or flush denormals. */
GB_TEST(codec, modes_of_the_thread) {
  fill(ROOM, 99);
  for (int codec = GBI_CODEC_BF16; codec < GBI_CODECS; codec++) {
    gbi_codec_kernels_select("portable");
    gbi_codec_encode((gbi_codec)codec, expected, values, ROOM);
    memcpy(want, values, ROOM * 4);
    gbi_codec_add((gbi_codec)codec, want, expected, ROOM);
    EACH_VARIANT {
      fesetround(FE_UPWARD);
#if defined(__x86_64__)
      unsigned mode = __builtin_ia32_stmxcsr();
      __builtin_ia32_ldmxcsr(mode | 0x8040); /* flush, in and out */
#endif
      gbi_codec_encode((gbi_codec)codec, payload, values, ROOM);
      memcpy(out, values, ROOM * 4);
      gbi_codec_add((gbi_codec)codec, out, payload, ROOM);
      GB_CHECK_INT(fegetround(), FE_UPWARD);
#if defined(__x86_64__)
      GB_CHECK_INT(__builtin_ia32_stmxcsr() & 0x8040, 0x8040);
      __builtin_ia32_ldmxcsr(mode);
#endif
      fesetround(FE_TONEAREST);
      same(payload, expected, gbi_codec_bytes((gbi_codec)codec, ROOM), "mode");
      same(out, want, ROOM * 4, "sum in another mode");
    }
  }
}

GB_TEST(codec, names_and_sizes) {
  GB_CHECK_INT(gbi_codec_find("bf16"), GBI_CODEC_BF16);
  GB_CHECK_INT(gbi_codec_find("fp8"), GBI_CODEC_FP8);
  GB_CHECK_INT(gbi_codec_find("off"), GBI_CODEC_NONE);
  GB_CHECK_INT(gbi_codec_find("zstd"), GBI_CODEC_NONE);
  GB_CHECK(!gbi_codec_name(-1) && !gbi_codec_name(GBI_CODECS));
  GB_CHECK_INT(gbi_codec_bytes(GBI_CODEC_BF16, 5), 10);
  GB_CHECK_INT(gbi_codec_bytes(GBI_CODEC_FP8, 0), 0);
  GB_CHECK_INT(gbi_codec_bytes(GBI_CODEC_FP8, 256), 257);
  GB_CHECK_INT(gbi_codec_bytes(GBI_CODEC_FP8, 257), 259);
  GB_CHECK(!gbi_codec_kernels_select("mmx"));
  GB_CHECK(gbi_codec_kernels_select("portable"));
  GB_CHECK_TEXT(gbi_codec_kernels_name(), "portable");
}
