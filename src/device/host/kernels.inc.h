/* The kernels of one instruction set, written once with the compilers' vector
 * types. Included by kernels_<set>.c, which defines
 *   KERNELS   name of the table,  KERNELS_NAME  its text
 *   VEC       bytes of one vector
 *   TARGET    function attributes that switch the instruction set on
 *   F16_TO_F32(out, in), F32_TO_F16(out, in)   one vector, by address; without
 *             them the conversions are done with whole numbers.
 *   U8_TO_U32(out, in), U32_TO_U8(out, in)     the same for bytes; compilers
 *             make slow code of __builtin_convertvector here.
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
VECTOR(uint16_t, vec_u16, VEC);
VECTOR(int16_t, vec_i16, VEC);
VECTOR(uint32_t, vec_u32, VEC);
VECTOR(int32_t, vec_i32, VEC);
VECTOR(uint64_t, vec_u64, VEC);
VECTOR(int64_t, vec_i64, VEC);
VECTOR(float, vec_f32, VEC);
VECTOR(double, vec_f64, VEC);
/* As many halves, and bytes, as floats in a vector. */
VECTOR(uint16_t, vec_half, VEC / 2);
VECTOR(uint8_t, vec_quarter, VEC / 4);

#define INLINE TARGET __attribute__((always_inline)) static inline
#define LOAD(vector, at) memcpy(&(vector), at, sizeof(vector))
#define STORE(at, vector) memcpy(at, &(vector), sizeof(vector))

/* ---- one vector of whole numbers; sums and products wrap: unsigned ---- */

#define BLOCK(name, vec, result)                                               \
  INLINE void block_##name(void *out, const void *a, const void *b) {          \
    vec x, y;                                                                  \
    LOAD(x, a);                                                                \
    LOAD(y, b);                                                                \
    x = result;                                                                \
    STORE(out, x);                                                             \
  }

