#include "core/gpu.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "core/capture.h"
#include "core/gpu_p2p.h"
#include "core/uses.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  SHAPES = 64,
  HALVES = 2,
  CLOSE_MS = 5000,
  OVER_AT = 256, /* beside GBI_READY_AT, GBI_ARRIVED_AT */
  BARRIER_BYTES = 64,
  RECENT = 8
};

/* One half of the ring and the last call that used it. */
typedef struct half {
  uint64_t arrived; /* once the counter is here, the host is through with it */
  gbi_event returned; /* the last copy from it */
  bool used;
} half;

/* A call that may still be under way, and what it uses. */
typedef struct recent {
  gbi_uses uses;
  bool scratch, hosted;
  gbi_event over;
  bool used;
} recent;

struct gbi_gpu {
  gbi_gpu_params p;
  gbi_device *device;
  const gbi_device_ops *ops;
  gbi_native *native;          /* NULL: alone in the island */
  gbi_folder folder;           /* arithmetic by our own kernels */
  gbi_coder coder;             /* and payloads */
  pthread_mutex_t lock;        /* level 8 */
  pthread_mutex_t events_lock; /* level 9: the spare ones */
  gbi_stream lanes[GBI_LANES];
  gbi_event began;
  void *barrier;                 /* BARRIER_BYTES of device memory */
  uint8_t *flags, *flags_device; /* pinned */
  gbi_gates gates;
  uint8_t *ring;       /* pinned; NULL until a call needs it */
  uint64_t ring_bytes; /* of one half */
  half halves[HALVES];
  recent recents[RECENT]; /* the last calls, in turn from `next_recent` on */
  int next_recent;
  int turn;
  gbi_shared *shared;              /* NULL: no member of a bridge */
  uint64_t shared_bytes;           /* of one half; 0: none */
  uint64_t shared_arrived[HALVES]; /* then everybody is through with it */
  int shared_turn;
  uint64_t ready, arrived; /* the counters after everything enqueued */
  uint64_t alone;          /* calls without a part for the host */
  uint8_t *scratch;        /* device memory; NULL until a plan asks for it */
  uint64_t scratch_bytes;
  gbi_gpu_shape shapes[SHAPES];
  uint64_t clock;
  gbi_event *events; /* of works: first the spare ones, then those lent */
  int events_count, events_room, events_spare;
  struct gbi_gpu_p2p *_Atomic messages;
  _Atomic int holds;
  pthread_rwlock_t life; /* level 7: read inside gbi_gpu_enter */
  bool closed;           /* under life */
  gbi_captures *captures;
  gbi_event last_over; /* of the newest call; NULL: none yet */
  gbi_stream last_stream;
  _Atomic bool failed;
};

static _Thread_local gbi_stream thread_stream;

void gbi_gpu_use_stream(gbi_stream stream) {
  thread_stream = stream;
}
gbi_stream gbi_gpu_stream(void) {
  return thread_stream;
}

void gbi_gpu_lock(gbi_gpu *gpu) {
  pthread_mutex_lock(&gpu->lock);
}
void gbi_gpu_unlock(gbi_gpu *gpu) {
  pthread_mutex_unlock(&gpu->lock);
}
uint64_t gbi_gpu_alone(const gbi_gpu *gpu) {
  return gpu->alone;
}
uint64_t gbi_gpu_over(const gbi_gpu *gpu) {
  const _Atomic uint64_t *over =
      (const _Atomic uint64_t *)(void *)(gpu->flags + OVER_AT);
  return atomic_load_explicit(over, memory_order_acquire);
}
const gbi_gates *gbi_gpu_gates(const gbi_gpu *gpu) {
  return &gpu->gates;
}
void *gbi_gpu_barrier(const gbi_gpu *gpu) {
  return gpu->barrier;
}
gbi_device *gbi_gpu_device(const gbi_gpu *gpu) {
  return gpu->device;
}
void gbi_gpu_captured(gbi_gpu *gpu) {
  if (gpu->native) gbi_native_captured(gpu->native);
}
gbi_captures *gbi_gpu_captures(const gbi_gpu *gpu) {
  return gpu->captures;
}
bool gbi_gpu_has_host(const gbi_gpu_turn *turn) {
  return turn->shape->staged->host->count > 0;
}

static gb_status drain(gbi_gpu *gpu, gb_error *error);

/* ---- open and close ---- */

static gb_status drain_for_coder(void *arg) {
  return drain(arg, NULL);
}

static bool is_sound(const void *arg) {
  const gbi_gpu *gpu = arg;
  if (gpu->failed) return false;
  if (gpu->shared && gbi_shared_check(gpu->shared, NULL) != GB_OK) return false;
  return !gpu->native || gbi_native_check(gpu->native, NULL) == GB_OK;
}

static gb_status make_streams(gbi_gpu *gpu, gb_error *error) {
  gbi_device *d = gpu->device;
  for (int i = 0; i < GBI_LANES; i++)
    GBI_TRY(gpu->ops->stream_new(d, &gpu->lanes[i], error));
  GBI_TRY(gpu->ops->event_new(d, &gpu->began, error));
  for (int i = 0; i < HALVES; i++)
    GBI_TRY(gpu->ops->event_new(d, &gpu->halves[i].returned, error));
  for (int i = 0; i < RECENT; i++)
    GBI_TRY(gpu->ops->event_new(d, &gpu->recents[i].over, error));
  void *host, *device;
  GBI_TRY(gpu->ops->memory(d, BARRIER_BYTES, &gpu->barrier, error));
  GBI_TRY(gpu->ops->pinned(d, 4096, &host, &device, error));
  gpu->flags = host;
  gpu->flags_device = device;
  gpu->gates.ready =
      (const _Atomic uint64_t *)(void *)(gpu->flags + GBI_READY_AT);
  gpu->gates.arrived =
      (_Atomic uint64_t *)(void *)(gpu->flags + GBI_ARRIVED_AT);
  gpu->gates.sound = is_sound;
  gpu->gates.arg = gpu;
  return gbi_captures_open(gpu, &gpu->captures, error);
}

