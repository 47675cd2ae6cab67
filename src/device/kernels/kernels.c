#include "device/kernels/kernels.h"

#include "base/log.h"
#include "base/memory.h"
#include "device/compiler.h"
#include "device/kernels/list.h"

#include <stdlib.h>

enum {
  THREADS = 256, /* GBK_THREADS_EACH */
  BLOCKS_MOST = 4096,
  /* Of gbi_codec, which is not of this layer's. */
  CODEC_BF16 = 1,
  CODEC_FP8 = 2
};

enum {
  KERNEL_NONE,
#define ID(name, in, out) KERNEL_##name,
  GBI_KERNELS(ID)
#undef ID
      KERNELS
};

static const char *const names[KERNELS] = {
#define NAME(name, in, out) [KERNEL_##name] = "gbk_" #name,
    GBI_KERNELS(NAME)
#undef NAME
};

struct gbi_kernel_set {
  gbi_device *device;
  gbi_module module;
  gbi_function functions[KERNELS];
};

/* ---- which ---- */

#define INTEGER(bits, name)                       \
  {                                               \
    [GB_SUM] = KERNEL_fold_b##bits##_sum,         \
    [GB_PRODUCT] = KERNEL_fold_b##bits##_product, \
    [GB_MAX] = KERNEL_fold_##name##bits##_max,    \
    [GB_MIN] = KERNEL_fold_##name##bits##_min,    \
    [GB_BAND] = KERNEL_fold_b##bits##_band,       \
    [GB_BOR] = KERNEL_fold_b##bits##_bor,         \
    [GB_BXOR] = KERNEL_fold_b##bits##_bxor,       \
  }
#define FLOATING(name)                                                        \
  {                                                                           \
    [GB_SUM] = KERNEL_fold_##name##_sum,                                      \
    [GB_PRODUCT] = KERNEL_fold_##name##_product,                              \
    [GB_MAX] = KERNEL_fold_##name##_max, [GB_MIN] = KERNEL_fold_##name##_min, \
  }

static const uint8_t folds[GB_DTYPE_COUNT][GB_REDOP_COUNT] = {
    [GB_INT8] = INTEGER(8, i),
    [GB_UINT8] = INTEGER(8, u),
    [GB_INT16] = INTEGER(16, i),
    [GB_UINT16] = INTEGER(16, u),
    [GB_INT32] = INTEGER(32, i),
    [GB_UINT32] = INTEGER(32, u),
    [GB_INT64] = INTEGER(64, i),
    [GB_UINT64] = INTEGER(64, u),
    [GB_FLOAT16] = FLOATING(f16),
    [GB_BFLOAT16] = FLOATING(bf16),
    [GB_FLOAT32] = FLOATING(f32),
    [GB_FLOAT64] = FLOATING(f64),
    [GB_BOOL] = {[GB_SUM] = KERNEL_fold_bool_or,
                 [GB_MAX] = KERNEL_fold_bool_or,
                 [GB_BOR] = KERNEL_fold_bool_or,
                 [GB_PRODUCT] = KERNEL_fold_bool_and,
                 [GB_MIN] = KERNEL_fold_bool_and,
                 [GB_BAND] = KERNEL_fold_bool_and,
                 [GB_BXOR] = KERNEL_fold_bool_xor},
    /* Pairs of floats. */
    [GB_COMPLEX64] = {[GB_SUM] = KERNEL_fold_f32_sum},
    [GB_COMPLEX128] = {[GB_SUM] = KERNEL_fold_f64_sum},
};

#define MAPS(name) KERNEL_load_##name, KERNEL_store_##name
/* load, store, divide; 0: nothing to do but to copy. */
static const uint8_t maps[GB_DTYPE_COUNT][3] = {
    [GB_FLOAT16] = {MAPS(f16), KERNEL_divide_f16},
    [GB_BFLOAT16] = {MAPS(bf16), KERNEL_divide_bf16},
    [GB_FLOAT8_E4M3FN] = {MAPS(e4m3fn), 0},
    [GB_FLOAT8_E5M2] = {MAPS(e5m2), 0},
    [GB_FLOAT8_E4M3FNUZ] = {MAPS(e4m3fnuz), 0},
    [GB_FLOAT8_E5M2FNUZ] = {MAPS(e5m2fnuz), 0},
    [GB_FLOAT32] = {KERNEL_load_f32, KERNEL_divide_f32, KERNEL_divide_f32},
    [GB_FLOAT64] = {KERNEL_load_f64, KERNEL_divide_f64, KERNEL_divide_f64},
    [GB_COMPLEX64] = {0, 0, KERNEL_divide_f32},
    [GB_COMPLEX128] = {0, 0, KERNEL_divide_f64},
};

