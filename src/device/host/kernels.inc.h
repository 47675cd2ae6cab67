/* The kernels of one instruction set, written once with the compilers' vector
 * types. Included by kernels_<set>.c, which defines
 *   KERNELS   name of the table,  KERNELS_NAME  its text
 *   VEC       bytes of one vector
 *   TARGET    function attributes that switch the instruction set on
 *   F16_TO_F32(out, in), F32_TO_F16(out, in)   one vector, by address; without
 *             them the conversions are done with whole numbers.
 *
 * Every NaN that comes out is the one canonical quiet NaN: which of two NaNs an
 * addition keeps depends on operand order, which compilers choose freely, and
 * all variants must give the same bits. */
#include "device/host/kernels.h"

#include <string.h>

#define VECTOR(type, name, bytes) \
  typedef type name __attribute__((vector_size(bytes)))
VECTOR(uint8_t, vec_u8, VEC);
VECTOR(int8_t, vec_i8, VEC);
VECTOR(uint32_t, vec_u32, VEC);
VECTOR(int32_t, vec_i32, VEC);
VECTOR(uint64_t, vec_u64, VEC);
VECTOR(int64_t, vec_i64, VEC);
VECTOR(float, vec_f32, VEC);
VECTOR(double, vec_f64, VEC);
VECTOR(uint16_t, vec_half, VEC / 2); /* as many halves as floats in a vector */

#define INLINE TARGET __attribute__((always_inline)) static inline
#define LOAD(vector, at) memcpy(&(vector), at, sizeof(vector))
#define STORE(at, vector) memcpy(at, &(vector), sizeof(vector))

/* ---- one vector of whole numbers; sums wrap, so they add as unsigned ---- */

#define INTEGER_BLOCKS(name, unsigned_vec, compare_vec)                        \
  INLINE void block_##name##_sum(void *out, const void *a, const void *b) {    \
    unsigned_vec x, y;                                                         \
    LOAD(x, a);                                                                \
    LOAD(y, b);                                                                \
    x += y;                                                                    \
    STORE(out, x);                                                             \
  }                                                                            \
  INLINE void block_##name##_max(void *out, const void *a, const void *b) {    \
    compare_vec x, y;                                                          \
    LOAD(x, a);                                                                \
    LOAD(y, b);                                                                \
    compare_vec keep = (compare_vec)(x > y);                                   \
    x = (x & keep) | (y & ~keep);                                              \
    STORE(out, x);                                                             \
  }                                                                            \
  INLINE void block_##name##_min(void *out, const void *a, const void *b) {    \
    compare_vec x, y;                                                          \
    LOAD(x, a);                                                                \
    LOAD(y, b);                                                                \
    compare_vec keep = (compare_vec)(x < y);                                   \
    x = (x & keep) | (y & ~keep);                                              \
    STORE(out, x);                                                             \
  }

INTEGER_BLOCKS(i8, vec_u8, vec_i8)
INTEGER_BLOCKS(u8, vec_u8, vec_u8)
INTEGER_BLOCKS(i32, vec_u32, vec_i32)
INTEGER_BLOCKS(i64, vec_u64, vec_i64)

/* ---- one vector of floats, by address ---- */

/* Exactly one of more, less, same holds, or the pair is unordered. `same` mixes
 * the bits so that -0 and +0 give +0 in MAX (and) and -0 in MIN (or). */
