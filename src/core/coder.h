/* core/coder: payloads on a GPU: what core/compress does on the host, by
 * kernels, so that payloads are all that crosses PCIe. The bits are the same.
 *
 * Residuals lie in device memory, in an order of their own (core/residuals.h):
 * what a call needs is found before anything of it is enqueued, since getting
 * and giving back device memory waits for the device. Kernels of all calls use
 * them in order on one stream. They end with the group, and with a failure: a
 * group that has failed makes no more calls.
 *
 * Calls: as core/gpu.h, one at a time. */
#ifndef GBI_CORE_CODER_H
#define GBI_CORE_CODER_H

#include "core/compress.h"
#include "device/kernels/kernels.h"

typedef struct gbi_coder {
  gbi_device *device;
  gbi_kernel_set *kernels; /* borrowed; NULL: none */
  gbi_stream stream;       /* that residuals are used on */
  /* Waits until the device is at rest; NULL: it is. */
  gb_status (*rest)(void *arg);
  void *arg;
  gbi_compress *compress; /* borrowed; NULL: nothing is compressed */
  gbi_residuals *residuals;
} gbi_coder;

/* most: the bound of the residuals, in bytes. */
gb_status gbi_coder_open(gbi_coder *coder, gbi_compress *compress,
                         uint64_t most, gb_error *error);
void gbi_coder_close(gbi_coder *coder);

/* Whether an ENCODE or a DECODE step is this one's to do: of float32 and half
 * types. */
bool gbi_coder_takes(const gbi_coder *coder, const gbi_plan *plan,
                     const gbi_step *step);
/* Device memory that a plan's steps need beside its scratch. */
uint64_t gbi_coder_room(const gbi_plan *plan);
/* How many payloads a plan makes: their numbers are less. */
uint32_t gbi_coder_payloads(const gbi_plan *plan);
/* Before a call: residuals of each payload, NULL: none. */
void gbi_coder_prepare(gbi_coder *coder, const gbi_plan *plan,
                       const void *buffer, float **residuals);
/* A step; room: as above; residual: the payload's. */
gb_status gbi_coder_run(const gbi_coder *coder, const gbi_plan *plan,
                        const gbi_step *step, const void *src, void *dst,
                        void *room, float *residual, gbi_stream stream,
                        gb_error *error);

#endif
