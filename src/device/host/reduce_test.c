/* Proves that every variant this machine has gives, for every input, the bits
 * of a plain scalar reference that is written here by other means (through
 * double, where float16 and bfloat16 are exact): all 2^16 halves against a set
 * of partners, special and random values for the rest, at odd addresses and
 * counts (S071, S073, S074, S075, S077); that a type has a kernel exactly for
 * the reductions it supports; and that the way to the wide type and back rounds
 * once, for float8 at every code, every midpoint and beside it (S083). */
#include "device/host/reduce.h"
#include "harness/gb_test.h"

#include <math.h>
#include <stdlib.h>

static const char *const names[] = {"portable", "avx2", "avx512", "neon"};
static const gb_redop ops[] = {GB_SUM,  GB_MAX, GB_MIN, GB_PRODUCT,
                               GB_BAND, GB_BOR, GB_BXOR};
enum { FLOAT_OPS = 4 }; /* the first ones */

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
             : e     ? ldexp(1024 + m, e - 25)
                     : ldexp(m, -24);
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

static float canonical(float f) {
  return isnan(f) ? float_of(0x7fc00000) : f;
}

static double combine_ref(double a, double b, gb_redop op) {
  if (op == GB_SUM) return a + b;
  if (op == GB_PRODUCT) return a * b;
  if (isnan(a) || isnan(b)) return NAN;
  if (a == b) {
    bool minus =
        op == GB_MAX ? signbit(a) && signbit(b) : signbit(a) || signbit(b);
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
#define EACH_VARIANT                               \
  for (size_t v_ = 0; v_ < GBI_COUNT(names); v_++) \
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
    for (size_t o = 0; o < FLOAT_OPS; o++) {
      static uint16_t want[65536];
      for (uint32_t i = 0; i < 65536; i++)
        want[i] = half_ref(a[i], b[i], dtype, ops[o]);
      EACH_VARIANT {
        gbi_combine_kernel(dtype, ops[o])(got, a, b, 65536);
        for (uint32_t i = 0; i < 65536; i++)
          if (got[i] != want[i])
            gb_test_fail(__FILE__, __LINE__,
                         "%s %s %s: %#x, %#x gave %#x, "
                         "not %#x",
                         names[v_], gb_dtype_name(dtype), gb_redop_name(ops[o]),
                         a[i], b[i], got[i], want[i]);
        memcpy(got, b, sizeof b);
        gbi_reduce_kernel(dtype, ops[o])(got, a, 65536);
        GB_CHECK(!memcmp(got, want, sizeof want));
      }
    }
  }
}

GB_TEST(reduce, all_float16) {
  all_halves(GB_FLOAT16);
}
GB_TEST(reduce, all_bfloat16) {
  all_halves(GB_BFLOAT16);
}

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

GB_TEST(reduce, halves_wide_and_back) {
  static uint16_t half[65536], got[65536];
  static float wide[65536], in[65536];
  static const int divisors[] = {1, 2, 3, 4, 7, 8, 1000};
  for (uint32_t i = 0; i < 65536; i++) half[i] = (uint16_t)i;
  for (int dtype = GB_FLOAT16; dtype <= GB_BFLOAT16; dtype++) EACH_VARIANT {
      gbi_wide_load(wide, half, 65533, (gb_dtype)dtype, 0.1);
      for (uint32_t i = 0; i < 65533; i++) {
        float v = (float)half_value(half[i], (gb_dtype)dtype) * (float)0.1;
        GB_CHECK_INT(bits_of(wide[i]), bits_of(canonical(v)));
      }
      gbi_wide_load(wide, half, 65536, (gb_dtype)dtype, 1);
      for (uint32_t i = 0; i < 65536; i++) {
        float v = canonical((float)half_value(half[i], (gb_dtype)dtype));
        GB_CHECK_INT(bits_of(wide[i]), bits_of(v));
      }
      for (size_t d = 0; d < GBI_COUNT(divisors); d++) {
        float by = (float)divisors[d];
        memcpy(got, half, sizeof got);
        gbi_divide(got, 65535, (gb_dtype)dtype, divisors[d]);
        for (uint32_t i = 0; i < 65535; i++)
          GB_CHECK_INT(got[i],
                       half_of(canonical(wide[i] / by), (gb_dtype)dtype));
        /* Sums beyond a half's range, and every low bit. */
        for (uint32_t i = 0; i < 65536; i++)
          in[i] = float_of(i * 65521u + (uint32_t)d * 77);
        gbi_wide_store(got, in, 65533, (gb_dtype)dtype, divisors[d]);
        for (uint32_t i = 0; i < 65533; i++)
          GB_CHECK_INT(got[i], half_of(canonical(in[i] / by), (gb_dtype)dtype));
      }
    }
  /* S074: the mean of what cannot be summed. */
  float sum = 4 * 30000.0f;
  gbi_wide_store(half, &sum, 1, GB_FLOAT16, 4);
  GB_CHECK_INT(half[0], half_of(30000, GB_FLOAT16));
}