gb_status gbi_gpu_open(const gbi_gpu_params *params, gbi_gpu **gpu_p,
                       gb_error *error) {
  gbi_gpu *gpu = gbi_calloc(1, sizeof *gpu);
  if (!gpu)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a GPU's group");
  gpu->p = *params;
  gpu->device = params->device;
  gpu->ops = params->device->ops;
  gpu->folder = (gbi_folder){.device = params->device,
                             .kernels = params->kernels,
                             .why = params->kernels_why,
                             .members = params->island_count,
                             .me = params->me[GBI_ON_ISLAND],
                             .sums = params->sums,
                             .folds = true};
  pthread_mutex_init(&gpu->lock, NULL);
  pthread_mutex_init(&gpu->events_lock, NULL);
  pthread_rwlock_init(&gpu->life, NULL);
  atomic_init(&gpu->holds, 1);
  gb_status status = make_streams(gpu, error);
  if (status != GB_OK) {
    gbi_gpu_close(gpu);
    return status;
  }
  bool codes = params->sums != GBI_SUMS_ON_HOST;
  gpu->coder = (gbi_coder){.device = params->device,
                           .kernels = codes ? params->kernels : NULL,
                           .stream = gpu->lanes[GBI_LANE_MAIN],
                           .rest = drain_for_coder,
                           .arg = gpu};
  *gpu_p = gpu;
  return GB_OK;
}

gb_status gbi_gpu_compress(gbi_gpu *gpu, gbi_compress *compress,
                           uint64_t residual_bytes, gb_error *error) {
  return gbi_coder_open(&gpu->coder, compress, residual_bytes, error);
}

gb_status gbi_gpu_address(gbi_gpu *gpu, gbi_writer *out, gb_error *error) {
  gbi_folder_put(&gpu->folder, out);
  if (gpu->p.island_count < 2 || gpu->p.me[GBI_ON_ISLAND]) return GB_OK;
  uint8_t id[GBI_NATIVE_ID_BYTES];
  GBI_TRY(gbi_native_id(gpu->ops->vendor, id, error));
  gbi_put_raw(out, id, sizeof id);
  return GB_OK;
}

gb_status gbi_gpu_hear(gbi_gpu *gpu, gbi_reader *in, const char *name,
                       gb_error *error) {
  return gbi_folder_hear(&gpu->folder, in, name, error);
}

gb_status gbi_gpu_connect(gbi_gpu *gpu, gbi_reader *first, uint64_t deadline_ns,
                          gb_error *error) {
  if (gpu->p.island_count < 2) return GB_OK;
  const uint8_t *id = gbi_get_raw(first, GBI_NATIVE_ID_BYTES);
  if (!id)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "the first rank of this island sent a malformed id");
  GBI_TRY(gbi_native_open(gpu->device, id, gpu->p.island_count,
                          gpu->p.me[GBI_ON_ISLAND], deadline_ns, &gpu->failed,
                          &gpu->native, error));
  gpu->folder.native = gpu->native;
  return GB_OK;
}

/* Halves on a page, so that blocks in them are aligned as in the ring. */
void gbi_gpu_share(gbi_gpu *gpu, gbi_shared *shared, uint64_t bytes) {
  gpu->shared = shared;
  gpu->shared_bytes = bytes / HALVES / 4096 * 4096;
}

void gbi_gpu_describe(const gbi_gpu *gpu, gbi_fact_fn fn, void *arg) {
  char text[32];
  if (!gpu->shared) return;
  snprintf(text, sizeof text, "%llu",
           (unsigned long long)(HALVES * gpu->shared_bytes));
  fn(arg, "gpu.shared_bytes", text);
  fn(arg, "gpu.shared_reason", gbi_shared_why(gpu->shared));
}

void gbi_gpu_fail(gbi_gpu *gpu) {
  if (atomic_exchange(&gpu->failed, true)) return;
  if (gpu->shared) gbi_shared_give_up(gpu->shared);
  if (gpu->flags)
    atomic_store_explicit(gpu->gates.arrived, GBI_OPEN_ALL,
                          memory_order_release);
  gbi_captures_release(gpu->captures);
  gbi_gpu_p2p_fail(gpu->messages);
  if (gpu->native) gbi_native_abort(gpu->native);
}

bool gbi_gpu_has_failed(const gbi_gpu *gpu) {
  return gpu->failed ||
         (gpu->shared && gbi_shared_check(gpu->shared, NULL) != GB_OK);
}

gb_status gbi_gpu_check(gbi_gpu *gpu, gb_error *error) {
  if (gpu->shared) GBI_TRY(gbi_shared_check(gpu->shared, error));
  return gpu->native ? gbi_native_check(gpu->native, error) : GB_OK;
}

