/* Element-wise arithmetic of the fake NCCL. */
#include "fakes/nccl.h"

#include <math.h>
#include <string.h>

/* A small binary float. Codes are without the sign. */
typedef struct small_float {
  int exponent_bits, fraction_bits, bias;
  unsigned most;     /* the largest finite value */
  unsigned infinity; /* 0: there is none */
  unsigned overflow; /* what too large becomes */
  unsigned nan;      /* the NaN that is written, with the sign */
  bool one_zero;     /* FNUZ: what would be -0 is the NaN */
} small_float;

static const small_float half_type = {5,      10,     15,     0x7bff,
                                      0x7c00, 0x7c00, 0x7fff, false};
static const small_float bfloat_type = {8,      7,      127,    0x7f7f,
                                        0x7f80, 0x7f80, 0x7fff, false};
#ifdef FAKE_RCCL
static const small_float e4m3_type = {4, 3, 8, 0x7f, 0, 0x7f, 0x80, true};
static const small_float e5m2_type = {5, 2, 16, 0x7f, 0, 0x7f, 0x80, true};
#else
static const small_float e4m3_type = {4, 3, 7, 0x7e, 0, 0x7e, 0x7f, false};
static const small_float e5m2_type = {5, 2, 15, 0x7b, 0x7c, 0x7b, 0x7f, false};
#endif

static const small_float *small_of(int type) {
  switch (type) {
    case ncclFloat16: return &half_type;
    case ncclBfloat16: return &bfloat_type;
    case GBI_NCCL_FLOAT8_E4M3: return &e4m3_type;
    case GBI_NCCL_FLOAT8_E5M2: return &e5m2_type;
    default: return NULL;
  }
}

static unsigned sign_of(const small_float *s) {
  return 1U << (s->exponent_bits + s->fraction_bits);
}

static float widen(const small_float *s, unsigned code) {
  unsigned sign = sign_of(s), size = code & (sign - 1);
  if (s->one_zero && code == s->nan) return NAN;
  if (s->infinity && size == s->infinity)
    return code & sign ? -INFINITY : INFINITY;
  if (size > s->most) return NAN;
  unsigned one = 1U << s->fraction_bits;
  int exponent = (int)(size >> s->fraction_bits);
  unsigned fraction = size & (one - 1);
  float value = exponent
                    ? ldexpf((float)(one + fraction),
                             exponent - s->bias - s->fraction_bits)
                    : ldexpf((float)fraction, 1 - s->bias - s->fraction_bits);
  return code & sign ? -value : value;
}

static unsigned narrow(const small_float *s, double value) {
  unsigned sign = signbit(value) ? sign_of(s) : 0;
  if (isnan(value)) return s->nan;
  double size = fabs(value);
  if (isinf(size)) return sign | s->overflow;
  if (size == 0) return s->one_zero ? 0 : sign;
  int exponent;
  (void)frexp(size, &exponent);
  exponent--;
  if (exponent < 1 - s->bias) exponent = 1 - s->bias;
  double units = rint(ldexp(size, s->fraction_bits - exponent));
  unsigned one = 1U << s->fraction_bits;
  if (exponent > s->bias + 1) return sign | s->overflow;
  unsigned code = units < one
                      ? (unsigned)units
                      : ((unsigned)(exponent + s->bias) << s->fraction_bits) +
                            ((unsigned)units - one);
  if (code > s->most) code = s->overflow;
  return code == 0 && s->one_zero ? 0 : sign | code;
}

static float pick(int op, float a, float b) {
  switch (op) {
    case ncclProd: return a * b;
    case ncclMax: return isnan(a) || a > b ? a : b;
    case ncclMin: return isnan(a) || a < b ? a : b;
    default: return a + b;
  }
}

static unsigned load(const void *at, size_t i, size_t bytes) {
  return bytes == 1 ? ((const uint8_t *)at)[i] : ((const uint16_t *)at)[i];
}

static void store(void *at, size_t i, size_t bytes, unsigned code) {
  if (bytes == 1)
    ((uint8_t *)at)[i] = (uint8_t)code;
  else
    ((uint16_t *)at)[i] = (uint16_t)code;
}

static void combine_small(const small_float *s, size_t bytes, int op, void *acc,
                          const void *in, size_t count) {
  for (size_t i = 0; i < count; i++) {
    float a = widen(s, load(acc, i, bytes)), b = widen(s, load(in, i, bytes));
    store(acc, i, bytes, narrow(s, pick(op, a, b)));
  }
}

static void scale_small(const small_float *s, size_t bytes, float factor,
                        void *out, const void *in, size_t count) {
  for (size_t i = 0; i < count; i++)
    store(out, i, bytes, narrow(s, widen(s, load(in, i, bytes)) * factor));
}

