/* device/kernels: element-wise work on device memory. One source, three ways:
 * this text is in the library and compiled at run time for the GPU that is
 * there, as CUDA C++ by NVRTC and as HIP C++ by HIPRTC; as C11 it is what the
 * fakes run (tests/fakes/kernels.c). So it includes nothing.
 *
 * Bits are those of device/host/reduce.h and codec/codec.h: conversions are
 * done with whole numbers, nothing is contracted or flushed (the compiler's
 * options are in compiler.c), every NaN that comes out is the one canonical
 * quiet NaN.
 *
 * Data are aligned to their elements; payloads may lie at any byte. A launch
 * has blocks of GBK_THREADS_EACH threads, as many as it likes. A count of 0 is
 * fine: it brings the code to the device. */
#ifndef GBI_DEVICE_KERNELS_SOURCE_H
#define GBI_DEVICE_KERNELS_SOURCE_H

#define GBK_THREADS_EACH 256

/* EACH: elements over all threads. BLOCKS: pieces over blocks of threads, all
 * of which stay together, so that they may SYNC; THREADS: those of the block
 * that this is in. In C one thread is all of them. */
#if defined(__CUDACC__) || defined(__HIP__)
#define GBK_KERNEL extern "C" __global__ void __launch_bounds__(256)
#define GBK_INLINE static __device__ __forceinline__
#define GBK_EACH(i, count)                                         \
  for (gbk_u64 i = (gbk_u64)blockIdx.x * blockDim.x + threadIdx.x; \
       i < (count); i += (gbk_u64)gridDim.x * blockDim.x)
#define GBK_BLOCKS(b, count) \
  for (gbk_u64 b = blockIdx.x; b < (count); b += gridDim.x)
#define GBK_THREADS(t) for (gbk_u32 t = threadIdx.x, n_ = 1; n_; n_ = 0)
#define GBK_SHARED __shared__
#define GBK_SYNC() __syncthreads()
#else
#define GBK_KERNEL static void
#define GBK_INLINE static inline
#define GBK_EACH(i, count) for (gbk_u64 i = 0; i < (count); i++)
#define GBK_BLOCKS(b, count) for (gbk_u64 b = 0; b < (count); b++)
#define GBK_THREADS(t) for (gbk_u32 t = 0; t < GBK_THREADS_EACH; t++)
#define GBK_SHARED
#define GBK_SYNC() (void)0
#endif
#if defined(__clang__)
#pragma clang fp contract(off)
#endif

typedef signed char gbk_i8;
typedef unsigned char gbk_u8;
typedef short gbk_i16;
typedef unsigned short gbk_u16;
typedef int gbk_i32;
typedef unsigned int gbk_u32;
typedef long long gbk_i64;
typedef unsigned long long gbk_u64;
typedef float gbk_f32;
typedef double gbk_f64;

/* ---- floats and their bits ---- */

GBK_INLINE gbk_u32 gbk_bits_f32(gbk_f32 value) {
  union {
    gbk_f32 f;
    gbk_u32 u;
  } both;
  both.f = value;
  return both.u;
}

GBK_INLINE gbk_f32 gbk_of_f32(gbk_u32 bits) {
  union {
    gbk_f32 f;
    gbk_u32 u;
  } both;
  both.u = bits;
  return both.f;
}

GBK_INLINE gbk_u64 gbk_bits_f64(gbk_f64 value) {
  union {
    gbk_f64 f;
    gbk_u64 u;
  } both;
  both.f = value;
  return both.u;
}

GBK_INLINE gbk_f64 gbk_of_f64(gbk_u64 bits) {
  union {
    gbk_f64 f;
    gbk_u64 u;
  } both;
  both.u = bits;
  return both.f;
}

/* MAX and MIN of equals mix the bits: -0 and +0 give +0 in MAX, -0 in MIN. */
#define GBK_FLOAT(f, bits, quiet)                            \
  GBK_INLINE gbk_##f gbk_canonical_##f(gbk_##f x) {          \
    return x == x ? x : gbk_of_##f(quiet);                   \
  }                                                          \
  GBK_INLINE gbk_##f gbk_sum_##f(gbk_##f x, gbk_##f y) {     \
    return gbk_canonical_##f(x + y);                         \
  }                                                          \
  GBK_INLINE gbk_##f gbk_product_##f(gbk_##f x, gbk_##f y) { \
    return gbk_canonical_##f(x * y);                         \
  }                                                          \
  GBK_INLINE gbk_##f gbk_max_##f(gbk_##f x, gbk_##f y) {     \
    bits both = gbk_bits_##f(x) & gbk_bits_##f(y);           \
    if (x > y) return x;                                     \
    if (x < y) return y;                                     \
    return gbk_of_##f(x == y ? both : quiet);                \
  }                                                          \
  GBK_INLINE gbk_##f gbk_min_##f(gbk_##f x, gbk_##f y) {     \
    bits both = gbk_bits_##f(x) | gbk_bits_##f(y);           \
    if (x < y) return x;                                     \
    if (x > y) return y;                                     \
    return gbk_of_##f(x == y ? both : quiet);                \
  }