/* False: not within the time. */
static bool settle(gbi_gpu *gpu, uint64_t deadline_ns) {
  for (int i = 0; i < GBI_LANES; i++) {
    gb_status status;
    while ((status = gpu->ops->stream_query(gpu->device, gpu->lanes[i],
                                            NULL)) == GB_ERR_BUSY) {
      if (gbi_deadline_passed(deadline_ns)) return false;
      nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
  }
  return true;
}

void gbi_gpu_shape_free(gbi_gpu *gpu, gbi_gpu_shape *shape) {
  if (shape->events && shape->staged)
    for (uint32_t i = 0; i < shape->staged->events; i++)
      if (shape->events[i]) gpu->ops->event_free(gpu->device, shape->events[i]);
  free(shape->events);
  free(shape->residuals);
  gbi_staged_free(shape->staged);
  gbi_plan_free(shape->plan);
  if (shape->coll.counts_count) free((void *)(uintptr_t)shape->coll.counts);
  memset(shape, 0, sizeof *shape);
}

static void free_streams(gbi_gpu *gpu) {
  gbi_device *d = gpu->device;
  for (int i = 0; i < GBI_LANES; i++)
    if (gpu->lanes[i]) gpu->ops->stream_free(d, gpu->lanes[i]);
  if (gpu->began) gpu->ops->event_free(d, gpu->began);
  for (int i = 0; i < HALVES; i++)
    if (gpu->halves[i].returned)
      gpu->ops->event_free(d, gpu->halves[i].returned);
  for (int i = 0; i < RECENT; i++)
    if (gpu->recents[i].over) gpu->ops->event_free(d, gpu->recents[i].over);
  pthread_mutex_lock(&gpu->events_lock);
  for (int i = 0; i < gpu->events_count; i++)
    gpu->ops->event_free(d, gpu->events[i]);
  pthread_mutex_unlock(&gpu->events_lock);
}

/* True: the device is at rest. */
static bool come_to_rest(gbi_gpu *gpu) {
  uint64_t deadline = gbi_deadline_after_ms(CLOSE_MS);
  bool over = gbi_gpu_p2p_close(gpu->messages, deadline);
  bool settled = !gpu->lanes[GBI_LANES - 1] || settle(gpu, deadline);
  if (!settled) gbi_gpu_fail(gpu);
  if (gpu->native) gbi_native_close(gpu->native, deadline);
  gpu->native = NULL;
  return (settled || settle(gpu, gbi_deadline_after_ms(CLOSE_MS))) && over;
}

static void free_all(gbi_gpu *gpu) {
  for (int i = 0; i < SHAPES; i++) gbi_gpu_shape_free(gpu, &gpu->shapes[i]);
  gbi_captures_close(gpu->captures);
  gbi_coder_close(&gpu->coder);
  free_streams(gpu);
  if (gpu->barrier) gpu->ops->free_memory(gpu->device, gpu->barrier);
  if (gpu->scratch) gpu->ops->free_memory(gpu->device, gpu->scratch);
  gbi_folder_close(&gpu->folder);
  gbi_shared_close(gpu->shared);
  gpu->shared = NULL;
  if (gpu->ring) gpu->ops->free_pinned(gpu->device, gpu->ring);
  if (gpu->flags) gpu->ops->free_pinned(gpu->device, gpu->flags);
}

void gbi_gpu_close(gbi_gpu *gpu) {
  if (!gpu) return;
  bool rests = come_to_rest(gpu);
  pthread_rwlock_wrlock(&gpu->life);
  gpu->closed = true;
  if (rests)
    free_all(gpu);
  else /* Memory that a device may still write is never given back. */
    GBI_WARN("core", "GPU %d does not come to rest: its group's memory is left",
             gpu->device->index);
  pthread_rwlock_unlock(&gpu->life);
  if (rests) gbi_gpu_release(gpu);
}

/* ---- works ---- */

void gbi_gpu_hold(gbi_gpu *gpu) {
  atomic_fetch_add(&gpu->holds, 1);
}

void gbi_gpu_release(gbi_gpu *gpu) {
  if (atomic_fetch_sub(&gpu->holds, 1) != 1) return;
  gbi_gpu_p2p_free(gpu->messages);
  pthread_rwlock_destroy(&gpu->life);
  pthread_mutex_destroy(&gpu->lock);
  pthread_mutex_destroy(&gpu->events_lock);
  free(gpu->events);
  free(gpu);
}

bool gbi_gpu_enter(gbi_gpu *gpu) {
  pthread_rwlock_rdlock(&gpu->life);
  if (!gpu->closed) return true;
  pthread_rwlock_unlock(&gpu->life);
  return false;
}

void gbi_gpu_leave(gbi_gpu *gpu) {
  pthread_rwlock_unlock(&gpu->life);
}

struct gbi_gpu_p2p *gbi_gpu_messages_of(gbi_gpu *gpu) {
  return gpu->messages;
}

void gbi_gpu_set_messages(gbi_gpu *gpu, struct gbi_gpu_p2p *messages) {
  gpu->messages = messages;
  /* Who failed the group meanwhile did not see them. */
  if (gpu->failed) gbi_gpu_p2p_fail(messages);
}

void gbi_gpu_flush(gbi_gpu *gpu) {
  gbi_gpu_p2p_flush(gpu->messages, gbi_deadline_after_ms(CLOSE_MS));
}

/* With the lock held. */
static bool room_for_event(gbi_gpu *gpu) {
  if (gpu->events_count < gpu->events_room) return true;
  int room = gpu->events_room ? gpu->events_room * 2 : 64;
  gbi_event *events = gbi_realloc(gpu->events, sizeof *events * (size_t)room);
  if (!events) return false;
  gpu->events = events;
  gpu->events_room = room;
  return true;
}

gb_status gbi_gpu_take_event(gbi_gpu *gpu, gbi_event *event_p,
                             gb_error *error) {
  gb_status status = GB_OK;
  pthread_mutex_lock(&gpu->events_lock);
  if (gpu->events_spare) {
    *event_p = gpu->events[--gpu->events_spare];
  } else if (!room_for_event(gpu)) {
    status = gbi_fail(error, GB_ERR_MEMORY, "no memory for events");
  } else {
    status = gpu->ops->event_new(gpu->device, event_p, error);
    if (status == GB_OK) gpu->events[gpu->events_count++] = *event_p;
  }
  pthread_mutex_unlock(&gpu->events_lock);
  return status;
}

/* Which handles are lent does not matter, how many does: closing frees all that
 * were made, each once. */
void gbi_gpu_give_event(gbi_gpu *gpu, gbi_event event) {
  pthread_mutex_lock(&gpu->events_lock);
  for (int i = gpu->events_spare; i < gpu->events_count; i++) {
    if (gpu->events[i] != event) continue;
    gpu->events[i] = gpu->events[gpu->events_spare];
    gpu->events[gpu->events_spare++] = event;
    break;
  }
  pthread_mutex_unlock(&gpu->events_lock);
}

/* ---- shapes ---- */

/* A smaller ring is better than none; who cannot pin even that has a limit to
 * raise. Called when no call is in the ring. */
static gb_status pin_ring(gbi_gpu *gpu, uint64_t least, gb_error *error) {
  uint64_t bytes = GBI_MAX(gpu->p.ring_bytes, least);
  void *host, *device;
  gb_error why;
  for (;;) {
    gb_status status =
        gpu->ops->pinned(gpu->device, HALVES * bytes, &host, &device, &why);
    if (status == GB_OK) break;
    if (status != GB_ERR_MEMORY || bytes == least) {
      if (error) *error = why;
      return status;
    }
    bytes = GBI_MAX(bytes / 2, least);
  }
  if (bytes < gpu->p.ring_bytes)
    GBI_WARN("core",
             "only %llu of %llu bytes could be pinned on GPU %d: calls take "
             "turns in them",
             (unsigned long long)(HALVES * bytes),
             (unsigned long long)(HALVES * gpu->p.ring_bytes),
             gpu->device->index);
  gpu->ring = host;
  gpu->ring_bytes = bytes;
  return GB_OK;
}

static bool host_is_busy(const gbi_gpu *gpu) {
  for (int i = 0; i < SHAPES; i++)
    if (atomic_load(&gpu->shapes[i].users)) return true;
  return atomic_load_explicit(gpu->gates.arrived, memory_order_acquire) <
         gpu->arrived;
}

/* Nothing is on its way any more, on the streams or the host. A job that fails
 * meanwhile opens and ends everything. */
static gb_status drain(gbi_gpu *gpu, gb_error *error) {
  for (int i = 0; i < GBI_LANES; i++)
    GBI_TRY(gpu->ops->stream_sync(gpu->device, gpu->lanes[i], error));
  while (host_is_busy(gpu))
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  return GB_OK;
}

/* The first calls of a group, and larger steps than any before. */
static gb_status need_ring(gbi_gpu *gpu, uint64_t least, gb_error *error) {
  if (!least || gpu->ring_bytes >= least) return GB_OK;
  if (gpu->ring) {
    GBI_TRY(drain(gpu, error));
    gpu->ops->free_pinned(gpu->device, gpu->ring);
    gpu->ring = NULL;
    gpu->ring_bytes = 0;
    /* They were cut for the other ring. */
    for (int i = 0; i < SHAPES; i++)
      if (gpu->shapes[i].staged) gbi_gpu_shape_free(gpu, &gpu->shapes[i]);
  }
  return pin_ring(gpu, least, error);
}

/* Behind the plan's scratch there is room for the coder. */
static uint64_t room_at(const gbi_plan *plan) {
  return (plan->scratch_bytes + 255) / 256 * 256;
}

uint64_t gbi_gpu_scratch_bytes(const gbi_plan *plan) {
  uint64_t room = gbi_coder_room(plan);
  return room ? room_at(plan) + room : plan->scratch_bytes;
}

static gb_status need_scratch(gbi_gpu *gpu, const gbi_plan *plan,
                              gb_error *error) {
  uint64_t bytes = gbi_gpu_scratch_bytes(plan);
  if (bytes <= gpu->scratch_bytes) return GB_OK;
  if (gpu->scratch) {
    GBI_TRY(drain(gpu, error));
    gpu->ops->free_memory(gpu->device, gpu->scratch);
    gpu->scratch = NULL;
    gpu->scratch_bytes = 0;
  }
  void *memory;
  GBI_TRY(gpu->ops->memory(gpu->device, bytes, &memory, error));
  gpu->scratch = memory;
  gpu->scratch_bytes = bytes;
  return GB_OK;
}

/* Sums of the island that the library scales: every contribution goes through
 * it, so nothing is left to do for the host. */
static bool scaled_natively(const gbi_gpu *gpu, const gbi_coll *coll) {
  if (coll->redop != GB_AVG && coll->redop != GB_PREMUL_SUM) return false;
  return gpu->native && gpu->p.least_island > 1 &&
         gbi_native_reduces(gpu->native, (gb_dtype)coll->dtype,
                            (gb_redop)coll->redop);
}

/* Not all ranks' contributions at once, as `flat` does. */
static bool sums_in_islands(const gbi_plan *plan) {
  for (uint32_t i = 0; i < plan->count; i++)
    if (plan->steps[i].resource == GBI_ON_WORLD) return false;
  return true;
}

static gb_status no_kernels(const gbi_gpu *gpu, gb_dtype dtype, gb_redop redop,
                            gb_error *error) {
  return gbi_fail(error, GB_ERR_UNSUPPORTED,
                  "%s of %s cannot be reduced by the %s library of an island, "
                  "and kernels that could are not there: %s. Give every rank a "
                  "run-time compiler (docs/gpu.md), or use another type or "
                  "reduction",
                  gb_redop_name(redop), gb_dtype_name(dtype),
                  gbi_vendor_name(gpu->ops->vendor), gpu->folder.who);
}

/* All ranks come to the same end: what one refuses, others would wait for. */
static gb_status check_reduces(gbi_gpu *gpu, const gbi_plan *plan,
                               gb_error *error) {
  for (uint32_t i = 0; i < plan->count; i++) {
    const gbi_step *s = &plan->steps[i];
    bool sums = s->verb == GBI_DO_REDUCE || s->verb == GBI_DO_ALL_REDUCE;
    bool bridged = s->resource == GBI_ON_BRIDGE;
    if (!sums || (!bridged && s->resource != GBI_ON_ISLAND)) continue;
    gb_dtype dtype = gbi_step_dtype(plan, s);
    gb_redop redop = gbi_comm_redop(plan->coll.redop);
    if (bridged) {
      if (gbi_folder_refused(&gpu->folder, dtype, redop))
        return no_kernels(gpu, dtype, redop, error);
      continue;
    }
    if (gbi_native_reduces(gpu->native, dtype, redop)) continue;
    if (!gbi_folder_reduces(&gpu->folder, dtype, redop))
      return no_kernels(gpu, dtype, redop, error);
    GBI_TRY(gbi_folder_need(&gpu->folder, error));
  }
  return GB_OK;
}

static gb_status make_events(gbi_gpu *gpu, gbi_gpu_shape *shape,
                             gb_error *error) {
  uint32_t count = shape->staged->events;
  shape->events = gbi_calloc(count + 1, sizeof *shape->events);
  if (!shape->events)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for events");
  for (uint32_t i = 0; i < count; i++)
    GBI_TRY(gpu->ops->event_new(gpu->device, &shape->events[i], error));
  return GB_OK;
}

static bool runs_here(const void *arg, const gbi_plan *plan,
                      const gbi_step *step) {
  const gbi_gpu *gpu = arg;
  return gbi_folder_local(&gpu->folder, plan, step) ||
         gbi_coder_takes(&gpu->coder, plan, step);
}

/* Replays would go on with residuals that other calls have dropped. */
static bool runs_in_graph(const void *arg, const gbi_plan *plan,
                          const gbi_step *step) {
  return step->verb != GBI_DO_ENCODE && runs_here(arg, plan, step);
}

static gbi_stage_self self_of(const gbi_gpu *gpu, bool graph) {
  bool kernels = gpu->p.sums != GBI_SUMS_ON_HOST;
  return (gbi_stage_self){.me = gpu->p.me,
                          .world = gpu->p.world,
                          .on_device = !kernels ? NULL
                                       : graph  ? runs_in_graph
                                                : runs_here,
                          .arg = gpu};
}

/* The plan, and what of it the library cannot do. */
static gb_status plan_shape(gbi_gpu *gpu, const gbi_policy_ops *policy,
                            const gbi_policy_env *env, const gbi_coll *coll,
                            gbi_gpu_shape *shape, gb_error *error) {
  gbi_coll planned = *coll;
  gbi_policy_env here = *env;
  here.apart_least = gbi_folder_apart(&gpu->folder, coll, gpu->p.islands);
  if (scaled_natively(gpu, coll)) planned.redop = GB_SUM;
  shape->coll = *coll;
  shape->coll.counts = gbi_coll_copy_counts(coll);
  if (coll->counts_count && !shape->coll.counts)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a call's lengths");
  GBI_TRY(gbi_policy_plan(policy, &here, &planned, &shape->plan, error));
  if (planned.redop != coll->redop && !sums_in_islands(shape->plan)) {
    gbi_plan_free(shape->plan);
    shape->plan = NULL;
    GBI_TRY(gbi_policy_plan(policy, &here, coll, &shape->plan, error));
  }
  return check_reduces(gpu, shape->plan, error);
}

static gb_status fill_shape(gbi_gpu *gpu, const gbi_policy_ops *policy,
                            const gbi_policy_env *env, const gbi_coll *coll,
                            gbi_gpu_shape *shape, gb_error *error) {
  GBI_TRY(plan_shape(gpu, policy, env, coll, shape, error));
  gbi_stage_self self = self_of(gpu, false);
  self.shared_bytes = gpu->shared_bytes;
  uint64_t least = gbi_stage_ring_least(shape->plan, &self);
  GBI_TRY(need_ring(gpu, least, error));
  GBI_TRY(need_scratch(gpu, shape->plan, error));
  shape->residuals =
      gbi_calloc(gbi_coder_payloads(shape->plan) + 1, sizeof(float *));
  if (!shape->residuals)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for a call's payloads");
  GBI_TRY(
      gbi_stage(shape->plan, &self, gpu->ring_bytes, &shape->staged, error));
  shape->direct =
      gpu->p.island_count == gpu->p.world && !shape->staged->host->count;
  return make_events(gpu, shape, error);
}

gb_status gbi_gpu_shape_make(gbi_gpu *gpu, const gbi_policy_ops *policy,
                             const gbi_policy_env *env, const gbi_coll *coll,
                             gbi_gpu_shape *shape, gb_error *error) {
  GBI_TRY(plan_shape(gpu, policy, env, coll, shape, error));
  gbi_stage_self self = self_of(gpu, true);
  uint64_t least = gbi_stage_ring_least(shape->plan, &self);
  return gbi_stage(shape->plan, &self, GBI_MAX(least, gpu->p.ring_bytes),
                   &shape->staged, error);
}

static gb_status find_shape(gbi_gpu *gpu, const gbi_policy_ops *policy,
                            const gbi_policy_env *env, const gbi_coll *coll,
                            gbi_gpu_shape **shape_p, gb_error *error) {
  gbi_gpu_shape *oldest = NULL;
  for (int i = 0; i < SHAPES; i++) {
    gbi_gpu_shape *shape = &gpu->shapes[i];
    if (shape->plan && gbi_coll_equal(&shape->coll, coll)) {
      shape->used = ++gpu->clock;
      *shape_p = shape;
      return GB_OK;
    }
    if (!atomic_load(&shape->users) && (!oldest || shape->used < oldest->used))
      oldest = shape;
  }
  if (!oldest)
    return gbi_fail(error, GB_ERR_BUSY,
                    "calls of %d different shapes are on their way, as many "
                    "as there may be. Wait for one of them and call again",
                    SHAPES);
  gbi_gpu_shape_free(gpu, oldest);
  gb_status status = fill_shape(gpu, policy, env, coll, oldest, error);
  if (status != GB_OK) {
    gbi_gpu_shape_free(gpu, oldest);
    return status;
  }
  oldest->used = ++gpu->clock;
  *shape_p = oldest;
  return GB_OK;
}

/* ---- calls ---- */

gb_status gbi_gpu_check_memory(gbi_gpu *gpu, const void *memory,
                               gb_error *error) {
  gbi_memory_facts facts;
  if (!memory) return GB_OK;
  GBI_TRY(gpu->ops->memory_facts(gpu->device, memory, &facts, error));
  if (facts.kind == GBI_MEMORY_DEVICE && facts.device == gpu->device->index)
    return GB_OK;
  if (facts.kind == GBI_MEMORY_DEVICE)
    return gbi_fail(error, GB_ERR_ARGUMENT,
                    "the memory is on GPU %d, but this rank's job is on GPU "
                    "%d. Move it there first",
                    facts.device, gpu->device->index);
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "the memory is on the host, but this rank's job is on GPU "
                  "%d. Move it there first",
                  gpu->device->index);
}

