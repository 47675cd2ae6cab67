/* Proves that every variant this machine has gives, for every input, the bits
 * of a plain scalar reference that is written here by other means (through
 * double, where float16 and bfloat16 are exact): all 2^16 halves against a set
 * of partners, special and random values for the rest, at odd addresses and
 * counts (S071, S073, S074, S075, S077). */
#include "device/host/reduce.h"
#include "harness/gb_test.h"

#include <math.h>
#include <stdlib.h>

static const char *const names[] = {"portable", "avx2", "avx512", "neon"};
static const gb_redop ops[] = {GB_SUM, GB_MAX, GB_MIN};

/* ---- reference ---- */

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

static double half_value(uint16_t h, gb_dtype dtype) {
  if (dtype == GB_BFLOAT16) return float_of((uint32_t)h << 16);
  int e = h >> 10 & 31, m = h & 1023;
  double v = e == 31 ? (m ? NAN : INFINITY)
                     : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
  return h & 0x8000 ? -v : v;
}

/* Nearest, ties to even, from a double, which is exact for what comes in. */
static uint16_t half_of(double v, gb_dtype dtype) {
  int digits = dtype == GB_FLOAT16 ? 10 : 7;
  int bias = dtype == GB_FLOAT16 ? 15 : 127, most = 2 * bias;
  if (isnan(v)) return dtype == GB_FLOAT16 ? 0x7e00 : 0x7fc0;
  uint16_t sign = signbit(v) ? 0x8000 : 0;
  v = fabs(v);
  uint16_t inf = (uint16_t)((most + 1) << digits);
  if (isinf(v)) return sign | inf;
  int e;
  frexp(v, &e);
  int exponent = v == 0 || e - 1 < 1 - bias ? 1 - bias : e - 1;
  double units = ldexp(v, digits - exponent); /* in last places */
  double whole = nearbyint(units);
  unsigned bits = (unsigned)whole;
  /* Subnormals carry over into the exponent by themselves. */
  if (exponent > 1 - bias || bits >= 1u << digits)
    bits += (unsigned)(exponent + bias - 1) << digits;
  return sign | (uint16_t)GBI_MIN(bits, inf);
}

static float canonical(float f) { return isnan(f) ? float_of(0x7fc00000) : f; }

static double combine_ref(double a, double b, gb_redop op) {
  if (op == GB_SUM) return a + b;
  if (isnan(a) || isnan(b)) return NAN;
  if (a == b) {
    bool minus = op == GB_MAX ? signbit(a) && signbit(b)
                              : signbit(a) || signbit(b);
    return a == 0 ? (minus ? -0.0 : 0.0) : a;
  }
  return (op == GB_MAX) == (a > b) ? a : b;
}

static uint16_t half_ref(uint16_t a, uint16_t b, gb_dtype dtype, gb_redop op) {
  /* float32 first, as the contract says. */
  float f = (float)combine_ref(half_value(a, dtype), half_value(b, dtype), op);
  return half_of(canonical(f), dtype);
}

/* Runs `body` once per variant of this machine. */
#define EACH_VARIANT                                                           \
  for (size_t v_ = 0; v_ < GBI_COUNT(names); v_++)                             \
    if (gbi_kernels_select(names[v_]))

/* ---- halves ---- */

static const uint16_t partners[] = {
    0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x8400, 0x3c00, 0xbc00,
    0x3c01, 0x1400, 0x1000, 0x6800, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01,
    0x7e00, 0xfe01, 0x3555, 0x4248, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
    0x7f81, 0x3f80, 0x3f81, 0x4300, 0x3b80, 0x0040, 0x8040};

static void all_halves(gb_dtype dtype) {
  static uint16_t a[65536 + 8], b[65536 + 8], got[65536 + 8];
  for (uint32_t i = 0; i < 65536; i++) a[i] = (uint16_t)i;
  for (size_t p = 0; p < GBI_COUNT(partners); p++) {
    for (uint32_t i = 0; i < 65536; i++) b[i] = partners[p];
    for (size_t o = 0; o < GBI_COUNT(ops); o++) {
      static uint16_t want[65536];
      for (uint32_t i = 0; i < 65536; i++)
        want[i] = half_ref(a[i], b[i], dtype, ops[o]);
      EACH_VARIANT {
        gbi_combine_kernel(dtype, ops[o])(got, a, b, 65536);
        for (uint32_t i = 0; i < 65536; i++)
          if (got[i] != want[i])
            gb_test_fail(__FILE__, __LINE__, "%s %s %s: %#x, %#x gave %#x, "
                         "not %#x", names[v_], gb_dtype_name(dtype),
                         gb_redop_name(ops[o]), a[i], b[i], got[i], want[i]);
        memcpy(got, b, sizeof b);
        gbi_reduce_kernel(dtype, ops[o])(got, a, 65536);
        GB_CHECK(!memcmp(got, want, sizeof want));
      }
    }
  }
}