#define ARITHMETIC_BLOCKS(bits)                                                \
  BLOCK(b##bits##_sum, vec_u##bits, x + y)                                     \
  BLOCK(b##bits##_product, vec_u##bits, x *y)

ARITHMETIC_BLOCKS(8)
ARITHMETIC_BLOCKS(16)
ARITHMETIC_BLOCKS(32)
ARITHMETIC_BLOCKS(64)

#define KEEP(vec, condition) (x & (vec)(condition)) | (y & ~(vec)(condition))
#define COMPARE_BLOCKS(name)                                                   \
  BLOCK(name##_max, vec_##name, KEEP(vec_##name, x > y))                       \
  BLOCK(name##_min, vec_##name, KEEP(vec_##name, x < y))

COMPARE_BLOCKS(i8)
COMPARE_BLOCKS(u8)
COMPARE_BLOCKS(i16)
COMPARE_BLOCKS(u16)
COMPARE_BLOCKS(i32)
COMPARE_BLOCKS(u32)
COMPARE_BLOCKS(i64)
COMPARE_BLOCKS(u64)

/* Of every width. */
BLOCK(band, vec_u8, x &y)
BLOCK(bor, vec_u8, x | y)
BLOCK(bxor, vec_u8, x ^ y)

/* Any byte but 0 is true; what comes out is 0 or 1. */
BLOCK(bool_and, vec_u8, (vec_u8)(x != 0) & (vec_u8)(y != 0) & 1)
BLOCK(bool_or, vec_u8, (vec_u8)((x | y) != 0) & 1)
BLOCK(bool_xor, vec_u8, ((vec_u8)(x != 0) ^ (vec_u8)(y != 0)) & 1)

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
  INLINE void name##_product(float_vec *x, const float_vec *y) {               \
    *x *= *y;                                                                  \
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
FLOAT_BLOCK(f32, vec_f32, product)
FLOAT_BLOCK(f32, vec_f32, max)
FLOAT_BLOCK(f32, vec_f32, min)
FLOAT_BLOCK(f64, vec_f64, sum)
FLOAT_BLOCK(f64, vec_f64, product)
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
HALF_BLOCK(f16, product, F16_TO_F32, F32_TO_F16)
HALF_BLOCK(f16, max, F16_TO_F32, F32_TO_F16)
HALF_BLOCK(f16, min, F16_TO_F32, F32_TO_F16)
HALF_BLOCK(bf16, sum, BF16_TO_F32, F32_TO_BF16)
HALF_BLOCK(bf16, product, BF16_TO_F32, F32_TO_BF16)
HALF_BLOCK(bf16, max, BF16_TO_F32, F32_TO_BF16)
HALF_BLOCK(bf16, min, BF16_TO_F32, F32_TO_BF16)

#ifndef U8_TO_U32
#define U8_TO_U32(out, in) *(out) = __builtin_convertvector(*(in), vec_u32)
#define U32_TO_U8(out, in) *(out) = __builtin_convertvector(*(in), vec_quarter)
#endif

/* ---- float8: no arithmetic of their own, only the way to float32 and back --
 *
 * digits: of the mantissa. inf: code of infinity, 0xff where there is none.
 * is_nan: of `code` and `magnitude`. most: the largest finite code. over: what
 * a larger value becomes. nan: the one that comes out. keep: ~0u where zero has
 * a sign.
 *
 * Subnormals are whole numbers times a power of two, computed as such: they
 * also work in a process that flushes subnormal floats to zero. */
#define FLOAT8(name, digits, bias, inf, is_nan, most, over, nan, keep)         \
  INLINE void name##_to_f32(vec_f32 *out, const vec_quarter *in) {             \
    vec_u32 code;                                                              \
    U8_TO_U32(&code, in);                                                      \
    vec_u32 magnitude = code & 0x7f;                                           \
    vec_u32 normal = (magnitude << (23 - digits)) + ((127 - (bias)) << 23);    \
    const vec_u32 unit = (vec_u32){0} + ((128u - (bias) - (digits)) << 23);    \
    vec_f32 small = __builtin_convertvector((vec_i32)magnitude, vec_f32);      \
    small *= (vec_f32)unit;                                                    \
    vec_u32 is_small = (vec_u32)(magnitude < (1u << (digits)));                \
    vec_u32 is_inf = (vec_u32)(magnitude == (inf));                            \
    vec_u32 is_nan_ = (vec_u32)(is_nan);                                       \
    vec_u32 bits = ((vec_u32)small & is_small) | (normal & ~is_small);         \
    bits = (bits & ~is_inf) | (0x7f800000 & is_inf);                           \
    bits |= (code & 0x80) << 24;                                               \
    bits = (bits & ~is_nan_) | (0x7fc00000 & is_nan_);                         \
    *out = (vec_f32)bits;                                                      \
  }                                                                            \
  /* As in f32_to_f16: adding the number whose last place is the least         \
   * subnormal lines up and rounds what is below the least normal. */          \
  INLINE void f32_to_##name(vec_quarter *out, const vec_f32 *in) {             \
    vec_u32 bits = (vec_u32)*in;                                               \
    vec_u32 sign = (bits >> 24) & 0x80, a = bits & 0x7fffffff;                 \
    const vec_u32 magic = (vec_u32){0} + ((151u - (bias) - (digits)) << 23);   \
    vec_f32 lined_up = (vec_f32)a + (vec_f32)magic;                            \
    vec_u32 tiny = (vec_u32)lined_up - magic;                                  \
    vec_u32 normal = a - ((127u - (bias)) << 23) +                             \
                     ((1u << (22 - (digits))) - 1) +                           \
                     ((a >> (23 - (digits))) & 1);                             \
    normal >>= 23 - (digits);                                                  \
    vec_u32 is_tiny = (vec_u32)(a < ((128u - (bias)) << 23));                  \
    vec_u32 code = (tiny & is_tiny) | (normal & ~is_tiny);                     \
    vec_u32 is_over = (vec_u32)(code > (most));                                \
    vec_u32 is_nan_ = (vec_u32)(a > 0x7f800000);                               \
    code = (code & ~is_over) | ((over)&is_over);                               \
    code = (code & ~is_nan_) | ((nan)&is_nan_);                                \
    code |= sign & ~is_nan_ & ((vec_u32)(code != 0) | (keep));                 \
    U32_TO_U8(out, &code);                                                     \
  }

FLOAT8(e4m3fn, 3, 7, 0xff, magnitude == 0x7f, 0x7e, 0x7e, 0x7f, ~0u)
FLOAT8(e5m2, 2, 15, 0x7c, magnitude > 0x7c, 0x7b, 0x7c, 0x7f, ~0u)
FLOAT8(e4m3fnuz, 3, 8, 0xff, code == 0x80, 0x7f, 0x80, 0x80, 0u)
FLOAT8(e5m2fnuz, 2, 16, 0xff, code == 0x80, 0x7f, 0x80, 0x80, 0u)

/* ---- whole arrays; the rest goes through one padded block ---- */

#define KERNEL(name, block_name, block, bytes_each)                            \
  TARGET static void combine_##name(void *out, const void *a, const void *b,   \
                                    size_t count) {                            \
    uint8_t *o = out;                                                          \
    const uint8_t *x = a, *y = b;                                              \
    size_t left = count * (bytes_each);                                        \
    for (; left >= (block); left -= (block)) {                                 \
      block_##block_name(o, x, y);                                             \
      o += (block), x += (block), y += (block);                                \
    }                                                                          \
    if (!left) return;                                                         \
    uint8_t p[block] = {0}, q[block] = {0};                                    \
    memcpy(p, x, left);                                                        \
    memcpy(q, y, left);                                                        \
    block_##block_name(p, p, q);                                               \
    memcpy(o, p, left);                                                        \
  }                                                                            \
  TARGET static void reduce_##name(void *acc, const void *in, size_t count) {  \
    combine_##name(acc, acc, in, count);                                       \
  }