/* Kernels, the vendors' too, read and write whole elements. */
static gb_status check_aligned(const gbi_coll *coll, const void *in,
                               const void *out, gb_error *error) {
  size_t bytes = GBI_MIN(gb_dtype_bytes((gb_dtype)coll->dtype), (size_t)8);
  if (!bytes || ((uintptr_t)in | (uintptr_t)out) % bytes == 0) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT,
                  "memory on a GPU must be aligned to its elements: %s needs "
                  "%zu bytes",
                  gb_dtype_name((gb_dtype)coll->dtype), bytes);
}

gb_status gbi_gpu_check_call(gbi_gpu *gpu, const gbi_coll *coll, const void *in,
                             const void *out, gb_error *error) {
  GBI_TRY(check_aligned(coll, in, out, error));
  GBI_TRY(gbi_gpu_check_memory(gpu, in, error));
  return out == in ? GB_OK : gbi_gpu_check_memory(gpu, out, error);
}

bool gbi_gpu_is_host_memory(gbi_gpu *gpu, const void *memory) {
  gbi_memory_facts facts;
  return memory &&
         gpu->ops->memory_facts(gpu->device, memory, &facts, NULL) == GB_OK &&
         (facts.kind == GBI_MEMORY_PAGEABLE || facts.kind == GBI_MEMORY_PINNED);
}

