/* core/gpu: a group's half on one GPU: streams, pinned ring, the island's
 * native communicator, and what a call enqueues on them.
 *
 * A call is enqueued as a whole on the issuing thread: nothing there waits for
 * a peer or for the device, and nothing is allocated once its shape was seen.
 * The host's part of it (core/stage.h) then runs on the group's worker, which
 * never calls the vendor's runtime. Two calls share the ring, in turn; a third
 * waits for the first on the streams, not on the host.
 *
 * Calls: one at a time (gbi_gpu_lock), except for gbi_gpu_fail. */
#ifndef GBI_CORE_GPU_H
#define GBI_CORE_GPU_H

#include "ccl/native.h"
#include "core/coder.h"
#include "core/engine.h"
#include "core/fold.h"
#include "core/shared.h"
#include "core/stage.h"
#include "device/device.h"
#include "policy/policy.h"

#include <stdatomic.h>

typedef struct gbi_gpu gbi_gpu;

typedef struct gbi_gpu_params {
  gbi_device *device;                  /* borrowed for its life */
  int island_count, me[GBI_RESOURCES]; /* member indices, -1: none */
  int rank, world;
  int least_island; /* ranks of the smallest island of the group */
  uint64_t ring_bytes;
  gbi_kernel_set *kernels; /* borrowed; NULL: none */
  const char *kernels_why; /* then why not; borrowed */
  int islands;             /* of the group */
  gbi_sums sums; /* and all work on the rank: by kernels, or on the host */
} gbi_gpu_params;

gb_status gbi_gpu_open(const gbi_gpu_params *params, gbi_gpu **gpu_p,
                       gb_error *error);
/* What this rank has, and from the island's first member what all connect
 * with. */
gb_status gbi_gpu_address(gbi_gpu *gpu, gbi_writer *out, gb_error *error);
/* Of every rank of the group, before gbi_gpu_connect. `name`: "rank 3 (...)".
 * `in` is then at what the island's first wrote. */
gb_status gbi_gpu_hear(gbi_gpu *gpu, gbi_reader *in, const char *name,
                       gb_error *error);
/* Blocks until the island is there. */
gb_status gbi_gpu_connect(gbi_gpu *gpu, gbi_reader *first, uint64_t deadline_ns,
                          gb_error *error);

/* What the bridge's members have in common, given; `bytes` of it. Before the
 * first call. */
void gbi_gpu_share(gbi_gpu *gpu, gbi_shared *shared, uint64_t bytes);
/* Whether, and if not why. */
void gbi_gpu_describe(const gbi_gpu *gpu, gbi_fact_fn fn, void *arg);
/* Before the first call, where sums are compressed. `compress` is borrowed. */
gb_status gbi_gpu_compress(gbi_gpu *gpu, gbi_compress *compress,
                           uint64_t residual_bytes, gb_error *error);

/* A call's shape, ready to be enqueued again and again. */
typedef struct gbi_gpu_shape {
  gbi_coll coll;  /* as called */
  gbi_plan *plan; /* NULL: free */
  gbi_staged *staged;
  gbi_event *events;
  float **residuals; /* of each payload, while a call is issued */
  bool direct; /* one island's, without the host: for the caller's stream */
  uint64_t used;
  _Atomic int users; /* works that the worker has not ended */
} gbi_gpu_shape;

/* One call of a shape, between gbi_gpu_prepare and its end on the host. */
typedef struct gbi_gpu_turn {
  gbi_gpu_shape *shape;
  uint64_t ready, arrived; /* the counters before it */
  void *staging;
  uint64_t shared_at;     /* where its half of each member's area begins */
  const gbi_gates *gates; /* NULL: those of the group */
} gbi_gpu_turn;

/* What enqueuing needs to hand. */
typedef struct gbi_gpu_issue {
  gbi_gpu *gpu;
  const gbi_gpu_turn *turn;
  const void *in;
  void *out;
  double factor;
  const gbi_stream *lanes; /* GBI_LANES */
  uint8_t *flags_device;   /* GBI_READY_AT, GBI_ARRIVED_AT */
  uint8_t *scratch;
  gb_error *error;
} gbi_gpu_issue;

/* Where flags are in their pinned memory. */
enum { GBI_READY_AT = 0, GBI_ARRIVED_AT = 128 };

/* One operation of the shape of c->turn. */
gb_status gbi_gpu_run(const gbi_gpu_issue *c, const gbi_stage_op *op);
/* A shape of the caller's own, with a ring and a scratch of its own: no more of
 * the ring than the group's, staged->ring_used of it. */
gb_status gbi_gpu_shape_make(gbi_gpu *gpu, const gbi_policy_ops *policy,
                             const gbi_policy_env *env, const gbi_coll *coll,
                             gbi_gpu_shape *shape, gb_error *error);