#define FLOAT_OPS(name, float_vec, int_vec, quiet_nan)                         \
  INLINE void name##_canonical(float_vec *v) {                                 \
    int_vec bits = (int_vec)*v, is_number = (int_vec)(*v == *v);               \
    bits = (bits & is_number) | ((quiet_nan) & ~is_number);                    \
    *v = (float_vec)bits;                                                      \
  }                                                                            \
  INLINE void name##_sum(float_vec *x, const float_vec *y) {                   \
    *x += *y;                                                                  \
    name##_canonical(x);                                                       \
  }                                                                            \
  INLINE void name##_max(float_vec *x, const float_vec *y) {                   \
    int_vec more = (int_vec)(*x > *y), less = (int_vec)(*x < *y);              \
    int_vec same = (int_vec)(*x == *y), a = (int_vec)*x, b = (int_vec)*y;      \
    a = (a & more) | (b & less) | (a & b & same) |                             \
        ((quiet_nan) & ~(more | less | same));                                 \
    *x = (float_vec)a;                                                         \
  }                                                                            \
  INLINE void name##_min(float_vec *x, const float_vec *y) {                   \
    int_vec more = (int_vec)(*x > *y), less = (int_vec)(*x < *y);              \
    int_vec same = (int_vec)(*x == *y), a = (int_vec)*x, b = (int_vec)*y;      \
    a = (a & less) | (b & more) | ((a | b) & same) |                           \
        ((quiet_nan) & ~(more | less | same));                                 \
    *x = (float_vec)a;                                                         \
  }

FLOAT_OPS(f32, vec_f32, vec_i32, 0x7fc00000)
FLOAT_OPS(f64, vec_f64, vec_i64, INT64_C(0x7ff8000000000000))

#define FLOAT_BLOCK(name, float_vec, op)                                       \
  INLINE void block_##name##_##op(void *out, const void *a, const void *b) {   \
    float_vec x, y;                                                            \
    LOAD(x, a);                                                                \
    LOAD(y, b);                                                                \
    name##_##op(&x, &y);                                                       \
    STORE(out, x);                                                             \
  }

FLOAT_BLOCK(f32, vec_f32, sum)
FLOAT_BLOCK(f32, vec_f32, max)
FLOAT_BLOCK(f32, vec_f32, min)
FLOAT_BLOCK(f64, vec_f64, sum)
FLOAT_BLOCK(f64, vec_f64, max)
FLOAT_BLOCK(f64, vec_f64, min)

/* ---- halves: widen, combine in float32, round once ---- */

#ifndef F16_TO_F32
/* Multiplying by 2^112 moves the exponent and makes subnormals normal. */
INLINE void f16_to_f32(vec_f32 *out, const vec_half *in) {
  vec_u32 h = __builtin_convertvector(*in, vec_u32);
  vec_u32 magnitude = (h & 0x7fff) << 13;
  vec_u32 special = (vec_u32)(magnitude >= (0x7c00u << 13));
  const vec_u32 scale = (vec_u32){0} + 0x77800000;
  vec_f32 value = (vec_f32)magnitude * (vec_f32)scale;
  vec_u32 bits = (vec_u32)value & ~special;
  bits |= (magnitude | 0x7f800000) & special;
  bits |= (h & 0x8000) << 16;
  *out = (vec_f32)bits;
}

/* Below 2^-14 adding 0.5 lines the bits up with the half's and rounds them. */
INLINE void f32_to_f16(vec_half *out, const vec_f32 *in) {
  vec_u32 bits = (vec_u32)*in;
  vec_u32 sign = (bits >> 16) & 0x8000, a = bits & 0x7fffffff;
  const vec_u32 half = (vec_u32){0} + 0x3f000000;
  vec_f32 lined_up = (vec_f32)a + (vec_f32)half;
  vec_u32 tiny = (vec_u32)lined_up - half;
  vec_u32 normal = (a - (112u << 23) + 0xfff + ((a >> 13) & 1)) >> 13;
  vec_u32 is_tiny = (vec_u32)(a < 0x38800000);
  vec_u32 is_big = (vec_u32)(a >= 0x47800000);
  vec_u32 is_nan = (vec_u32)(a > 0x7f800000);
  vec_u32 result = (tiny & is_tiny) | (normal & ~is_tiny & ~is_big) |
                   (0x7c00 & is_big) | (0x7e00 & is_nan);
  *out = __builtin_convertvector(result | sign, vec_half);
}
#define F16_TO_F32(out, in) f16_to_f32(out, in)
#define F32_TO_F16(out, in) f32_to_f16(out, in)
#endif