gb_status gbi_gpu_prepare(gbi_gpu *gpu, const gbi_policy_ops *policy,
                          const gbi_policy_env *env, const gbi_coll *coll,
                          const void *in, const void *out, gbi_gpu_turn *turn,
                          gb_error *error) {
  GBI_TRY(gbi_gpu_check_call(gpu, coll, in, out, error));
  GBI_TRY(find_shape(gpu, policy, env, coll, &turn->shape, error));
  gbi_coder_prepare(&gpu->coder, turn->shape->plan, in ? in : out,
                    turn->shape->residuals);
  turn->ready = gpu->ready;
  turn->arrived = gpu->arrived;
  turn->gates = NULL;
  turn->shared_at = (uint64_t)gpu->shared_turn * gpu->shared_bytes;
  turn->staging =
      gpu->ring ? gpu->ring + (uint64_t)gpu->turn * gpu->ring_bytes : NULL;
  return GB_OK;
}

typedef gbi_gpu_issue issue;

static void *place_of(const issue *c, gbi_ref ref, uint64_t element) {
  if (ref.place == GBI_SCRATCH) return c->scratch + ref.offset;
  const void *base = ref.place == GBI_IN ? c->in : c->out;
  return (uint8_t *)(uintptr_t)base + ref.offset * element;
}