/* ---- the rest ---- */

static uint64_t mix(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

static const uint64_t specials[] = {0,
                                    UINT64_C(0x8000000000000000),
                                    1,
                                    UINT64_C(0x8000000000000001),
                                    UINT64_C(0x7ff0000000000000),
                                    UINT64_C(0xfff0000000000000),
                                    UINT64_C(0x7ff0000000000001),
                                    UINT64_C(0xfff8000000000123),
                                    UINT64_C(0x7fefffffffffffff),
                                    UINT64_C(0xffefffffffffffff),
                                    UINT64_C(0x3ff0000000000000),
                                    UINT64_C(0x000fffffffffffff),
                                    UINT64_C(0x0010000000000000),
                                    UINT64_C(0x7fffffffffffffff),
                                    UINT64_MAX,
                                    UINT64_C(0x7f8000017f800000),
                                    UINT64_C(0xff80000080000000),
                                    UINT64_C(0x0000000100000001),
                                    UINT64_C(0x8000000180000001),
                                    UINT64_C(0x7f7fffff007fffff),
                                    UINT64_C(0xffc0123400800000),
                                    UINT64_C(0x7f7f80ff017f8001),
                                    UINT64_C(0x4b8000003f800000)};
enum { SPECIALS = GBI_COUNT(specials) };

static void float_reference(uint8_t *out, const uint8_t *a, const uint8_t *b,
                            gb_redop op) {
  float f, g;
  memcpy(&f, a, 4);
  memcpy(&g, b, 4);
  f = op == GB_SUM       ? f + g
      : op == GB_PRODUCT ? f * g
                         : (float)combine_ref(f, g, op);
  f = canonical(f);
  memcpy(out, &f, 4);
}

static void double_reference(uint8_t *out, const uint8_t *a, const uint8_t *b,
                             gb_redop op) {
  double f, g;
  memcpy(&f, a, 8);
  memcpy(&g, b, 8);
  f = combine_ref(f, g, op);
  uint64_t nan = UINT64_C(0x7ff8000000000000);
  memcpy(out, isnan(f) ? (void *)&nan : (void *)&f, 8);
}

static uint8_t bool_reference(bool x, bool y, gb_redop op) {
  switch (op) {
    case GB_PRODUCT:
    case GB_MIN:
    case GB_BAND: return x && y;
    case GB_BXOR: return x != y;
    default: return x || y;
  }
}

static bool is_signed(gb_dtype dtype) {
  return dtype == GB_INT8 || dtype == GB_INT16 || dtype == GB_INT32 ||
         dtype == GB_INT64;
}

/* The low `bytes` bytes, little-endian, with their sign. */
static uint64_t whole_number(const uint8_t *at, gb_dtype dtype) {
  uint64_t x = 0;
  int bits = (int)gb_dtype_bytes(dtype) * 8;
  memcpy(&x, at, gb_dtype_bytes(dtype));
  bool minus = is_signed(dtype) && x >> (bits - 1) & 1;
  return minus && bits < 64 ? x | UINT64_MAX << bits : x;
}

static void integer_reference(uint8_t *out, const uint8_t *a, const uint8_t *b,
                              gb_dtype dtype, gb_redop op) {
  uint64_t x = whole_number(a, dtype), y = whole_number(b, dtype), r = x;
  bool more = is_signed(dtype) ? (int64_t)x > (int64_t)y : x > y;
  switch (op) {
    case GB_SUM: r = x + y; break;
    case GB_PRODUCT: r = x * y; break;
    case GB_MAX: r = more ? x : y; break;
    case GB_MIN: r = more ? y : x; break;
    case GB_BAND: r = x & y; break;
    case GB_BOR: r = x | y; break;
    default: r = x ^ y;
  }
  memcpy(out, &r, gb_dtype_bytes(dtype));
}

static void reference(uint8_t *out, const uint8_t *a, const uint8_t *b,
                      gb_dtype dtype, gb_redop op) {
  switch (dtype) {
    case GB_FLOAT32: float_reference(out, a, b, op); break;
    case GB_FLOAT64: double_reference(out, a, b, op); break;
    case GB_COMPLEX64:
      float_reference(out, a, b, op);
      float_reference(out + 4, a + 4, b + 4, op);
      break;
    case GB_COMPLEX128:
      double_reference(out, a, b, op);
      double_reference(out + 8, a + 8, b + 8, op);
      break;
    case GB_BOOL: *out = bool_reference(*a, *b, op); break;
    default: integer_reference(out, a, b, dtype, op);
  }
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
  if (dtype == GB_BOOL) /* half of them false */
    for (size_t i = 0; i < count; i++) {
      if (mix(i) & 1) ((uint8_t *)a)[i] = 0;
      if (mix(i) & 2) ((uint8_t *)b)[i] = 0;
    }
  for (size_t o = 0; o < GBI_COUNT(ops); o++) {
    if (!gb_redop_supported(ops[o], dtype)) continue;
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
  for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++)
    if (dtype != GB_FLOAT16 && dtype != GB_BFLOAT16 &&
        gbi_dtype_class((gb_dtype)dtype) != GBI_CLASS_FLOAT8)
      check_type((gb_dtype)dtype);
}

GB_TEST(reduce, every_short_count) {
  for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++)
    EACH_VARIANT for (size_t n = 0; n < 200; n++) {
      uint8_t a[3300], b[3300];
      size_t bytes = n * gb_dtype_bytes((gb_dtype)dtype);
      memset(a, 0, sizeof a);
      memset(b, 0, sizeof b);
      a[bytes + 1] = 0x11;
      gbi_reduce_fn add = gbi_reduce_kernel((gb_dtype)dtype, GB_SUM);
      if (add) add(a + 1, b + 1, n);
      gbi_divide(a + 1, n, (gb_dtype)dtype, 3);
      gbi_wide_store(a + 1, b + 1, n / 4, (gb_dtype)dtype, 3);
      for (size_t i = 0; i <= bytes; i++) GB_CHECK_INT(a[i], 0);
      GB_CHECK_INT(a[bytes + 1], 0x11);
      /* n numbers grow to at most 4 n bytes, from the same zeros. */
      size_t wide = n / 4 * gb_dtype_bytes(gbi_wide_dtype((gb_dtype)dtype));
      a[wide + 1] = 0x11;
      gbi_wide_load(a + 1, b + 1, n / 4, (gb_dtype)dtype, 3);
      for (size_t i = 0; i <= wide; i++) GB_CHECK_INT(a[i], 0);
      GB_CHECK_INT(a[wide + 1], 0x11);
    }
}