INLINE void bf16_to_f32(vec_f32 *out, const vec_half *in) {
  *out = (vec_f32)(__builtin_convertvector(*in, vec_u32) << 16);
}

/* The NaN that comes in is canonical already. */
INLINE void f32_to_bf16(vec_half *out, const vec_f32 *in) {
  vec_u32 bits = (vec_u32)*in;
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *out = __builtin_convertvector(bits, vec_half);
}
#define BF16_TO_F32(out, in) bf16_to_f32(out, in)
#define F32_TO_BF16(out, in) f32_to_bf16(out, in)

#define HALF_BLOCK(name, op, WIDEN, NARROW)                                    \
  INLINE void block_##name##_##op(void *out, const void *a, const void *b) {   \
    vec_half p, q;                                                             \
    vec_f32 x, y;                                                              \
    LOAD(p, a);                                                                \
    LOAD(q, b);                                                                \
    WIDEN(&x, &p);                                                             \
    WIDEN(&y, &q);                                                             \
    f32_##op(&x, &y);                                                          \
    NARROW(&p, &x);                                                            \
    STORE(out, p);                                                             \
  }

HALF_BLOCK(f16, sum, F16_TO_F32, F32_TO_F16)
HALF_BLOCK(f16, max, F16_TO_F32, F32_TO_F16)
HALF_BLOCK(f16, min, F16_TO_F32, F32_TO_F16)
HALF_BLOCK(bf16, sum, BF16_TO_F32, F32_TO_BF16)
HALF_BLOCK(bf16, max, BF16_TO_F32, F32_TO_BF16)
HALF_BLOCK(bf16, min, BF16_TO_F32, F32_TO_BF16)

/* ---- whole arrays; the rest goes through one padded block ---- */

#define KERNEL(name, block, bytes_each)                                        \
  TARGET static void combine_##name(void *out, const void *a, const void *b,   \
                                    size_t count) {                            \
    uint8_t *o = out;                                                          \
    const uint8_t *x = a, *y = b;                                              \
    size_t left = count * (bytes_each);                                        \
    for (; left >= (block); left -= (block)) {                                 \
      block_##name(o, x, y);                                                   \
      o += (block), x += (block), y += (block);                                \
    }                                                                          \
    if (!left) return;                                                         \
    uint8_t p[block] = {0}, q[block] = {0};                                    \
    memcpy(p, x, left);                                                        \
    memcpy(q, y, left);                                                        \
    block_##name(p, p, q);                                                     \
    memcpy(o, p, left);                                                        \
  }                                                                            \
  TARGET static void reduce_##name(void *acc, const void *in, size_t count) {  \
    combine_##name(acc, acc, in, count);                                       \
  }