#define BITS_KERNELS(name, bytes_each)                                         \
  KERNEL(name##_sum, name##_sum, VEC, bytes_each)                              \
  KERNEL(name##_product, name##_product, VEC, bytes_each)                      \
  KERNEL(name##_band, band, VEC, bytes_each)                                   \
  KERNEL(name##_bor, bor, VEC, bytes_each)                                     \
  KERNEL(name##_bxor, bxor, VEC, bytes_each)
BITS_KERNELS(b8, 1)
BITS_KERNELS(b16, 2)
BITS_KERNELS(b32, 4)
BITS_KERNELS(b64, 8)

#define COMPARE_KERNELS(name, block, bytes_each)                               \
  KERNEL(name##_max, name##_max, block, bytes_each)                            \
  KERNEL(name##_min, name##_min, block, bytes_each)
COMPARE_KERNELS(i8, VEC, 1)
COMPARE_KERNELS(u8, VEC, 1)
COMPARE_KERNELS(i16, VEC, 2)
COMPARE_KERNELS(u16, VEC, 2)
COMPARE_KERNELS(i32, VEC, 4)
COMPARE_KERNELS(u32, VEC, 4)
COMPARE_KERNELS(i64, VEC, 8)
COMPARE_KERNELS(u64, VEC, 8)

#define FLOAT_KERNELS(name, block, bytes_each)                                 \
  COMPARE_KERNELS(name, block, bytes_each)                                     \
  KERNEL(name##_sum, name##_sum, block, bytes_each)                            \
  KERNEL(name##_product, name##_product, block, bytes_each)
FLOAT_KERNELS(f16, VEC / 2, 2)
FLOAT_KERNELS(bf16, VEC / 2, 2)
FLOAT_KERNELS(f32, VEC, 4)
FLOAT_KERNELS(f64, VEC, 8)

KERNEL(bool_or, bool_or, VEC, 1)
KERNEL(bool_and, bool_and, VEC, 1)
KERNEL(bool_xor, bool_xor, VEC, 1)
/* Complex numbers add as two floats. */
KERNEL(c64_sum, f32_sum, VEC, 8)
KERNEL(c128_sum, f64_sum, VEC, 16)

/* ---- one array into another: load, store and divide ---- */

/* `work` turns the vector x of `lanes` elements, read from `in`, into y. */
#define MAP(name, in_vec, out_vec, parameter, work)                            \
  INLINE void block_##name(void *out, const void *in, parameter) {             \
    in_vec x;                                                                  \
    out_vec y;                                                                 \
    LOAD(x, in);                                                               \
    work;                                                                      \
    STORE(out, y);                                                             \
  }
#define MAP_ARRAY(name, in_each, out_each, lanes, type)                        \
  TARGET static void name(void *out, const void *in, size_t count, type by) {  \
    uint8_t *o = out;                                                          \
    const uint8_t *x = in;                                                     \
    for (; count >= (lanes); count -= (lanes)) {                               \
      block_##name(o, x, by);                                                  \
      o += (lanes) * (out_each), x += (lanes) * (in_each);                     \
    }                                                                          \
    if (!count) return;                                                        \
    uint8_t p[(lanes) * (in_each)] = {0}, q[(lanes) * (out_each)];             \
    memcpy(p, x, count * (in_each));                                           \
    block_##name(q, p, by);                                                    \
    memcpy(o, q, count * (out_each));                                          \
  }

#define WIDE_MAPS(name, type, float_vec)                                       \
  MAP(load_##name, float_vec, float_vec, double by,                            \
      y = x * (type)by; name##_canonical(&y))                                  \
  MAP(divide_##name, float_vec, float_vec, int by,                             \
      y = x / (type)by; name##_canonical(&y))                                  \
  MAP_ARRAY(load_##name, sizeof(type), sizeof(type), VEC / sizeof(type),       \
            double)                                                            \
  MAP_ARRAY(divide_##name, sizeof(type), sizeof(type), VEC / sizeof(type), int)

WIDE_MAPS(f32, float, vec_f32)
WIDE_MAPS(f64, double, vec_f64)

#define NARROW_MAPS(name, narrow_vec, bytes_each, WIDEN, NARROW)               \
  MAP(load_##name, narrow_vec, vec_f32, double by,                             \
      WIDEN(&y, &x); if (by != 1) y *= (float)by; f32_canonical(&y))           \
  MAP(store_##name, vec_f32, narrow_vec, int by,                               \
      if (by != 1) x /= (float)by; f32_canonical(&x); NARROW(&y, &x))          \
  MAP_ARRAY(load_##name, bytes_each, 4, VEC / 4, double)                       \
  MAP_ARRAY(store_##name, 4, bytes_each, VEC / 4, int)

NARROW_MAPS(f16, vec_half, 2, F16_TO_F32, F32_TO_F16)
NARROW_MAPS(bf16, vec_half, 2, BF16_TO_F32, F32_TO_BF16)
NARROW_MAPS(e4m3fn, vec_quarter, 1, e4m3fn_to_f32, f32_to_e4m3fn)
NARROW_MAPS(e5m2, vec_quarter, 1, e5m2_to_f32, f32_to_e5m2)
NARROW_MAPS(e4m3fnuz, vec_quarter, 1, e4m3fnuz_to_f32, f32_to_e4m3fnuz)
NARROW_MAPS(e5m2fnuz, vec_quarter, 1, e5m2fnuz_to_f32, f32_to_e5m2fnuz)

#define HALF_DIVIDE(name, WIDEN, NARROW)                                       \
  MAP(divide_##name, vec_half, vec_half, int by,                               \
      vec_f32 wide; WIDEN(&wide, &x); wide /= (float)by;                       \
      f32_canonical(&wide); NARROW(&y, &wide))                                 \
  MAP_ARRAY(divide_##name, 2, 2, VEC / 4, int)

HALF_DIVIDE(f16, F16_TO_F32, F32_TO_F16)
HALF_DIVIDE(bf16, BF16_TO_F32, F32_TO_BF16)

TARGET static void divide_c64(void *out, const void *in, size_t count, int by) {
  divide_f32(out, in, count * 2, by);
}
TARGET static void divide_c128(void *out, const void *in, size_t count,
                               int by) {
  divide_f64(out, in, count * 2, by);
}

/* ---- the table ---- */

#define INTEGER(table, bits, name)                                             \
  {                                                                            \
    [GBI_KERNEL_SUM] = table##_b##bits##_sum,                                  \
    [GBI_KERNEL_MAX] = table##_##name##bits##_max,                             \
    [GBI_KERNEL_MIN] = table##_##name##bits##_min,                             \
    [GBI_KERNEL_PRODUCT] = table##_b##bits##_product,                          \
    [GBI_KERNEL_BAND] = table##_b##bits##_band,                                \
    [GBI_KERNEL_BOR] = table##_b##bits##_bor,                                  \
    [GBI_KERNEL_BXOR] = table##_b##bits##_bxor,                                \
  }
#define FLOATING(table, name)                                                  \
  {                                                                            \
    [GBI_KERNEL_SUM] = table##_##name##_sum,                                   \
    [GBI_KERNEL_MAX] = table##_##name##_max,                                   \
    [GBI_KERNEL_MIN] = table##_##name##_min,                                   \
    [GBI_KERNEL_PRODUCT] = table##_##name##_product,                           \
  }
#define BOOLEAN(table)                                                         \
  {                                                                            \
    [GBI_KERNEL_SUM] = table##_bool_or, [GBI_KERNEL_MAX] = table##_bool_or,    \
    [GBI_KERNEL_BOR] = table##_bool_or, [GBI_KERNEL_MIN] = table##_bool_and,   \
    [GBI_KERNEL_PRODUCT] = table##_bool_and,                                   \
    [GBI_KERNEL_BAND] = table##_bool_and,                                      \
    [GBI_KERNEL_BXOR] = table##_bool_xor,                                      \
  }
#define TABLE(table)                                                           \
  {                                                                            \
    [GB_INT8] = INTEGER(table, 8, i), [GB_UINT8] = INTEGER(table, 8, u),       \
    [GB_INT16] = INTEGER(table, 16, i), [GB_UINT16] = INTEGER(table, 16, u),   \
    [GB_INT32] = INTEGER(table, 32, i), [GB_UINT32] = INTEGER(table, 32, u),   \
    [GB_INT64] = INTEGER(table, 64, i), [GB_UINT64] = INTEGER(table, 64, u),   \
    [GB_BOOL] = BOOLEAN(table), [GB_FLOAT16] = FLOATING(table, f16),           \
    [GB_BFLOAT16] = FLOATING(table, bf16),                                     \
    [GB_FLOAT32] = FLOATING(table, f32), [GB_FLOAT64] = FLOATING(table, f64),  \
    [GB_COMPLEX64] = {[GBI_KERNEL_SUM] = table##_c64_sum},                     \
    [GB_COMPLEX128] = {[GBI_KERNEL_SUM] = table##_c128_sum},                   \
  }

const gbi_kernels KERNELS = {
    .name = KERNELS_NAME,
    .reduce = TABLE(reduce),
    .combine = TABLE(combine),
    .divide = {[GB_FLOAT16] = divide_f16, [GB_BFLOAT16] = divide_bf16,
               [GB_FLOAT32] = divide_f32, [GB_FLOAT64] = divide_f64,
               [GB_COMPLEX64] = divide_c64, [GB_COMPLEX128] = divide_c128},
    .load = {[GB_FLOAT16] = load_f16, [GB_BFLOAT16] = load_bf16,
             [GB_FLOAT32] = load_f32, [GB_FLOAT64] = load_f64,
             [GB_FLOAT8_E4M3FN] = load_e4m3fn, [GB_FLOAT8_E5M2] = load_e5m2,
             [GB_FLOAT8_E4M3FNUZ] = load_e4m3fnuz,
             [GB_FLOAT8_E5M2FNUZ] = load_e5m2fnuz},
    .store = {[GB_FLOAT16] = store_f16, [GB_BFLOAT16] = store_bf16,
              [GB_FLOAT32] = divide_f32, [GB_FLOAT64] = divide_f64,
              [GB_FLOAT8_E4M3FN] = store_e4m3fn, [GB_FLOAT8_E5M2] = store_e5m2,
              [GB_FLOAT8_E4M3FNUZ] = store_e4m3fnuz,
              [GB_FLOAT8_E5M2FNUZ] = store_e5m2fnuz},
};