GB_TEST(reduce, kernels_are_what_is_supported) {
  for (int dtype = -1; dtype <= GB_DTYPE_COUNT; dtype++)
    for (int op = -1; op <= GB_REDOP_COUNT; op++) {
      bool own = op != GB_AVG && op != GB_PREMUL_SUM &&
                 gbi_dtype_class((gb_dtype)dtype) != GBI_CLASS_FLOAT8;
      bool want = own && gb_redop_supported((gb_redop)op, (gb_dtype)dtype);
      EACH_VARIANT {
        GB_CHECK_INT(!!gbi_reduce_kernel((gb_dtype)dtype, (gb_redop)op), want);
        GB_CHECK_INT(!!gbi_combine_kernel((gb_dtype)dtype, (gb_redop)op), want);
      }
      if (dtype == GB_FLOAT8_E5M2)
        GB_CHECK_INT(gb_redop_supported((gb_redop)op, GB_FLOAT8_E5M2),
                     gb_redop_supported((gb_redop)op, GB_FLOAT32));
    }
  for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++) {
    gbi_class class = gbi_dtype_class((gb_dtype)dtype);
    bool bits = class == GBI_CLASS_INTEGER || class == GBI_CLASS_BOOL;
    bool complex = class == GBI_CLASS_COMPLEX;
    GB_CHECK(gb_redop_supported(GB_SUM, (gb_dtype)dtype));
    GB_CHECK_INT(gb_redop_supported(GB_AVG, (gb_dtype)dtype), !bits);
    GB_CHECK_INT(gb_redop_supported(GB_MAX, (gb_dtype)dtype), !complex);
    GB_CHECK_INT(gb_redop_supported(GB_MIN, (gb_dtype)dtype), !complex);
    GB_CHECK_INT(gb_redop_supported(GB_PRODUCT, (gb_dtype)dtype), !complex);
    GB_CHECK_INT(gb_redop_supported(GB_BXOR, (gb_dtype)dtype), bits);
    GB_CHECK_INT(gb_redop_supported(GB_PREMUL_SUM, (gb_dtype)dtype),
                 !bits && !complex);
  }
}

/* ---- float8 ---- */