GBK_FLOAT(f32, gbk_u32, 0x7fc00000u)
GBK_FLOAT(f64, gbk_u64, 0x7ff8000000000000ull)

GBK_INLINE gbk_f32 gbk_times(gbk_f32 x, gbk_f64 by) {
  return gbk_canonical_f32(by == 1 ? x : x * (gbk_f32)by);
}

GBK_INLINE gbk_f32 gbk_over(gbk_f32 x, gbk_f64 by) {
  return gbk_canonical_f32(by == 1 ? x : x / (gbk_f32)by);
}

/* ---- narrow floats ---- */

/* A subnormal is a whole number times a power of two, computed as such. */
GBK_INLINE gbk_f32 gbk_wide_f16(gbk_u16 half) {
  gbk_u32 magnitude = half & 0x7fffu, sign = (gbk_u32)(half & 0x8000u) << 16;
  gbk_u32 bits = (magnitude << 13) + (112u << 23);
  if (magnitude < 0x400u)
    bits = gbk_bits_f32((gbk_f32)magnitude * gbk_of_f32(103u << 23));
  if (magnitude >= 0x7c00u) bits = (magnitude << 13) | 0x7f800000u;
  return gbk_of_f32(bits | sign);
}

/* Below 2^-14 adding 0.5 lines the bits up with the half's and rounds them. A
 * NaN is canonical already. */
GBK_INLINE gbk_u16 gbk_narrow_f16(gbk_f32 value) {
  gbk_u32 bits = gbk_bits_f32(value);
  gbk_u32 sign = (bits >> 16) & 0x8000u, a = bits & 0x7fffffffu;
  gbk_u32 code = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13;
  if (a < 0x38800000u) code = gbk_bits_f32(gbk_of_f32(a) + 0.5f) - 0x3f000000u;
  if (a >= 0x47800000u) code = 0x7c00u;
  if (a > 0x7f800000u) code = 0x7e00u;
  return (gbk_u16)(code | sign);
}

GBK_INLINE gbk_f32 gbk_wide_bf16(gbk_u16 half) {
  return gbk_of_f32((gbk_u32)half << 16);
}

GBK_INLINE gbk_u16 gbk_narrow_bf16(gbk_f32 value) {
  gbk_u32 bits = gbk_bits_f32(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return (gbk_u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* digits: of the mantissa. inf: code of infinity, 0xff where there is none.
 * most: the largest finite code. over: what a larger value becomes. nan: the
 * one that comes out. keep: where zero has a sign. */
#define GBK_FLOAT8(name, digits, bias, inf, is_nan, most, over, nan, keep)    \
  GBK_INLINE gbk_f32 gbk_wide_##name(gbk_u8 narrow) {                         \
    gbk_u32 code = narrow, magnitude = code & 0x7fu;                          \
    gbk_u32 bits = (magnitude << (23 - (digits))) + ((127u - (bias)) << 23);  \
    if (magnitude < (1u << (digits)))                                         \
      bits = gbk_bits_f32((gbk_f32)magnitude *                                \
                          gbk_of_f32((128u - (bias) - (digits)) << 23));      \
    if (magnitude == (inf)) bits = 0x7f800000u;                               \
    bits |= (code & 0x80u) << 24;                                             \
    return gbk_of_f32((is_nan) ? 0x7fc00000u : bits);                         \
  }                                                                           \
  GBK_INLINE gbk_u8 gbk_narrow_##name(gbk_f32 value) {                        \
    gbk_u32 bits = gbk_bits_f32(value), a = bits & 0x7fffffffu;               \
    gbk_u32 magic = (151u - (bias) - (digits)) << 23;                         \
    gbk_u32 code =                                                            \
        (a - ((127u - (bias)) << 23) + ((1u << (22 - (digits))) - 1u) +       \
         ((a >> (23 - (digits))) & 1u)) >>                                    \
        (23 - (digits));                                                      \
    if (a < ((128u - (bias)) << 23))                                          \
      code = gbk_bits_f32(gbk_of_f32(a) + gbk_of_f32(magic)) - magic;         \
    if (code > (most)) code = (over);                                         \
    if (a > 0x7f800000u) return (nan);                                        \
    return (gbk_u8)((code || (keep)) ? code | ((bits >> 24) & 0x80u) : code); \
  }

GBK_FLOAT8(e4m3fn, 3, 7, 0xffu, magnitude == 0x7fu, 0x7eu, 0x7eu, 0x7fu, 1)
GBK_FLOAT8(e5m2, 2, 15, 0x7cu, magnitude > 0x7cu, 0x7bu, 0x7cu, 0x7fu, 1)
GBK_FLOAT8(e4m3fnuz, 3, 8, 0xffu, code == 0x80u, 0x7fu, 0x80u, 0x80u, 0)
GBK_FLOAT8(e5m2fnuz, 2, 16, 0xffu, code == 0x80u, 0x7fu, 0x80u, 0x80u, 0)

/* Of fp8 payloads. */
enum { GBK_FP8_BLOCK = 256, GBK_FP8_BIAS = 134, GBK_FP8_RESERVED = 255 };

/* ---- fold: out[i] = a[i] op b[i] op b[i + one row] ..., left to right ----
 *
 * out may be a, or row by row b. stride: bytes from row to row. */

#define GBK_FOLD(name, type, result)                                        \
  GBK_KERNEL gbk_fold_##name(void *out, const void *a, const void *b,       \
                             gbk_u64 count, gbk_u64 rows, gbk_u64 stride) { \
    GBK_EACH(i, count) {                                                    \
      type x = ((const type *)a)[i];                                        \
      for (gbk_u64 row = 0; row < rows; row++) {                            \
        type y = ((const type *)((const gbk_u8 *)b + row * stride))[i];     \
        x = (type)(result);                                                 \
      }                                                                     \
      ((type *)out)[i] = x;                                                 \
    }                                                                       \
  }