static int map_of(gb_dtype dtype, int which) {
  return (unsigned)dtype < GB_DTYPE_COUNT ? maps[dtype][which] : KERNEL_NONE;
}

static uint64_t numbers(gb_dtype dtype, uint64_t count) {
  return gbi_dtype_class(dtype) == GBI_CLASS_COMPLEX ? 2 * count : count;
}

bool gbi_kernel_folds(gb_dtype dtype, gb_redop op) {
  return (unsigned)dtype < GB_DTYPE_COUNT && (unsigned)op < GB_REDOP_COUNT &&
         folds[dtype][op] != KERNEL_NONE;
}

/* ---- open ---- */

static gb_status load(gbi_kernel_set *set, const gbi_code *code,
                      gb_error *error) {
  const gbi_device_ops *ops = set->device->ops;
  GBI_TRY(ops->module_load(set->device, code->bytes, &set->module, error));
  for (int i = KERNEL_NONE + 1; i < KERNELS; i++)
    GBI_TRY(ops->module_function(set->device, set->module, names[i],
                                 &set->functions[i], error));
  return GB_OK;
}

static void unload(gbi_kernel_set *set) {
  if (set->module) set->device->ops->module_free(set->device, set->module);
  set->module = NULL;
}

/* Drivers bring code to the device when it is first launched, and wait for all
 * that is on it: a gate among it would never open. So now, with nothing to
 * do. */