static gb_status transfer(const issue *c, const gbi_step *s, const void *src,
                          void *dst, gb_dtype dtype) {
  gbi_native *native = c->gpu->native;
  gbi_stream stream = c->lanes[GBI_LANE_MAIN];
  int me = c->gpu->p.me[GBI_ON_ISLAND];
  if (s->root == me)
    return gbi_native_send(native, src, s->count, dtype, s->peer, stream,
                           c->error);
  if (s->peer == me)
    return gbi_native_recv(native, dst, s->count, dtype, s->root, stream,
                           c->error);
  return GB_OK;
}

/* A sum in the island; `redop` may be one that the library scales for. */
static gb_status run_sum(const issue *c, const gbi_step *s, gb_dtype dtype,
                         gb_redop redop, const void *src, void *dst) {
  gbi_gpu *gpu = c->gpu;
  gbi_stream stream = c->lanes[GBI_LANE_MAIN];
  if (!gbi_native_reduces(gpu->native, dtype, redop))
    return gbi_folder_run(&gpu->folder, s, dtype, redop, src, dst, stream,
                          c->error);
  if (s->verb == GBI_DO_REDUCE)
    return gbi_native_reduce(gpu->native, src, dst, s->count, dtype, redop,
                             c->factor, gpu->p.world, s->root, stream,
                             c->error);
  return gbi_native_all_reduce(gpu->native, src, dst, s->count, dtype, redop,
                               c->factor, gpu->p.world, stream, c->error);
}