#define KERNELS_OF(name, block, bytes_each)                                    \
  KERNEL(name##_sum, block, bytes_each)                                        \
  KERNEL(name##_max, block, bytes_each)                                        \
  KERNEL(name##_min, block, bytes_each)

KERNELS_OF(i8, VEC, 1)
KERNELS_OF(u8, VEC, 1)
KERNELS_OF(i32, VEC, 4)
KERNELS_OF(i64, VEC, 8)
KERNELS_OF(f16, VEC / 2, 2)
KERNELS_OF(bf16, VEC / 2, 2)
KERNELS_OF(f32, VEC, 4)
KERNELS_OF(f64, VEC, 8)

#define DIVIDE_FLOAT(name, type, float_vec)                                    \
  TARGET static void divide_##name(void *data, size_t count, int divisor) {    \
    uint8_t *at = data;                                                        \
    size_t left = count * sizeof(type);                                        \
    while (left) {                                                             \
      float_vec x = {0};                                                       \
      size_t n = left < VEC ? left : VEC;                                      \
      if (n == VEC)                                                            \
        LOAD(x, at);                                                           \
      else                                                                     \
        memcpy(&x, at, n);                                                     \
      x /= (type)divisor;                                                      \
      name##_canonical(&x);                                                    \
      if (n == VEC)                                                            \
        STORE(at, x);                                                          \
      else                                                                     \
        memcpy(at, &x, n);                                                     \
      at += n;                                                                 \
      left -= n;                                                               \
    }                                                                          \
  }

DIVIDE_FLOAT(f32, float, vec_f32)
DIVIDE_FLOAT(f64, double, vec_f64)

#define HALF_KERNELS(name, WIDEN, NARROW)                                      \
  TARGET static void widen_##name(float *out, const void *half,                \
                                  size_t count) {                              \
    const uint8_t *in = half;                                                  \
    uint8_t *to = (uint8_t *)out;                                              \
    for (size_t left = count; left;) {                                         \
      vec_half p = {0};                                                        \
      vec_f32 x;                                                               \
      size_t n = left < VEC / 4 ? left : VEC / 4;                              \
      memcpy(&p, in, n * 2);                                                   \
      WIDEN(&x, &p);                                                           \
      f32_canonical(&x);                                                       \
      memcpy(to, &x, n * 4);                                                   \
      in += n * 2, to += n * 4, left -= n;                                     \
    }                                                                          \
  }                                                                            \
  TARGET static void narrow_divide_##name(void *half, const float *in,         \
                                          size_t count, int divisor) {         \
    const uint8_t *from = (const uint8_t *)in;                                 \
    uint8_t *to = half;                                                        \
    for (size_t left = count; left;) {                                         \
      vec_half p;                                                              \
      vec_f32 x = {0};                                                         \
      size_t n = left < VEC / 4 ? left : VEC / 4;                              \
      memcpy(&x, from, n * 4);                                                 \
      x /= (float)divisor;                                                     \
      f32_canonical(&x);                                                       \
      NARROW(&p, &x);                                                          \
      memcpy(to, &p, n * 2);                                                   \
      from += n * 4, to += n * 2, left -= n;                                   \
    }                                                                          \
  }                                                                            \
  TARGET static void divide_##name(void *data, size_t count, int divisor) {    \
    uint8_t *at = data;                                                        \
    for (size_t left = count; left;) {                                         \
      vec_half p = {0};                                                        \
      vec_f32 x;                                                               \
      size_t n = left < VEC / 4 ? left : VEC / 4;                              \
      memcpy(&p, at, n * 2);                                                   \
      WIDEN(&x, &p);                                                           \
      x /= (float)divisor;                                                     \
      f32_canonical(&x);                                                       \
      NARROW(&p, &x);                                                          \
      memcpy(at, &p, n * 2);                                                   \
      at += n * 2, left -= n;                                                  \
    }                                                                          \
  }

HALF_KERNELS(f16, F16_TO_F32, F32_TO_F16)
HALF_KERNELS(bf16, BF16_TO_F32, F32_TO_BF16)

#define ROW(table, name)                                                       \
  { table##_##name##_sum, table##_##name##_max, table##_##name##_min }
#define TABLE(table)                                                           \
  {                                                                            \
    [GB_INT8] = ROW(table, i8), [GB_UINT8] = ROW(table, u8),                   \
    [GB_INT32] = ROW(table, i32), [GB_INT64] = ROW(table, i64),                \
    [GB_FLOAT16] = ROW(table, f16), [GB_BFLOAT16] = ROW(table, bf16),          \
    [GB_FLOAT32] = ROW(table, f32), [GB_FLOAT64] = ROW(table, f64),            \
  }

const gbi_kernels KERNELS = {
    .name = KERNELS_NAME,
    .reduce = TABLE(reduce),
    .combine = TABLE(combine),
    .divide = {[GB_FLOAT16] = divide_f16, [GB_BFLOAT16] = divide_bf16,
               [GB_FLOAT32] = divide_f32, [GB_FLOAT64] = divide_f64},
    .widen = {[GB_FLOAT16] = widen_f16, [GB_BFLOAT16] = widen_bf16},
    .narrow_divide = {[GB_FLOAT16] = narrow_divide_f16,
                      [GB_BFLOAT16] = narrow_divide_bf16},
};