typedef struct float8 {
  gb_dtype dtype;
  int digits, bias;
  bool fnuz;
  uint8_t most, over, nan; /* codes */
  /* Conversions that PyTorch 2.13 made: float32 bits, code. */
  struct {
    uint32_t value;
    uint8_t code;
  } known[10];
} float8;

/* Besides zero and NaN: two subnormals, ties and what lies beside them, the
 * largest value, the tie above it, what follows and infinity. */
static const float8 float8s[] = {
    {GB_FLOAT8_E4M3FN,
     3,
     7,
     false,
     0x7e,
     0x7e,
     0x7f,
     {{0x3b000000, 0x01},
      {0x3c600000, 0x07},
      {0x42f80000, 0x70},
      {0xc2f7ffff, 0xef},
      {0x43e00000, 0x7e},
      {0x43e80000, 0x7e},
      {0x43e88000, 0x7e},
      {0xc3fa0000, 0xfe},
      {0x7f800000, 0x7e},
      {0x80000000, 0x80}}},
    {GB_FLOAT8_E5M2,
     2,
     15,
     false,
     0x7b,
     0x7c,
     0x7f,
     {{0x37800000, 0x01},
      {0x38e00000, 0x07},
      {0x43e80000, 0x5f},
      {0x43f00000, 0x60},
      {0x47600000, 0x7b},
      {0x476fff00, 0x7b},
      {0x47700000, 0x7c},
      {0xce6e6b28, 0xfc},
      {0xff800000, 0xfc},
      {0x80000000, 0x80}}},
    {GB_FLOAT8_E4M3FNUZ,
     3,
     8,
     true,
     0x7f,
     0x80,
     0x80,
     {{0x3a800000, 0x01},
      {0x3be00000, 0x07},
      {0x43300000, 0x7b},
      {0xc3700000, 0xff},
      {0x4377e666, 0x7f},
      {0x43780000, 0x80},
      {0xc3780000, 0x80},
      {0x43fa0000, 0x80},
      {0x7f800000, 0x80},
      {0x80000000, 0x00}}},
    {GB_FLOAT8_E5M2FNUZ,
     2,
     16,
     true,
     0x7f,
     0x80,
     0x80,
     {{0x37000000, 0x01},
      {0x38600000, 0x07},
      {0x43e80000, 0x63},
      {0x43f00000, 0x64},
      {0x47600000, 0x7f},
      {0x476fff00, 0x7f},
      {0x47700000, 0x80},
      {0xc7800000, 0x80},
      {0xff800000, 0x80},
      {0x80000000, 0x00}}},
};

static float float8_value(uint8_t code, const float8 *t) {
  int magnitude = code & 0x7f, e = magnitude >> t->digits;
  int m = magnitude & ((1 << t->digits) - 1);
  if (t->fnuz ? code == 0x80 : magnitude > t->most) {
    bool infinite = t->dtype == GB_FLOAT8_E5M2 && magnitude == t->over;
    return infinite ? (code & 0x80 ? -INFINITY : INFINITY) : canonical(NAN);
  }
  double v = e ? ldexp((1 << t->digits) + m, e - t->bias - t->digits)
               : ldexp(m, 1 - t->bias - t->digits);
  return (float)(code & 0x80 ? -v : v);
}

static uint8_t float8_of(float f, const float8 *t) {
  if (isnan(f)) return t->nan;
  uint8_t sign = signbit(f) ? 0x80 : 0;
  double v = fabs((double)f);
  int e, least = 1 - t->bias;
  frexp(v, &e);
  int exponent = v == 0 || e - 1 < least ? least : e - 1;
  double units = v > 1e6 ? 1e6 : nearbyint(ldexp(v, t->digits - exponent));
  long code = (long)units + ((long)(exponent - least) << t->digits);
  if (isinf(f) || v > 1e6 || code > t->most) code = t->over;
  return t->fnuz && (!code || code == 0x80) ? (uint8_t)code
                                            : (uint8_t)(code | sign);
}

enum { ROUNDED = 128 * 2 * 3 * 2 + 8192 };

/* Every value and midpoint with its neighbours, of both signs, then noise. */
static void float8_inputs(float *in, const float8 *t) {
  size_t n = 0;
  for (int code = 0; code < 128; code++)
    for (int half = 0; half < 2; half++) {
      float low = float8_value((uint8_t)code, t);
      float high = float8_value((uint8_t)GBI_MIN(code + 1, t->most), t);
      uint32_t bits = bits_of(half ? low / 2 + high / 2 : low);
      for (uint32_t d = 0; d < 3; d++) {
        in[n++] = float_of(bits + d - (bits != 0));
        in[n++] = float_of((bits + d - (bits != 0)) | 0x80000000);
      }
    }
  while (n < ROUNDED) {
    uint32_t bits = (uint32_t)mix(n), near = bits % 40 + 105;
    in[n] = float_of(n % 2 ? bits : (bits & 0x807fffff) | near << 23);
    n++;
  }
}

