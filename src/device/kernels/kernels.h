/* device/kernels: the kernels of source.h on one GPU, compiled for it.
 *
 * Opening takes seconds when no compiled code is on disk, and waits for the
 * device: before a job's first call, never in one. All kernels are on the
 * device after it. Launches enqueue and return; any thread, several at once.
 *
 * Results are bit for bit those of device/host/reduce.h and codec/codec.h. Data
 * in device or pinned memory, aligned to their elements. */
#ifndef GBI_DEVICE_KERNELS_KERNELS_H
#define GBI_DEVICE_KERNELS_KERNELS_H

#include "device/device.h"

typedef struct gbi_kernel_set gbi_kernel_set;

/* UNSUPPORTED without a compiler. `device` is borrowed for its life. */
gb_status gbi_kernel_set_open(gbi_device *device, gbi_kernel_set **set_p,
                              gb_error *error);
void gbi_kernel_set_close(gbi_kernel_set *set);

/* Whether there is one for this fold: as gbi_reduce_kernel. */
bool gbi_kernel_folds(gb_dtype dtype, gb_redop op);

/* out[i] = a[i] (op) b[i] (op) b[i + one row] ... over `rows` rows of b, which
 * begin every `stride` bytes; left to right. out may be a. */
typedef struct gbi_fold {
  gb_dtype dtype;
  gb_redop op;
  void *out;
  const void *a, *b;
  uint64_t count, rows, stride;
} gbi_fold;
gb_status gbi_kernel_fold(gbi_kernel_set *set, const gbi_fold *fold,
                          gbi_stream stream, gb_error *error);
/* gbi_wide_load, gbi_wide_store and gbi_divide. */
gb_status gbi_kernel_load(gbi_kernel_set *set, gb_dtype dtype, void *wide,
                          const void *in, uint64_t count, double factor,
                          gbi_stream stream, gb_error *error);
gb_status gbi_kernel_store(gbi_kernel_set *set, gb_dtype dtype, void *out,
                           const void *wide, uint64_t count, int divisor,
                           gbi_stream stream, gb_error *error);
gb_status gbi_kernel_divide(gbi_kernel_set *set, gb_dtype dtype, void *data,
                            uint64_t count, int divisor, gbi_stream stream,
                            gb_error *error);
/* gbi_codec_encode, with a residual (NULL: none) of as many values; decode:
 * gbi_codec_decode of the first payload, gbi_codec_add of `rows - 1` more, each
 * `stride` bytes behind the one before. codec: a gbi_codec's number. */
gb_status gbi_kernel_encode(gbi_kernel_set *set, int codec, void *payload,
                            const float *values, float *residual,
                            uint64_t count, gbi_stream stream, gb_error *error);
gb_status gbi_kernel_decode(gbi_kernel_set *set, int codec, float *values,
                            const void *payload, uint64_t count, uint64_t rows,
                            uint64_t stride, gbi_stream stream,
                            gb_error *error);

#endif