/* Sums and products wrap. */
#define GBK_BITS(bits)                                             \
  GBK_FOLD(b##bits##_sum, gbk_u##bits, (gbk_u64)x + (gbk_u64)y)    \
  GBK_FOLD(b##bits##_product, gbk_u##bits, (gbk_u64)x *(gbk_u64)y) \
  GBK_FOLD(b##bits##_band, gbk_u##bits, x &y)                      \
  GBK_FOLD(b##bits##_bor, gbk_u##bits, x | y)                      \
  GBK_FOLD(b##bits##_bxor, gbk_u##bits, x ^ y)
GBK_BITS(8)
GBK_BITS(16)
GBK_BITS(32)
GBK_BITS(64)

#define GBK_COMPARE(name)                         \
  GBK_FOLD(name##_max, gbk_##name, x > y ? x : y) \
  GBK_FOLD(name##_min, gbk_##name, x < y ? x : y)
GBK_COMPARE(i8)
GBK_COMPARE(u8)
GBK_COMPARE(i16)
GBK_COMPARE(u16)
GBK_COMPARE(i32)
GBK_COMPARE(u32)
GBK_COMPARE(i64)
GBK_COMPARE(u64)

#define GBK_WIDE(name)                                           \
  GBK_FOLD(name##_sum, gbk_##name, gbk_sum_##name(x, y))         \
  GBK_FOLD(name##_product, gbk_##name, gbk_product_##name(x, y)) \
  GBK_FOLD(name##_max, gbk_##name, gbk_max_##name(x, y))         \
  GBK_FOLD(name##_min, gbk_##name, gbk_min_##name(x, y))
GBK_WIDE(f32)
GBK_WIDE(f64)

/* Widened, combined and rounded once for each row. */
#define GBK_HALF_OP(name, op)    \
  GBK_FOLD(name##_##op, gbk_u16, \
           gbk_narrow_##name(    \
               gbk_##op##_f32(gbk_wide_##name(x), gbk_wide_##name(y))))
#define GBK_HALF(name)       \
  GBK_HALF_OP(name, sum)     \
  GBK_HALF_OP(name, product) \
  GBK_HALF_OP(name, max)     \
  GBK_HALF_OP(name, min)
GBK_HALF(f16)
GBK_HALF(bf16)

/* Any byte but 0 is true. */
GBK_FOLD(bool_or, gbk_u8, (x | y) != 0)
GBK_FOLD(bool_and, gbk_u8, x != 0 && y != 0)
GBK_FOLD(bool_xor, gbk_u8, (x != 0) != (y != 0))

/* ---- parts of payloads ---- */

/* Value i of a payload as the codec takes it: 0 behind the last. */
GBK_INLINE gbk_f32 gbk_value(const void *values, const void *residual,
                             gbk_u64 i, gbk_u64 count) {
  if (i >= count) return 0;
  gbk_f32 x = ((const gbk_f32 *)values)[i];
  return residual ? x + ((const gbk_f32 *)residual)[i] : x;
}

/* What is lost of x; 0 where that is not finite. */
GBK_INLINE gbk_f32 gbk_lost(gbk_f32 x, gbk_f32 sent) {
  gbk_u32 rest = gbk_bits_f32(x - sent);
  return gbk_of_f32((rest & 0x7fffffffu) < 0x7f800000u ? rest : 0);
}

/* ---- one array into another; out may be in where elements are equal ---- */

#define GBK_MAP(name, in_type, out_type, result)                  \
  GBK_KERNEL gbk_##name(void *out, const void *in, gbk_u64 count, \
                        gbk_f64 by) {                             \
    GBK_EACH(i, count) {                                          \
      in_type x = ((const in_type *)in)[i];                       \
      ((out_type *)out)[i] = result;                              \
    }                                                             \
  }

/* load: times a factor, to the wide type. store: over a divisor, and back. A
 * factor or divisor of 1 does nothing. */
#define GBK_MAP_WIDE(name)                         \
  GBK_MAP(load_##name, gbk_##name, gbk_##name,     \
          gbk_canonical_##name(x *(gbk_##name)by)) \
  GBK_MAP(divide_##name, gbk_##name, gbk_##name,   \
          gbk_canonical_##name(x / (gbk_##name)by))
GBK_MAP_WIDE(f32)
GBK_MAP_WIDE(f64)

#define GBK_MAP_NARROW(name, type)                                       \
  GBK_MAP(load_##name, type, gbk_f32, gbk_times(gbk_wide_##name(x), by)) \
  GBK_MAP(store_##name, gbk_f32, type, gbk_narrow_##name(gbk_over(x, by)))
GBK_MAP_NARROW(f16, gbk_u16)
GBK_MAP_NARROW(bf16, gbk_u16)
GBK_MAP_NARROW(e4m3fn, gbk_u8)
GBK_MAP_NARROW(e5m2, gbk_u8)
GBK_MAP_NARROW(e4m3fnuz, gbk_u8)
GBK_MAP_NARROW(e5m2fnuz, gbk_u8)

GBK_MAP(divide_f16, gbk_u16, gbk_u16,
        gbk_narrow_f16(gbk_canonical_f32(gbk_wide_f16(x) / (gbk_f32)by)))
GBK_MAP(divide_bf16, gbk_u16, gbk_u16,
        gbk_narrow_bf16(gbk_canonical_f32(gbk_wide_bf16(x) / (gbk_f32)by)))

/* ---- payloads of codec/codec.h ----
 *
 * encode: residual may be NULL. decode: the sum of `rows` payloads, one each
 * `stride` bytes, in their order. */

GBK_KERNEL gbk_encode_bf16(void *payload, const void *values, void *residual,
                           gbk_u64 count) {
  GBK_EACH(i, count) {
    gbk_f32 x = gbk_value(values, residual, i, count);
    gbk_u16 code = gbk_narrow_bf16(x);
    ((gbk_u8 *)payload)[2 * i] = (gbk_u8)code;
    ((gbk_u8 *)payload)[2 * i + 1] = (gbk_u8)(code >> 8);
    if (residual) ((gbk_f32 *)residual)[i] = gbk_lost(x, gbk_wide_bf16(code));
  }
}

GBK_KERNEL gbk_decode_bf16(void *values, const void *payload, gbk_u64 count,
                           gbk_u64 rows, gbk_u64 stride) {
  GBK_EACH(i, count) {
    gbk_f32 sum = 0;
    for (gbk_u64 row = 0; row < rows; row++) {
      const gbk_u8 *at = (const gbk_u8 *)payload + row * stride + 2 * i;
      gbk_f32 x = gbk_wide_bf16((gbk_u16)(at[0] | at[1] << 8));
      sum = gbk_canonical_f32(row ? sum + x : x);
    }
    ((gbk_f32 *)values)[i] = sum;
  }
}

/* A power of two in two steps, each a normal number. */
typedef struct gbk_factors {
  gbk_f32 first, second;
} gbk_factors;

GBK_INLINE gbk_f32 gbk_power(gbk_i32 exponent) {
  return gbk_of_f32((gbk_u32)(exponent + 127) << 23);
}

GBK_INLINE gbk_factors gbk_encode_factors(gbk_u32 scale) {
  gbk_i32 up = GBK_FP8_BIAS - (gbk_i32)scale, first = up < 126 ? up : 126;
  gbk_factors f;
  f.first = gbk_power(first);
  f.second = gbk_power(up - first);
  return f;
}

GBK_INLINE gbk_factors gbk_decode_factors(gbk_u32 scale) {
  gbk_i32 e = (gbk_i32)scale - GBK_FP8_BIAS, second = e > -126 ? e : -126;
  gbk_factors f;
  f.first = gbk_power(e - second);
  f.second = gbk_power(second);
  return f;
}

/* The scale byte for values up to `most`, as bits. */
GBK_INLINE gbk_u32 gbk_fp8_scale(gbk_u32 most) {
  if (most >= 0x7f800000u) return GBK_FP8_RESERVED;
  if (!most) return GBK_FP8_BIAS;
  gbk_u32 exponent = (most + 0x1fffffu) >> 23;
  return exponent ? exponent - 1 : 0;
}

GBK_INLINE gbk_u8 gbk_fp8_code(gbk_f32 x, gbk_u32 scale) {
  gbk_factors f = gbk_encode_factors(scale);
  gbk_u32 y = gbk_bits_f32(x * f.first * f.second) & 0x7fffffffu;
  gbk_u32 code = ((y + 0x7ffffu + ((y >> 20) & 1u)) >> 20) - (120u << 3);
  /* 2^14 has a last place of 2^-9, as the subnormal codes have. */
  if (y < 0x3c800000u)
    code = gbk_bits_f32(gbk_of_f32(y) + 16384.0f) - 0x46800000u;
  return (gbk_u8)(code | ((gbk_bits_f32(x) >> 24) & 0x80u));
}

GBK_INLINE gbk_f32 gbk_fp8_value(gbk_u32 code, gbk_u32 scale) {
  gbk_u32 low = code & 0x7fu, bits = (low << 20) + (120u << 23);
  gbk_factors f = gbk_decode_factors(scale);
  if (scale == GBK_FP8_RESERVED || low == 0x7fu) return gbk_of_f32(0x7fc00000u);
  if (low < 8) bits = gbk_bits_f32((gbk_f32)low * gbk_power(-9));
  bits = gbk_bits_f32(gbk_of_f32(bits) * f.first * f.second);
  return gbk_of_f32(bits | ((code & 0x80u) << 24));
}

GBK_KERNEL gbk_encode_fp8(void *payload, const void *values, void *residual,
                          gbk_u64 count) {
  GBK_SHARED gbk_u32 most[GBK_FP8_BLOCK];
  GBK_BLOCKS(b, (count + GBK_FP8_BLOCK - 1) / GBK_FP8_BLOCK) {
    gbk_u64 at = b * GBK_FP8_BLOCK;
    gbk_u8 *block = (gbk_u8 *)payload + b * (GBK_FP8_BLOCK + 1);
    GBK_THREADS(t) {
      gbk_f32 x = gbk_value(values, residual, at + t, count);
      most[t] = gbk_bits_f32(x) & 0x7fffffffu;
    }
    GBK_SYNC();
    for (gbk_u32 half = GBK_FP8_BLOCK / 2; half; half /= 2) {
      GBK_THREADS(t) {
        if (t < half && most[t + half] > most[t]) most[t] = most[t + half];
      }
      GBK_SYNC();
    }
    gbk_u32 scale = gbk_fp8_scale(most[0]);
    GBK_THREADS(t) {
      gbk_u64 i = at + t;
      gbk_u8 code = 0;
      gbk_f32 x = gbk_value(values, residual, i, count);
      if (scale != GBK_FP8_RESERVED) code = gbk_fp8_code(x, scale);
      if (t == 0) block[0] = (gbk_u8)scale;
      if (i < count) block[1 + t] = code;
      if (residual && i < count)
        ((gbk_f32 *)residual)[i] = gbk_lost(x, gbk_fp8_value(code, scale));
    }
    GBK_SYNC();
  }
}

GBK_KERNEL gbk_decode_fp8(void *values, const void *payload, gbk_u64 count,
                          gbk_u64 rows, gbk_u64 stride) {
  GBK_EACH(i, count) {
    gbk_u64 block = i / GBK_FP8_BLOCK * (GBK_FP8_BLOCK + 1);
    gbk_f32 sum = 0;
    for (gbk_u64 row = 0; row < rows; row++) {
      const gbk_u8 *at = (const gbk_u8 *)payload + row * stride + block;
      gbk_f32 x = gbk_fp8_value(at[1 + i % GBK_FP8_BLOCK], at[0]);
      sum = gbk_canonical_f32(row ? sum + x : x);
    }
    ((gbk_f32 *)values)[i] = sum;
  }
}

#endif