GB_TEST(reduce, all_float16) { all_halves(GB_FLOAT16); }
GB_TEST(reduce, all_bfloat16) { all_halves(GB_BFLOAT16); }

GB_TEST(reduce, float16_sums_of_s073) {
  /* 1+2^-11, 1+3*2^-11, 2048+1, max+max, least+least */
  static const uint16_t a[] = {0x3c00, 0x3c00, 0x6800, 0x7bff, 0x0001};
  static const uint16_t b[] = {0x1000, 0x1600, 0x3c00, 0x7bff, 0x0001};
  static const uint16_t want[] = {0x3c00, 0x3c02, 0x6800, 0x7c00, 0x0002};
  EACH_VARIANT {
    uint16_t got[5];
    gbi_combine_kernel(GB_FLOAT16, GB_SUM)(got, a, b, 5);
    for (int i = 0; i < 5; i++) GB_CHECK_INT(got[i], want[i]);
  }
}

GB_TEST(reduce, widen_narrow_divide) {
  static uint16_t half[65536], got[65536];
  static float wide[65536], in[65536];
  static const int divisors[] = {1, 2, 3, 4, 7, 8, 1000};
  for (uint32_t i = 0; i < 65536; i++) half[i] = (uint16_t)i;
  for (int dtype = GB_FLOAT16; dtype <= GB_BFLOAT16; dtype++)
    EACH_VARIANT {
      gbi_widen(wide, half, 65536, (gb_dtype)dtype);
      for (uint32_t i = 0; i < 65536; i++) {
        float v = canonical((float)half_value(half[i], (gb_dtype)dtype));
        GB_CHECK_INT(bits_of(wide[i]), bits_of(v));
      }
      for (size_t d = 0; d < GBI_COUNT(divisors); d++) {
        float by = (float)divisors[d];
        memcpy(got, half, sizeof got);
        gbi_divide(got, 65535, (gb_dtype)dtype, divisors[d]);
        for (uint32_t i = 0; i < 65535; i++)
          GB_CHECK_INT(got[i], half_of(canonical(wide[i] / by),
                                       (gb_dtype)dtype));
        /* Sums beyond a half's range, and every low bit. */
        for (uint32_t i = 0; i < 65536; i++)
          in[i] = float_of(i * 65521u + (uint32_t)d * 77);
        gbi_narrow_divide(got, in, 65533, (gb_dtype)dtype, divisors[d]);
        for (uint32_t i = 0; i < 65533; i++)
          GB_CHECK_INT(got[i], half_of(canonical(in[i] / by),
                                       (gb_dtype)dtype));
      }
    }
  /* S074: the mean of what cannot be summed. */
  float sum = 4 * 30000.0f;
  gbi_narrow_divide(half, &sum, 1, GB_FLOAT16, 4);
  GB_CHECK_INT(half[0], half_of(30000, GB_FLOAT16));
}

/* ---- the rest ---- */

