/* core/fold: a group's arithmetic on its GPU, by our own kernels: what the
 * vendor's library cannot reduce (bitwise, complex, 16-bit integers, bool), and
 * work on one rank's elements (device/kernels).
 *
 * A reduction in an island is a gathering by the vendor's library, piece by
 * piece into device memory of the group's own, and a fold of the rows in member
 * order, which gives the bits of a job on CPU. A long one onto all members is
 * shared out: each folds a part. All members do it or none: the
 * ranks of a group tell each other whether they have kernels when they connect.
 *
 * Calls: as core/gpu.h, one at a time. */
#ifndef GBI_CORE_FOLD_H
#define GBI_CORE_FOLD_H

#include "base/wire.h"
#include "ccl/native.h"
#include "device/kernels/kernels.h"
#include "plan/plan.h"

#define GBI_FOLD_STATE_BYTES 400 /* at most, of gbi_folder_put */

/* Who adds up what comes over the bridge: GPUBRIDGE_COMBINE. */
typedef enum gbi_sums {
  GBI_SUMS_ON_HOST,
  GBI_SUMS_AUTO, /* a GPU where it pays */
  GBI_SUMS_ON_GPU
} gbi_sums;

typedef struct gbi_folder {
  gbi_device *device;
  gbi_kernel_set *kernels; /* borrowed; NULL: this rank has none */
  const char *why;         /* it has none; static or the job's */
  int members, me;         /* of the island */
  gbi_sums sums;           /* of the bridge: the least that a rank wants */
  bool folds;              /* all have them that need them */
  char who[320];           /* else who lacks them, and why */
  gbi_native *native;
  uint8_t *rows;  /* device memory, NULL until a call needs it */
  uint64_t piece; /* bytes of a row */
} gbi_folder;

/* What this rank has, for the others. */
void gbi_folder_put(const gbi_folder *folder, gbi_writer *out);
/* One rank's; `name`: "rank 3 (...)". PROTOCOL when it is malformed. Starts
 * from `folds` being set. */
gb_status gbi_folder_hear(gbi_folder *folder, gbi_reader *in, const char *name,
                          gb_error *error);

/* From how many bytes on a call's sums on the bridge are combined on GPUs, with
 * the bits that the host's have; 0: none. All ranks come to the same end. */
uint64_t gbi_folder_apart(const gbi_folder *folder, const gbi_coll *coll,
                          int islands);

/* Whether a step of the island is this one's to do; the caller has asked the
 * vendor's library. */
bool gbi_folder_reduces(const gbi_folder *folder, gb_dtype dtype,
                        gb_redop redop);
/* Whether ranks refuse a sum for want of kernels that this one needs none for:
 * it is alone in its island, or the step is the bridge's. */
bool gbi_folder_refused(const gbi_folder *folder, gb_dtype dtype,
                        gb_redop redop);
/* The memory that such steps need; once. */
gb_status gbi_folder_need(gbi_folder *folder, gb_error *error);
/* A REDUCE or an ALL_REDUCE step. */
gb_status gbi_folder_run(gbi_folder *folder, const gbi_step *step,
                         gb_dtype dtype, gb_redop redop, const void *src,
                         void *dst, gbi_stream stream, gb_error *error);

/* Whether a step on the rank itself (but those of core/coder) can be done here,
 * and doing it. */
bool gbi_folder_local(const gbi_folder *folder, const gbi_plan *plan,
                      const gbi_step *step);
gb_status gbi_folder_run_local(const gbi_folder *folder, const gbi_plan *plan,
                               const gbi_step *step, const void *src, void *dst,
                               int world, double factor, gbi_stream stream,
                               gb_error *error);

void gbi_folder_close(gbi_folder *folder);

#endif