#define LOOP(type, expression)                            \
  for (size_t i = 0; i < count; i++) {                    \
    type a = ((type *)acc)[i], b = ((const type *)in)[i]; \
    ((type *)acc)[i] = (type)(expression);                \
  }
#define COMBINE(type, wide, is_nan)                               \
  static void combine_##type(int op, void *acc, const void *in,   \
                             size_t count) {                      \
    switch (op) {                                                 \
      case ncclProd: LOOP(type, (wide)a *(wide)b) break;          \
      case ncclMax: LOOP(type, is_nan(a) || a > b ? a : b) break; \
      case ncclMin: LOOP(type, is_nan(a) || a < b ? a : b) break; \
      default: LOOP(type, (wide)a + (wide)b) break;               \
    }                                                             \
  }
#define NEVER(a) false
COMBINE(int8_t, uint32_t, NEVER)
COMBINE(uint8_t, uint32_t, NEVER)
COMBINE(int32_t, uint32_t, NEVER)
COMBINE(uint32_t, uint32_t, NEVER)
COMBINE(int64_t, uint64_t, NEVER)
COMBINE(uint64_t, uint64_t, NEVER)
COMBINE(float, float, isnan)
COMBINE(double, double, isnan)

void fake_nccl_scale(int type, const fake_reduction *reduction, void *out,
                     const void *in, size_t count) {
  const small_float *s = small_of(type);
  uint64_t bits = reduction->factor_bits;
  float single = 0;
  double factor = 0;
  memcpy(&single, &bits, sizeof single);
  memcpy(&factor, &bits, sizeof factor);
  if (s) {
    scale_small(s, fake_nccl_type_bytes(type), widen(s, (unsigned)bits), out,
                in, count);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    if (type == ncclFloat32)
      ((float *)out)[i] = ((const float *)in)[i] * single;
    else if (type == ncclFloat64)
      ((double *)out)[i] = ((const double *)in)[i] * factor;
    else if (type == ncclInt32 || type == ncclUint32)
      ((uint32_t *)out)[i] = ((const uint32_t *)in)[i] * (uint32_t)bits;
    else if (type == ncclInt64 || type == ncclUint64)
      ((uint64_t *)out)[i] = ((const uint64_t *)in)[i] * bits;
    else
      ((uint8_t *)out)[i] = (uint8_t)(((const uint8_t *)in)[i] * (uint8_t)bits);
  }
}

void fake_nccl_combine(int type, int op, void *acc, const void *in,
                       size_t count) {
  const small_float *s = small_of(type);
  if (s) {
    combine_small(s, fake_nccl_type_bytes(type), op, acc, in, count);
    return;
  }
  switch (type) {
    case ncclInt8: combine_int8_t(op, acc, in, count); break;
    case ncclUint8: combine_uint8_t(op, acc, in, count); break;
    case ncclInt32: combine_int32_t(op, acc, in, count); break;
    case ncclUint32: combine_uint32_t(op, acc, in, count); break;
    case ncclInt64: combine_int64_t(op, acc, in, count); break;
    case ncclUint64: combine_uint64_t(op, acc, in, count); break;
    case ncclFloat32: combine_float(op, acc, in, count); break;
    default: combine_double(op, acc, in, count); break;
  }
}

void fake_nccl_finish(int type, const fake_reduction *reduction, void *acc,
                      size_t count) {
  int64_t n = reduction->divisor;
  if (n == 0) return;
  for (size_t i = 0; i < count; i++) switch (type) {
      case ncclInt8:
        ((int8_t *)acc)[i] = (int8_t)(((int8_t *)acc)[i] / n);
        break;
      case ncclUint8:
        ((uint8_t *)acc)[i] = (uint8_t)(((uint8_t *)acc)[i] / n);
        break;
      case ncclInt32:
        ((int32_t *)acc)[i] = (int32_t)(((int32_t *)acc)[i] / n);
        break;
      case ncclUint32:
        ((uint32_t *)acc)[i] = (uint32_t)(((uint32_t *)acc)[i] / n);
        break;
      case ncclInt64: ((int64_t *)acc)[i] /= n; break;
      default: ((uint64_t *)acc)[i] /= (uint64_t)n; break;
    }
}

uint64_t fake_nccl_factor(int type, double factor) {
  uint64_t bits = 0;
  float single = (float)factor;
  const small_float *s = small_of(type);
  if (s) return narrow(s, factor);
  if (type == ncclFloat32)
    memcpy(&bits, &single, sizeof single);
  else
    memcpy(&bits, &factor, sizeof factor);
  return bits;
}