/* The library's communicator has kernels in a graph, or may have. */
void gbi_gpu_captured(gbi_gpu *gpu);
void gbi_gpu_shape_free(gbi_gpu *gpu, gbi_gpu_shape *shape);
/* Device memory that calls of a plan need. */
uint64_t gbi_gpu_scratch_bytes(const gbi_plan *plan);
/* ARGUMENT where a call's memory is not this GPU's (NULL is) or not aligned to
 * its elements. */
gb_status gbi_gpu_check_call(gbi_gpu *gpu, const gbi_coll *coll, const void *in,
                             const void *out, gb_error *error);
struct gbi_captures *gbi_gpu_captures(const gbi_gpu *gpu); /* core/capture.h */

void gbi_gpu_lock(gbi_gpu *gpu);
void gbi_gpu_unlock(gbi_gpu *gpu);
/* Finds or makes the call's shape. ARGUMENT for memory that is not this GPU's;
 * UNSUPPORTED for what neither the vendor's library nor a kernel can reduce. */
gb_status gbi_gpu_prepare(gbi_gpu *gpu, const gbi_policy_ops *policy,
                          const gbi_policy_env *env, const gbi_coll *coll,
                          const void *in, const void *out, gbi_gpu_turn *turn,
                          gb_error *error);
/* Whether the host has a part in it: then it must be on the worker's queue
 * before gbi_gpu_enqueue. */
bool gbi_gpu_has_host(const gbi_gpu_turn *turn);
/* After what is on `stream` now. `done` (may be NULL): recorded when the result
 * is in place; NULL: `stream` itself waits for it. A failure is final. */
gb_status gbi_gpu_enqueue(gbi_gpu *gpu, const gbi_gpu_turn *turn,
                          const void *in, void *out, double factor,
                          gbi_stream stream, gbi_event done, gb_error *error);
/* Calls without a part for the host: how many were enqueued (with the lock
 * held), and how many the GPU is through with (any thread, no call of the
 * runtime). */
uint64_t gbi_gpu_alone(const gbi_gpu *gpu);
uint64_t gbi_gpu_over(const gbi_gpu *gpu);
const gbi_gates *gbi_gpu_gates(const gbi_gpu *gpu);
gbi_device *gbi_gpu_device(const gbi_gpu *gpu);
/* Device memory that barriers send around, 64 bytes. */
void *gbi_gpu_barrier(const gbi_gpu *gpu);

/* ARGUMENT with a text for what is not device memory of this GPU. */
gb_status gbi_gpu_check_memory(gbi_gpu *gpu, const void *memory,
                               gb_error *error);
/* Whether it is the host's, pinned or not. */
bool gbi_gpu_is_host_memory(gbi_gpu *gpu, const void *memory);

/* Works may outlive their group: they hold it, and what they do on the GPU they
 * do between enter and leave. False: it is closed, and there is nothing left to
 * do. Any thread. */
void gbi_gpu_hold(gbi_gpu *gpu);
void gbi_gpu_release(gbi_gpu *gpu);
bool gbi_gpu_enter(gbi_gpu *gpu);
void gbi_gpu_leave(gbi_gpu *gpu);

/* core/gpu_p2p.h; NULL before the first message. Set with the lock held. */
struct gbi_gpu_p2p *gbi_gpu_messages_of(gbi_gpu *gpu);
void gbi_gpu_set_messages(gbi_gpu *gpu, struct gbi_gpu_p2p *messages);
/* Before the mesh stops: messages that are on their way down go out. */
void gbi_gpu_flush(gbi_gpu *gpu);

/* Events of works: taken and given back; no allocation once warm. Any thread,
 * give also when the group is closed. */
gb_status gbi_gpu_take_event(gbi_gpu *gpu, gbi_event *event_p, gb_error *error);
void gbi_gpu_give_event(gbi_gpu *gpu, gbi_event event);

/* The group has failed, and everybody can see why: what waits on the streams
 * goes on, the native communicator is aborted. Any thread, at once. */
void gbi_gpu_fail(gbi_gpu *gpu);
/* Or a peer's, whose memory this GPU may have read since. */
bool gbi_gpu_has_failed(const gbi_gpu *gpu);
/* What the native library says, from time to time. Any thread. */
gb_status gbi_gpu_check(gbi_gpu *gpu, gb_error *error);
/* Waits for the streams, 5 s at most; then aborts. Gives back the owner's
 * hold. */
void gbi_gpu_close(gbi_gpu *gpu);

/* The stream that the calling thread's next calls are ordered on. */
void gbi_gpu_use_stream(gbi_stream stream);
gbi_stream gbi_gpu_stream(void);

#endif
