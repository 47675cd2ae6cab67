/* core/gpu_watch: calls that only GPUs carry out, and their deadlines.
 *
 * A call with a part for the host has its worker to look after it. One that the
 * island's library does alone would wait for ever where a member never makes
 * it. Its last operation raises a flag in pinned memory; "gb-gpu-watch"
 * compares it with the oldest call's deadline, and asks the library whether it
 * has failed. It makes no call of the vendor's runtime. A deadline counts from
 * the call, as work before it on the stream counts too. */
#ifndef GBI_CORE_GPU_WATCH_H
#define GBI_CORE_GPU_WATCH_H

#include "control/control.h"
#include "core/gpu.h"

typedef struct gbi_gpu_watch gbi_gpu_watch;

typedef struct gbi_gpu_watch_params {
  gbi_gpu *gpu; /* borrowed, as the rest */
  gbi_control *control;
  int rank; /* global */
  const char *who;
} gbi_gpu_watch_params;

gb_status gbi_gpu_watch_open(const gbi_gpu_watch_params *params,
                             gbi_gpu_watch **watch_p, gb_error *error);
/* A call that gbi_gpu_enqueue has just taken, and which is over when
 * gbi_gpu_over says `number`. Issuing threads, one at a time; never blocks. */
void gbi_gpu_watch_call(gbi_gpu_watch *watch, uint64_t number,
                        const gbi_call *call, uint64_t timeout_ms);
void gbi_gpu_watch_close(gbi_gpu_watch *watch); /* NULL is fine */

#endif