static uint64_t mix(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

static const uint64_t specials[] = {
    0, UINT64_C(0x8000000000000000), 1, UINT64_C(0x8000000000000001),
    UINT64_C(0x7ff0000000000000), UINT64_C(0xfff0000000000000),
    UINT64_C(0x7ff0000000000001), UINT64_C(0xfff8000000000123),
    UINT64_C(0x7fefffffffffffff), UINT64_C(0xffefffffffffffff),
    UINT64_C(0x3ff0000000000000), UINT64_C(0x000fffffffffffff),
    UINT64_C(0x0010000000000000), UINT64_C(0x7fffffffffffffff), UINT64_MAX,
    UINT64_C(0x7f8000017f800000), UINT64_C(0xff80000080000000),
    UINT64_C(0x0000000100000001), UINT64_C(0x8000000180000001),
    UINT64_C(0x7f7fffff007fffff), UINT64_C(0xffc0123400800000),
    UINT64_C(0x7f7f80ff017f8001), UINT64_C(0x4b8000003f800000)};
enum { SPECIALS = GBI_COUNT(specials) };

static void reference(uint8_t *out, const uint8_t *a, const uint8_t *b,
                      gb_dtype dtype, gb_redop op) {
  int64_t x = 0, y = 0;
  size_t bytes = gb_dtype_bytes(dtype);
  switch (dtype) {
    case GB_FLOAT32: {
      float f, g;
      memcpy(&f, a, 4);
      memcpy(&g, b, 4);
      f = op == GB_SUM ? f + g : (float)combine_ref(f, g, op);
      f = canonical(f);
      memcpy(out, &f, 4);
      return;
    }
    case GB_FLOAT64: {
      double f, g;
      memcpy(&f, a, 8);
      memcpy(&g, b, 8);
      f = combine_ref(f, g, op);
      uint64_t nan = UINT64_C(0x7ff8000000000000);
      memcpy(out, isnan(f) ? (void *)&nan : (void *)&f, 8);
      return;
    }
    case GB_INT8: x = *(const int8_t *)a, y = *(const int8_t *)b; break;
    case GB_UINT8: x = *a, y = *b; break;
    case GB_INT32: {
      int32_t p, q;
      memcpy(&p, a, 4);
      memcpy(&q, b, 4);
      x = p, y = q;
      break;
    }
    default:
      memcpy(&x, a, 8);
      memcpy(&y, b, 8);
  }
  int64_t r = op == GB_SUM ? (int64_t)((uint64_t)x + (uint64_t)y)
              : op == GB_MAX ? GBI_MAX(x, y) : GBI_MIN(x, y);
  memcpy(out, &r, bytes); /* little-endian: the low bytes */
}

static void check_type(gb_dtype dtype) {
  static uint64_t a[SPECIALS * SPECIALS + 4096], b[GBI_COUNT(a)],
      want[GBI_COUNT(a)];
  static uint8_t got[sizeof a + 64];
  size_t bytes = gb_dtype_bytes(dtype), count = sizeof a / bytes;
  for (size_t i = 0; i < GBI_COUNT(a); i++) {
    bool special = i < SPECIALS * SPECIALS;
    a[i] = special ? specials[i / SPECIALS] : mix(i);
    b[i] = special ? specials[i % SPECIALS] : mix(i + 77777);
  }
  for (size_t o = 0; o < GBI_COUNT(ops); o++) {
    for (size_t i = 0; i < count; i++)
      reference((uint8_t *)want + i * bytes, (uint8_t *)a + i * bytes,
                (uint8_t *)b + i * bytes, dtype, ops[o]);
    EACH_VARIANT for (size_t shift = 0; shift < 4; shift++) {
      /* Odd addresses and counts that leave every kind of rest. */
      size_t n = count - shift * 5 - 1;
      memset(got, 0x5a, sizeof got);
      memcpy(got + shift, a, n * bytes);
      gbi_reduce_kernel(dtype, ops[o])(got + shift, b, n);
      if (memcmp(got + shift, want, n * bytes))
        gb_test_fail(__FILE__, __LINE__, "%s %s %s shift %zu differs",
                     names[v_], gb_dtype_name(dtype), gb_redop_name(ops[o]),
                     shift);
      GB_CHECK(got[shift + n * bytes] == 0x5a);
      /* out may be b. */
      memcpy(got + shift, b, n * bytes);
      gbi_combine_kernel(dtype, ops[o])(got + shift, a, got + shift, n);
      GB_CHECK(!memcmp(got + shift, want, n * bytes));
    }
  }
}

GB_TEST(reduce, other_types) {
  static const gb_dtype types[] = {GB_INT8, GB_UINT8, GB_INT32,
                                   GB_INT64, GB_FLOAT32, GB_FLOAT64};
  for (size_t t = 0; t < GBI_COUNT(types); t++) check_type(types[t]);
}

GB_TEST(reduce, every_short_count) {
  for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++)
    EACH_VARIANT for (size_t n = 0; n < 200; n++) {
      uint8_t a[1700], b[1700];
      size_t bytes = n * gb_dtype_bytes((gb_dtype)dtype);
      memset(a, 0, sizeof a);
      memset(b, 0, sizeof b);
      a[bytes + 1] = 0x11;
      gbi_reduce_kernel((gb_dtype)dtype, GB_SUM)(a + 1, b + 1, n);
      gbi_divide(a + 1, n, (gb_dtype)dtype, 3);
      for (size_t i = 0; i <= bytes; i++) GB_CHECK_INT(a[i], 0);
      GB_CHECK_INT(a[bytes + 1], 0x11);
    }
}

GB_TEST(reduce, float_division) {
  float f[] = {1, -3, INFINITY, NAN, 1e-45f, 3.4e38f, 0.0f, -0.0f, 10};
  double d[] = {1, -3, INFINITY, -NAN, 5e-324, 1e308, 0.0, -0.0, 10};
  EACH_VARIANT {
    float g[9];
    double e[9];
    memcpy(g, f, sizeof f);
    memcpy(e, d, sizeof d);
    gbi_divide(g, 9, GB_FLOAT32, 3);
    gbi_divide(e, 9, GB_FLOAT64, 3);
    for (int i = 0; i < 9; i++) {
      GB_CHECK_INT(bits_of(g[i]), bits_of(canonical(f[i] / 3)));
      double want = d[i] / 3;
      if (i != 3) GB_CHECK(!memcmp(&e[i], &want, 8));
    }
    int32_t whole = 7;
    gbi_divide(&whole, 1, GB_INT32, 2);
    GB_CHECK_INT(whole, 7);
  }
}

GB_TEST(reduce, names_and_refusals) {
  GB_CHECK(!gbi_kernels_select("mmx"));
  GB_CHECK(gbi_kernels_select("portable"));
  GB_CHECK_TEXT(gbi_kernels_name(), "portable");
  GB_CHECK(!gbi_reduce_kernel(GB_FLOAT32, GB_AVG));
  GB_CHECK(!gbi_combine_kernel((gb_dtype)99, GB_SUM));
}