static gb_status launch_each(gbi_kernel_set *set, gbi_stream stream,
                             gb_error *error) {
  const gbi_device_ops *ops = set->device->ops;
  void *none = NULL;
  uint64_t zero = 0;
  double one = 1;
  void *fold[] = {&none, &none, &none, &zero, &zero, &zero};
  void *map[] = {&none, &none, &zero, &one};
  void *encode[] = {&none, &none, &none, &zero};
  void *decode[] = {&none, &none, &zero, &zero, &zero};
#define LAUNCH(name)                                                          \
  GBI_TRY(ops->launch(set->device, set->functions[KERNEL_##name], 1, THREADS, \
                      arguments, stream, error));
#define LAUNCH_EACH(name, in, out) LAUNCH(name)
  void **arguments = fold;
  GBI_FOLD_KERNELS(LAUNCH_EACH)
  arguments = map;
  GBI_MAP_KERNELS(LAUNCH_EACH)
  arguments = encode;
  GBI_ENCODE_KERNELS(LAUNCH_EACH)
  arguments = decode;
  GBI_DECODE_KERNELS(LAUNCH_EACH)
#undef LAUNCH_EACH
#undef LAUNCH
  return ops->stream_sync(set->device, stream, error);
}

static gb_status warm_up(gbi_kernel_set *set, gb_error *error) {
  gbi_stream stream;
  GBI_TRY(set->device->ops->stream_new(set->device, &stream, error));
  gb_status status = launch_each(set, stream, error);
  set->device->ops->stream_free(set->device, stream);
  return status;
}

/* Code from disk that does not load is made anew once: the checksum says that
 * it is what was written, not that a driver takes it. */
static gb_status compile_and_load(gbi_kernel_set *set, gb_error *error) {
  const gbi_device *d = set->device;
  gbi_code code;
  GBI_TRY(gbi_compile(d->ops->vendor, d->facts.arch, gbi_kernels_source, &code,
                      error));
  gb_status status = load(set, &code, error);
  bool kept = code.kept;
  gbi_code_free(&code);
  if (status == GB_OK || !kept) return status;
  unload(set);
  GBI_TRY(gbi_compile_anew(d->ops->vendor, d->facts.arch, gbi_kernels_source,
                           &code, error));
  status = load(set, &code, error);
  gbi_code_free(&code);
  return status;
}

gb_status gbi_kernel_set_open(gbi_device *device, gbi_kernel_set **set_p,
                              gb_error *error) {
  gbi_kernel_set *set = gbi_calloc(1, sizeof *set);
  if (!set) return gbi_fail(error, GB_ERR_MEMORY, "no memory for kernels");
  set->device = device;
  gb_status status = compile_and_load(set, error);
  if (status == GB_OK) status = warm_up(set, error);
  if (status != GB_OK) {
    gbi_kernel_set_close(set);
    return status;
  }
  *set_p = set;
  return GB_OK;
}

void gbi_kernel_set_close(gbi_kernel_set *set) {
  if (!set) return;
  unload(set);
  free(set);
}

/* ---- launches ---- */

static gb_status launch(gbi_kernel_set *set, int kernel, uint64_t count,
                        void **arguments, gbi_stream stream, gb_error *error) {
  if (!count) return GB_OK;
  if (kernel == KERNEL_NONE)
    return gbi_fail(error, GB_ERR_INTERNAL, "there is no kernel for this type");
  uint64_t blocks = (count + THREADS - 1) / THREADS;
  return set->device->ops->launch(
      set->device, set->functions[kernel],
      (unsigned)GBI_MIN(blocks, (uint64_t)BLOCKS_MOST), THREADS, arguments,
      stream, error);
}

gb_status gbi_kernel_fold(gbi_kernel_set *set, const gbi_fold *fold,
                          gbi_stream stream, gb_error *error) {
  if (!gbi_kernel_folds(fold->dtype, fold->op))
    return gbi_fail(error, GB_ERR_INTERNAL, "there is no kernel for %s of %s",
                    gb_redop_name(fold->op), gb_dtype_name(fold->dtype));
  gbi_fold f = *fold;
  f.count = numbers(f.dtype, f.count);
  void *arguments[] = {&f.out, &f.a, &f.b, &f.count, &f.rows, &f.stride};
  return launch(set, folds[f.dtype][f.op], f.count, arguments, stream, error);
}

static gb_status run_map(gbi_kernel_set *set, int kernel, void *out,
                         const void *in, uint64_t count, double by,
                         gbi_stream stream, gb_error *error) {
  void *arguments[] = {&out, &in, &count, &by};
  return launch(set, kernel, count, arguments, stream, error);
}

/* Types that are their own wide type, and nothing to multiply or divide by. */
static gb_status run_copy(gbi_kernel_set *set, gb_dtype dtype, void *out,
                          const void *in, uint64_t count, gbi_stream stream,
                          gb_error *error) {
  if (out == in) return GB_OK;
  return set->device->ops->copy(set->device, out, in,
                                count * gb_dtype_bytes(dtype), stream, error);
}

gb_status gbi_kernel_load(gbi_kernel_set *set, gb_dtype dtype, void *wide,
                          const void *in, uint64_t count, double factor,
                          gbi_stream stream, gb_error *error) {
  int kernel = map_of(dtype, 0);
  if (!kernel || (gbi_wide_dtype(dtype) == dtype && factor == 1))
    return run_copy(set, dtype, wide, in, count, stream, error);
  return run_map(set, kernel, wide, in, count, factor, stream, error);
}

gb_status gbi_kernel_store(gbi_kernel_set *set, gb_dtype dtype, void *out,
                           const void *wide, uint64_t count, int divisor,
                           gbi_stream stream, gb_error *error) {
  int kernel = map_of(dtype, 1);
  if (!kernel || (gbi_wide_dtype(dtype) == dtype && divisor == 1))
    return run_copy(set, dtype, out, wide, count, stream, error);
  return run_map(set, kernel, out, wide, numbers(dtype, count), divisor, stream,
                 error);
}

gb_status gbi_kernel_divide(gbi_kernel_set *set, gb_dtype dtype, void *data,
                            uint64_t count, int divisor, gbi_stream stream,
                            gb_error *error) {
  int kernel = map_of(dtype, 2);
  if (!kernel) return GB_OK;
  return run_map(set, kernel, data, data, numbers(dtype, count), divisor,
                 stream, error);
}

gb_status gbi_kernel_encode(gbi_kernel_set *set, int codec, void *payload,
                            const float *values, float *residual,
                            uint64_t count, gbi_stream stream,
                            gb_error *error) {
  int kernel = codec == CODEC_BF16  ? KERNEL_encode_bf16
               : codec == CODEC_FP8 ? KERNEL_encode_fp8
                                    : KERNEL_NONE;
  void *arguments[] = {&payload, &values, &residual, &count};
  return launch(set, kernel, count, arguments, stream, error);
}

gb_status gbi_kernel_decode(gbi_kernel_set *set, int codec, float *values,
                            const void *payload, uint64_t count, uint64_t rows,
                            uint64_t stride, gbi_stream stream,
                            gb_error *error) {
  int kernel = codec == CODEC_BF16  ? KERNEL_decode_bf16
               : codec == CODEC_FP8 ? KERNEL_decode_fp8
                                    : KERNEL_NONE;
  void *arguments[] = {&values, &payload, &count, &rows, &stride};
  return launch(set, kernel, count, arguments, stream, error);
}
