/* device/kernels: the names in source.h. Internal to device, and for the fakes.
 *
 * X(name, bytes of an element that goes in, of one that comes out): gbk_<name>
 * is the function. */
#ifndef GBI_DEVICE_KERNELS_LIST_H
#define GBI_DEVICE_KERNELS_LIST_H

#define GBI_FOLDS_OF_BITS(X, bits, bytes) \
  X(fold_b##bits##_sum, bytes, bytes)     \
  X(fold_b##bits##_product, bytes, bytes) \
  X(fold_b##bits##_band, bytes, bytes)    \
  X(fold_b##bits##_bor, bytes, bytes)     \
  X(fold_b##bits##_bxor, bytes, bytes)
#define GBI_FOLDS_COMPARE(X, name, bytes) \
  X(fold_##name##_max, bytes, bytes)      \
  X(fold_##name##_min, bytes, bytes)
#define GBI_FOLDS_FLOAT(X, name, bytes) \
  GBI_FOLDS_COMPARE(X, name, bytes)     \
  X(fold_##name##_sum, bytes, bytes)    \
  X(fold_##name##_product, bytes, bytes)

/* (out, a, b, count, rows, stride) */
#define GBI_FOLD_KERNELS(X)    \
  GBI_FOLDS_OF_BITS(X, 8, 1)   \
  GBI_FOLDS_OF_BITS(X, 16, 2)  \
  GBI_FOLDS_OF_BITS(X, 32, 4)  \
  GBI_FOLDS_OF_BITS(X, 64, 8)  \
  GBI_FOLDS_COMPARE(X, i8, 1)  \
  GBI_FOLDS_COMPARE(X, u8, 1)  \
  GBI_FOLDS_COMPARE(X, i16, 2) \
  GBI_FOLDS_COMPARE(X, u16, 2) \
  GBI_FOLDS_COMPARE(X, i32, 4) \
  GBI_FOLDS_COMPARE(X, u32, 4) \
  GBI_FOLDS_COMPARE(X, i64, 8) \
  GBI_FOLDS_COMPARE(X, u64, 8) \
  GBI_FOLDS_FLOAT(X, f16, 2)   \
  GBI_FOLDS_FLOAT(X, bf16, 2)  \
  GBI_FOLDS_FLOAT(X, f32, 4)   \
  GBI_FOLDS_FLOAT(X, f64, 8)   \
  X(fold_bool_or, 1, 1)        \
  X(fold_bool_and, 1, 1)       \
  X(fold_bool_xor, 1, 1)

/* (out, in, count, by) */
#define GBI_MAP_KERNELS(X) \
  X(load_f16, 2, 4)        \
  X(load_bf16, 2, 4)       \
  X(load_e4m3fn, 1, 4)     \
  X(load_e5m2, 1, 4)       \
  X(load_e4m3fnuz, 1, 4)   \
  X(load_e5m2fnuz, 1, 4)   \
  X(load_f32, 4, 4)        \
  X(load_f64, 8, 8)        \
  X(store_f16, 4, 2)       \
  X(store_bf16, 4, 2)      \
  X(store_e4m3fn, 4, 1)    \
  X(store_e5m2, 4, 1)      \
  X(store_e4m3fnuz, 4, 1)  \
  X(store_e5m2fnuz, 4, 1)  \
  X(divide_f16, 2, 2)      \
  X(divide_bf16, 2, 2)     \
  X(divide_f32, 4, 4)      \
  X(divide_f64, 8, 8)

/* (payload, values, residual, count); (values, payload, count, rows, stride) */
#define GBI_ENCODE_KERNELS(X) \
  X(encode_bf16, 4, 0)        \
  X(encode_fp8, 4, 0)
#define GBI_DECODE_KERNELS(X) \
  X(decode_bf16, 0, 4)        \
  X(decode_fp8, 0, 4)

#define GBI_KERNELS(X)  \
  GBI_FOLD_KERNELS(X)   \
  GBI_MAP_KERNELS(X)    \
  GBI_ENCODE_KERNELS(X) \
  GBI_DECODE_KERNELS(X)

#endif