GB_TEST(reduce, float8_wide_and_back) {
  static float in[ROUNDED], wide[256];
  static uint8_t got[ROUNDED + 1], codes[256];
  static const int divisors[] = {1, 3, 8};
  for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
  for (size_t k = 0; k < GBI_COUNT(float8s); k++) {
    const float8 *t = &float8s[k];
    float8_inputs(in, t);
    EACH_VARIANT {
      for (int scaled = 0; scaled < 2; scaled++) {
        gbi_wide_load(wide, codes, 256, t->dtype, scaled ? -2.5 : 1);
        for (int i = 0; i < 256; i++) {
          float v = float8_value((uint8_t)i, t) * (scaled ? -2.5f : 1);
          GB_CHECK_INT(bits_of(wide[i]), bits_of(canonical(v)));
        }
      }
      gbi_wide_load(wide, codes, 256, t->dtype, 1);
      gbi_wide_store(got, wide, 256, t->dtype, 1);
      for (int i = 0; i < 256; i++)
        GB_CHECK_INT(got[i], isnan(wide[i]) ? t->nan : i);
      for (size_t d = 0; d < GBI_COUNT(divisors); d++) {
        gbi_wide_store(got + 1, in, ROUNDED - d, t->dtype, divisors[d]);
        for (size_t i = 0; i < ROUNDED - d; i++) {
          uint8_t want = float8_of(in[i] / (float)divisors[d], t);
          if (got[i + 1] != want)
            gb_test_fail(__FILE__, __LINE__, "%s %s: %a / %d gave %#x, not %#x",
                         names[v_], gb_dtype_name(t->dtype), (double)in[i],
                         divisors[d], got[i + 1], want);
        }
      }
      for (size_t i = 0; i < GBI_COUNT(t->known); i++) {
        float f = float_of(t->known[i].value);
        gbi_wide_store(got, &f, 1, t->dtype, 1);
        GB_CHECK_INT(got[0], t->known[i].code);
      }
    }
  }
}

/* Types that are their own wide type: factor and divisor 1 keep every bit. */
GB_TEST(reduce, wide_types_stay) {
  uint64_t in[SPECIALS], out[SPECIALS];
  for (int dtype = 0; dtype < GB_DTYPE_COUNT; dtype++) {
    if (gbi_wide_dtype((gb_dtype)dtype) != (gb_dtype)dtype) continue;
    size_t n = sizeof in / gb_dtype_bytes((gb_dtype)dtype);
    size_t bytes = n * gb_dtype_bytes((gb_dtype)dtype);
    EACH_VARIANT {
      memcpy(in, specials, sizeof in);
      gbi_wide_load(out, in, n, (gb_dtype)dtype, 1);
      GB_CHECK(!memcmp(out, specials, bytes));
      gbi_wide_store(in, out, n, (gb_dtype)dtype, 1);
      GB_CHECK(!memcmp(in, specials, bytes));
      gbi_wide_store(in, in, n, (gb_dtype)dtype, 1);
      GB_CHECK(!memcmp(in, specials, bytes));
    }
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
    /* The same through the wide pair, and complex numbers as pairs. */
    float h[9], c[9];
    double p[9], q[9];
    gbi_wide_store(h, f, 9, GB_FLOAT32, 3);
    gbi_wide_store(p, d, 9, GB_FLOAT64, 3);
    GB_CHECK(!memcmp(h, g, sizeof h) && !memcmp(p, e, sizeof p));
    memcpy(c, f, sizeof c);
    memcpy(q, d, sizeof q);
    gbi_divide(c, 4, GB_COMPLEX64, 3);
    gbi_divide(q, 4, GB_COMPLEX128, 3);
    GB_CHECK(!memcmp(c, g, 32) && !memcmp(q, e, 64) && c[8] == 10);
    gbi_wide_load(h, f, 9, GB_FLOAT32, 0.1);
    gbi_wide_load(p, d, 9, GB_FLOAT64, 0.1);
    for (int i = 0; i < 9; i++) {
      GB_CHECK_INT(bits_of(h[i]), bits_of(canonical(f[i] * (float)0.1)));
      double want = d[i] * 0.1;
      if (i != 3) GB_CHECK(!memcmp(&p[i], &want, 8));
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