static gb_status run_step(const issue *c, const gbi_step *s) {
  gbi_gpu *gpu = c->gpu;
  const gbi_gpu_shape *shape = c->turn->shape;
  const gbi_plan *plan = shape->plan;
  gbi_stream stream = c->lanes[GBI_LANE_MAIN];
  gb_dtype dtype = gbi_step_dtype(plan, s);
  size_t element = gb_dtype_bytes(dtype);
  const void *src = place_of(c, s->src, element);
  void *dst = place_of(c, s->dst, element);
  bool scaled = shape->coll.redop != plan->coll.redop;
  gb_redop redop =
      scaled ? (gb_redop)shape->coll.redop : gbi_comm_redop(plan->coll.redop);
  if (!s->count) return GB_OK;
  switch (s->verb) {
    case GBI_DO_REDUCE:
    case GBI_DO_ALL_REDUCE: return run_sum(c, s, dtype, redop, src, dst);
    case GBI_DO_BROADCAST:
      if (s->root == gpu->p.me[GBI_ON_ISLAND]) dst = (void *)(uintptr_t)src;
      return gbi_native_broadcast(gpu->native, src, dst, s->count, dtype,
                                  s->root, stream, c->error);
    case GBI_DO_TRANSFER: return transfer(c, s, src, dst, dtype);
    case GBI_DO_COPY:
      if (src == dst) return GB_OK;
      return gpu->ops->copy(gpu->device, dst, src, s->count * element, stream,
                            c->error);
    case GBI_DO_ENCODE:
    case GBI_DO_DECODE:
      return gbi_coder_run(
          &gpu->coder, plan, s, src, dst, c->scratch + room_at(plan),
          s->verb == GBI_DO_ENCODE ? shape->residuals[s->number] : NULL, stream,
          c->error);
    default:
      return gbi_folder_run_local(&gpu->folder, plan, s, src, dst, gpu->p.world,
                                  c->factor, stream, c->error);
  }
}

/* Pinned memory that an operation copies to or from. */
static uint8_t *pinned_of(const issue *c, const gbi_stage_op *op) {
  uint8_t *base = c->turn->staging;
  if (op->area)
    base = gbi_shared_at(c->gpu->shared, op->area - 1) + c->turn->shared_at;
  return base + op->at;
}

gb_status gbi_gpu_run(const gbi_gpu_issue *c, const gbi_stage_op *op) {
  gbi_gpu *gpu = c->gpu;
  const gbi_device_ops *ops = gpu->ops;
  gbi_device *d = gpu->device;
  gbi_stream lane = c->lanes[op->lane];
  const gbi_gpu_shape *shape = c->turn->shape;
  switch (op->verb) {
    case GBI_STAGE_STEP: return run_step(c, &shape->plan->steps[op->number]);
    case GBI_STAGE_RECORD:
      return ops->event_record(d, shape->events[op->number], lane, c->error);
    case GBI_STAGE_WAIT:
      return ops->stream_wait(d, lane, shape->events[op->number], c->error);
    case GBI_STAGE_OUT:
      return ops->copy_out(d, pinned_of(c, op), place_of(c, op->ref, 1),
                           op->bytes, lane, c->error);
    case GBI_STAGE_READY:
      return ops->set_flag(d, c->flags_device + GBI_READY_AT,
                           c->turn->ready + op->number, lane, c->error);
    case GBI_STAGE_ARRIVED:
      return ops->wait_flag(d, c->flags_device + GBI_ARRIVED_AT,
                            c->turn->arrived + op->number, lane, c->error);
    default:
      return ops->copy_in(d, place_of(c, op->ref, 1), pinned_of(c, op),
                          op->bytes, lane, c->error);
  }
}

static recent describe(const issue *c) {
  const gbi_gpu_shape *shape = c->turn->shape;
  const gbi_gpu_params *p = &c->gpu->p;
  return (recent){
      .uses = gbi_uses_of(&shape->coll, p->rank, p->world, c->in, c->out),
      .scratch = shape->plan->scratch_bytes > 0,
      .hosted = gbi_gpu_has_host(c->turn),
      .used = true};
}

/* Whether the one before must be over: program order says so. Two that have no
 * part for the host are in order on MAIN. */
static bool must_follow(const recent *now, const recent *then) {
  if (!then->used || (!now->hosted && !then->hosted)) return false;
  return (now->scratch && then->scratch) ||
         gbi_uses_clash(&now->uses, &then->uses);
}

/* The lanes start behind the newest call that they must follow, and behind the
 * oldest one, whose place this one takes. */
static gb_status follow(const issue *c, int lanes) {
  gbi_gpu *gpu = c->gpu;
  recent now = describe(c);
  recent *mine = &gpu->recents[gpu->next_recent];
  const recent *newest = mine->used && mine->hosted ? mine : NULL;
  for (int i = 1; i < RECENT; i++) {
    const recent *then = &gpu->recents[(gpu->next_recent + i) % RECENT];
    if (must_follow(&now, then)) newest = then;
  }
  for (int i = 0; newest && i < lanes; i++)
    GBI_TRY(gpu->ops->stream_wait(gpu->device, c->lanes[i], newest->over,
                                  c->error));
  now.over = mine->over;
  *mine = now;
  return GB_OK;
}

/* All calls of a group are in one order on the GPU, by MAIN or by the caller's
 * stream: so are the flags at their ends, and what they use in common. */
static gb_status keep_order(const issue *c) {
  gbi_gpu *gpu = c->gpu;
  gbi_stream stream = c->lanes[GBI_LANE_MAIN];
  if (!gpu->last_over || stream == gpu->last_stream) return GB_OK;
  if (GBI_FAULT("gpu.switch") == GBI_FAULT_FAIL) return GB_OK;
  return gpu->ops->stream_wait(gpu->device, stream, gpu->last_over, c->error);
}

/* MAIN and OUT start behind the caller's stream, the others behind them; OUT
 * also behind the calls before last, whose halves of the ring and of the
 * members' areas this one takes. */
static gb_status begin(const issue *c, gbi_stream stream, bool hosted) {
  gbi_gpu *gpu = c->gpu;
  const gbi_device_ops *ops = gpu->ops;
  gbi_device *d = gpu->device;
  half *h = &gpu->halves[gpu->turn];
  GBI_TRY(ops->event_record(d, gpu->began, stream, c->error));
  GBI_TRY(keep_order(c));
  int lanes = hosted ? GBI_LANE_OUT + 1 : GBI_LANE_MAIN + 1;
  if (GBI_FAULT("gpu.begin") == GBI_FAULT_FAIL) lanes = 0;
  for (int i = 0; i < lanes; i++)
    GBI_TRY(ops->stream_wait(d, gpu->lanes[i], gpu->began, c->error));
  if (GBI_FAULT("gpu.follow") != GBI_FAULT_FAIL) GBI_TRY(follow(c, lanes));
  if (GBI_FAULT("gpu.ring") == GBI_FAULT_FAIL) return GB_OK;
  gbi_stream out = gpu->lanes[GBI_LANE_OUT];
  uint64_t arrived = 0;
  if (hosted && h->used) {
    GBI_TRY(ops->stream_wait(d, out, h->returned, c->error));
    arrived = h->arrived;
  }
  if (c->turn->shape->staged->shares)
    arrived = GBI_MAX(arrived, gpu->shared_arrived[gpu->shared_turn]);
  if (!arrived) return GB_OK;
  return ops->wait_flag(d, gpu->flags_device + GBI_ARRIVED_AT, arrived, out,
                        c->error);
}

static gb_status end(const issue *c, gbi_stream stream, gbi_event done,
                     bool hosted) {
  gbi_gpu *gpu = c->gpu;
  const gbi_device_ops *ops = gpu->ops;
  gbi_device *d = gpu->device;
  const gbi_staged *staged = c->turn->shape->staged;
  gbi_stream last = c->lanes[hosted ? GBI_LANE_END : GBI_LANE_MAIN];
  gbi_event over = gpu->recents[gpu->next_recent].over;
  gpu->next_recent = (gpu->next_recent + 1) % RECENT;
  GBI_TRY(ops->event_record(d, over, last, c->error));
  gpu->last_over = over;
  gpu->last_stream = c->lanes[GBI_LANE_MAIN];
  if (done)
    GBI_TRY(ops->event_record(d, done, last, c->error));
  else if (last != stream && GBI_FAULT("gpu.end") != GBI_FAULT_FAIL)
    GBI_TRY(ops->stream_wait(d, stream, over, c->error));
  if (!hosted)
    return ops->set_flag(d, gpu->flags_device + OVER_AT, ++gpu->alone, last,
                         c->error);
  half *h = &gpu->halves[gpu->turn];
  GBI_TRY(ops->event_record(d, h->returned, gpu->lanes[GBI_LANE_IN], c->error));
  gpu->ready += staged->readies;
  gpu->arrived += staged->releases;
  h->arrived = gpu->arrived;
  h->used = true;
  gpu->turn = (gpu->turn + 1) % HALVES;
  if (!staged->shares) return GB_OK;
  gpu->shared_arrived[gpu->shared_turn] = gpu->arrived;
  gpu->shared_turn = (gpu->shared_turn + 1) % HALVES;
  return GB_OK;
}

/* What calls must not do, for the tests that see it: wait on a lane for what is
 * raised by operations enqueued later; allocate. */
static gb_status wait_first(const issue *c, bool hosted) {
  if (!hosted) return GB_OK;
  gbi_gpu *gpu = c->gpu;
  return gpu->ops->wait_flag(gpu->device, gpu->flags_device + GBI_ARRIVED_AT,
                             c->turn->arrived + 1, gpu->lanes[GBI_LANE_IN],
                             c->error);
}
static void allocate_within(gbi_gpu *gpu) {
  void *memory;
  if (gpu->ops->memory(gpu->device, 4096, &memory, NULL) == GB_OK)
    gpu->ops->free_memory(gpu->device, memory);
}

gb_status gbi_gpu_enqueue(gbi_gpu *gpu, const gbi_gpu_turn *turn,
                          const void *in, void *out, double factor,
                          gbi_stream stream, gbi_event done, gb_error *error) {
  const gbi_staged *staged = turn->shape->staged;
  bool hosted = gbi_gpu_has_host(turn);
  /* One library's work, and nobody waits but the stream it may be on. */
  bool direct = turn->shape->direct && !done;
  issue c = {
      .gpu = gpu,
      .turn = turn,
      .in = in,
      .out = out,
      .factor = factor,
      .lanes = direct ? (gbi_stream[GBI_LANES]){stream, stream, stream, stream}
                      : gpu->lanes,
      .flags_device = gpu->flags_device,
      .scratch = gpu->scratch,
      .error = error};
  if (direct) {
    GBI_TRY(keep_order(&c));
    GBI_TRY(follow(&c, 1));
  } else {
    GBI_TRY(begin(&c, stream, hosted));
  }
  if (GBI_FAULT("gpu.order") == GBI_FAULT_FAIL) GBI_TRY(wait_first(&c, hosted));
  for (uint32_t i = 0; i < staged->ops_count; i++)
    GBI_TRY(gbi_gpu_run(&c, &staged->ops[i]));
  if (GBI_FAULT("gpu.alloc") == GBI_FAULT_FAIL) allocate_within(gpu);
  return end(&c, stream, done, hosted);
}
