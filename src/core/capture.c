#include "core/capture.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "core/work.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pinned memory of a captured call: flags, then its ring. READY_AT and
 * ARRIVED_AT are gpu.h's. */
enum { START_AT = 256, GO_AT = 384, OVER_AT = 512, RING_AT = 4096 };

/* Of a captured call's replays, one after another; START of the GPU's. */
enum { RESTS, RUNS, ENDS };
enum { STARTED = 1, PASSED = 2 };

typedef struct captured captured;

struct captured {
  gb_work work; /* of its replays, one after another */
  captured *next;
  gbi_captures *owner;
  uint64_t number, replays;
  gbi_gpu_shape shape;
  gbi_gpu_turn turn;
  gbi_gates gates;
  uint8_t *memory, *memory_device; /* pinned */
  uint64_t bytes;
  uint8_t *scratch;
  bool held; /* a graph says when it ends */
  int state; /* RESTS ... */
  _Atomic bool gone;
  atomic_int holds; /* the group's and the graph's */
};

struct gbi_captures {
  gbi_gpu *gpu;
  gbi_device *device;
  pthread_mutex_t lock; /* level 12: the list and the flags that go down */
  captured *first;
  _Atomic int count;
  uint64_t next_number;
  bool open; /* the group has failed, or is closed */
};

static _Atomic uint64_t *flag_of(const captured *c, int at) {
  return (_Atomic uint64_t *)(void *)(c->memory + at);
}

static void set(const captured *c, int at, uint64_t value) {
  atomic_store_explicit(flag_of(c, at), value, memory_order_release);
}

/* Whether the GPU has come so far: STARTED, PASSED. */
static bool is_at(const captured *c, uint64_t value) {
  return atomic_load_explicit(flag_of(c, START_AT), memory_order_acquire) ==
         value;
}

/* ---- life ---- */

gb_status gbi_captures_open(gbi_gpu *gpu, gbi_captures **captures_p,
                            gb_error *error) {
  gbi_captures *all = gbi_calloc(1, sizeof *all);
  if (!all) return gbi_fail(error, GB_ERR_MEMORY, "no memory for captures");
  all->gpu = gpu;
  all->device = gbi_gpu_device(gpu);
  pthread_mutex_init(&all->lock, NULL);
  *captures_p = all;
  return GB_OK;
}

static void drop(captured *c) {
  if (atomic_fetch_sub(&c->holds, 1) == 1) free(c);
}

/* The graph is no more. Nothing of the runtime may be called here: the group
 * frees the memory when it comes by. */
static void on_gone(void *arg) {
  captured *c = arg;
  atomic_store(&c->gone, true);
  drop(c);
}

static void free_captured(captured *c) {
  const gbi_captures *all = c->owner;
  if (c->scratch) all->device->ops->free_memory(all->device, c->scratch);
  if (c->memory) all->device->ops->free_pinned(all->device, c->memory);
  gbi_gpu_shape_free(all->gpu, &c->shape);
  drop(c);
}

static void open_gates(const captured *c) {
  set(c, GBI_ARRIVED_AT, GBI_OPEN_ALL);
  set(c, OVER_AT, GBI_OPEN_ALL);
  set(c, GO_AT, GBI_OPEN_ALL);
}

void gbi_captures_release(gbi_captures *all) {
  if (!all) return;
  pthread_mutex_lock(&all->lock);
  all->open = true;
  for (const captured *c = all->first; c; c = c->next) open_gates(c);
  pthread_mutex_unlock(&all->lock);
}

/* Those whose graphs are gone. */
static void reap(gbi_captures *all) {
  captured *dead = NULL;
  pthread_mutex_lock(&all->lock);
  for (captured **at = &all->first; *at;) {
    captured *c = *at;
    if (!atomic_load(&c->gone) || c->state == RUNS) {
      at = &c->next;
      continue;
    }
    *at = c->next;
    c->next = dead;
    dead = c;
    atomic_fetch_sub(&all->count, 1);
  }
  pthread_mutex_unlock(&all->lock);
  while (dead) {
    captured *next = dead->next;
    free_captured(dead);
    dead = next;
  }
}

void gbi_captures_close(gbi_captures *all) {
  if (!all) return;
  uint64_t bytes = 0;
  int kept = 0;
  gbi_captures_release(all);
  for (captured *c = all->first, *next; c; c = next) {
    next = c->next;
    if (!c->held || atomic_load(&c->gone)) {
      free_captured(c);
      continue;
    }
    /* A replay would still write to its pinned memory. */
    kept++;
    bytes += c->bytes;
    gbi_gpu_shape_free(all->gpu, &c->shape);
    drop(c);
  }
  if (kept)
    GBI_WARN("core",
             "graphs that outlive their group hold %d captured calls: %" PRIu64
             " bytes of pinned memory are left. Destroy graphs before the "
             "group is closed",
             kept, bytes);
  pthread_mutex_destroy(&all->lock);
  free(all);
}

/* ---- capturing ---- */

gb_status gbi_capture_wanted(gbi_gpu *gpu, gbi_stream stream, bool *wanted_p,
                             gb_error *error) {
  gbi_device *device = gbi_gpu_device(gpu);
  return device->ops->stream_captures(device, stream, wanted_p, error);
}

gb_status gbi_capture_refuse(const char *what, const char *why,
                             gb_error *error) {
  return gbi_fail(error, GB_ERR_UNSUPPORTED,
                  "%s cannot be captured into a graph: %s", what, why);
}

static gb_status check_flags(const gbi_captures *all, const gbi_coll *coll,
                             gb_error *error) {
  const gbi_device *device = all->device;
  if (device->facts.captures_flags) return GB_OK;
  char why[400];
  snprintf(why, sizeof why,
           "it crosses between vendors, and the runtime of %s GPU %d (%s) "
           "would carry out its waits for the host at once instead of "
           "capturing them. Call it outside of the capture, or use ROCm 7.3 or "
           "later",
           gbi_vendor_name(device->ops->vendor), device->index,
           device->facts.name);
  return gbi_capture_refuse(gbi_op_name(coll->op), why, error);
}

/* Everything that a replay needs is there before the first node. */
static gb_status get_memory(captured *c, gb_error *error) {
  gbi_device *device = c->owner->device;
  const gbi_gates *gates = gbi_gpu_gates(c->owner->gpu);
  void *host, *address, *scratch;
  if (c->shape.plan->scratch_bytes) {
    GBI_TRY(device->ops->memory(device, gbi_gpu_scratch_bytes(c->shape.plan),
                                &scratch, error));
    c->scratch = scratch;
  }
  c->bytes = RING_AT + c->shape.staged->ring_used;
  GBI_TRY(device->ops->pinned(device, c->bytes, &host, &address, error));
  c->memory = host;
  c->memory_device = address;
  c->gates = (gbi_gates){.ready = flag_of(c, GBI_READY_AT),
                         .arrived = flag_of(c, GBI_ARRIVED_AT),
                         .sound = gates->sound,
                         .arg = gates->arg};
  c->turn = (gbi_gpu_turn){
      .shape = &c->shape, .staging = c->memory + RING_AT, .gates = &c->gates};
  return GB_OK;
}

/* A place for a call that has a part for the host. */
static gb_status prepare(captured *c, const void *in, void *out, double factor,
                         gbi_works *works, gb_error *error) {
  GBI_TRY(get_memory(c, error));
  gbi_work_init(&c->work, works, &c->shape.coll, in, out, factor);
  c->work.turn = c->turn;
  c->work.replay = true;
  return GB_OK;
}

static gb_status wait_for(const gbi_gpu_issue *issue, int at) {
  gbi_device *device = gbi_gpu_device(issue->gpu);
  return device->ops->wait_flag(device, issue->flags_device + at, 1,
                                issue->lanes[0], issue->error);
}

static gb_status raise(const gbi_gpu_issue *issue, int at, uint64_t value) {
  gbi_device *device = gbi_gpu_device(issue->gpu);
  return device->ops->set_flag(device, issue->flags_device + at, value,
                               issue->lanes[0], issue->error);
}

static gb_status pass(const gbi_gpu_issue *issue) {
  if (GBI_FAULT("capture.go") != GBI_FAULT_FAIL)
    GBI_TRY(wait_for(issue, GO_AT));
  return raise(issue, START_AT, PASSED);
}

static gb_status begin_chain(const gbi_gpu_issue *issue) {
  if (GBI_FAULT("capture.ready") != GBI_FAULT_FAIL)
    GBI_TRY(raise(issue, GBI_READY_AT, 0));
  return raise(issue, START_AT, STARTED);
}

/* The order of the list is an order for one stream: its events say no more. */
static gb_status run_chain(const gbi_gpu_issue *issue, bool hosted) {
  const gbi_staged *staged = issue->turn->shape->staged;
  bool passed = false;
  if (hosted) GBI_TRY(begin_chain(issue));
  for (uint32_t i = 0; i < staged->ops_count; i++) {
    const gbi_stage_op *op = &staged->ops[i];
    if (op->verb == GBI_STAGE_RECORD || op->verb == GBI_STAGE_WAIT) continue;
    if (op->verb == GBI_STAGE_ARRIVED && !passed) {
      passed = true;
      GBI_TRY(pass(issue));
    }
    GBI_TRY(gbi_gpu_run(issue, op));
  }
  if (!hosted) return GB_OK;
  if (!passed) GBI_TRY(pass(issue));
  return wait_for(issue, OVER_AT);
}

static gb_status enqueue(captured *c, const void *in, void *out, double factor,
                         gbi_stream stream, gb_error *error) {
  gbi_gpu_issue issue = {
      .gpu = c->owner->gpu,
      .turn = &c->turn,
      .in = in,
      .out = out,
      .factor = factor,
      .lanes = (const gbi_stream[GBI_LANES]){stream, stream, stream, stream},
      .flags_device = c->memory_device,
      .scratch = c->scratch,
      .error = error};
  return run_chain(&issue, c->work.replay);
}

/* Known to the worker from now on. */
static void add(captured *c) {
  gbi_captures *all = c->owner;
  pthread_mutex_lock(&all->lock);
  c->next = all->first;
  all->first = c;
  atomic_fetch_add(&all->count, 1);
  if (all->open && c->memory) open_gates(c);
  pthread_mutex_unlock(&all->lock);
}

static void tie(captured *c, gbi_stream stream) {
  gbi_device *device = c->owner->device;
  gb_error why;
  atomic_fetch_add(&c->holds, 1);
  c->held = true;
  if (device->ops->at_end_of_graph(device, stream, on_gone, c, &why) == GB_OK)
    return;
  c->held = false;
  atomic_fetch_sub(&c->holds, 1);
  GBI_WARN("core", "a captured call is kept until its group is closed: %s",
           why.text);
}

static gb_status capture(captured *c, const gbi_policy_ops *policy,
                         const gbi_policy_env *env, const gbi_coll *coll,
                         const void *in, void *out, double factor,
                         gbi_stream stream, gbi_works *works, bool *begun_p,
                         gb_error *error) {
  gbi_gpu *gpu = c->owner->gpu;
  GBI_TRY(gbi_gpu_check_call(gpu, coll, in, out, error));
  GBI_TRY(gbi_gpu_shape_make(gpu, policy, env, coll, &c->shape, error));
  if (c->shape.staged->host->count) {
    GBI_TRY(check_flags(c->owner, coll, error));
    GBI_TRY(prepare(c, in, out, factor, works, error));
    add(c);
    tie(c, stream);
  } else if (c->shape.plan->scratch_bytes) {
    /* Nothing of the host's, and yet memory that the graph needs. */
    GBI_TRY(get_memory(c, error));
    add(c);
    tie(c, stream);
  }
  *begun_p = true;
  gbi_gpu_captured(gpu);
  return enqueue(c, in, out, factor, stream, error);
}

gb_status gbi_capture_call(gbi_gpu *gpu, const gbi_policy_ops *policy,
                           const gbi_policy_env *env, const gbi_coll *coll,
                           const void *in, void *out, double factor,
                           gbi_stream stream, gbi_works *works, bool *hosted_p,
                           bool *begun_p, gb_error *error) {
  gbi_captures *all = gbi_gpu_captures(gpu);
  *hosted_p = *begun_p = false;
  uint64_t number = all->next_number++; /* also of what is refused here only */
  if (number >= GBI_SEQ_CAPTURES_MAX)
    return gbi_capture_refuse(gbi_op_name(coll->op),
                              "the group has captured as many calls as it may, "
                              "1048576. Open another group",
                              error);
  captured *c = gbi_calloc(1, sizeof *c);
  if (!c) return gbi_fail(error, GB_ERR_MEMORY, "no memory for a capture");
  atomic_init(&c->holds, 1);
  c->owner = all;
  c->number = number;
  c->turn.shape = &c->shape;
  /* What is allocated here must not break the capture. */
  unsigned mode = GBI_CAPTURE_RELAXED;
  all->device->ops->swap_capture_mode(all->device, &mode);
  reap(all);
  gb_status status = capture(c, policy, env, coll, in, out, factor, stream,
                             works, begun_p, error);
  *hosted_p = c->work.replay;
  if (!c->memory) free_captured(c); /* its nodes are all there is */
  all->device->ops->swap_capture_mode(all->device, &mode);
  return status;
}

/* ---- replays ---- */

bool gbi_captures_any(gbi_captures *all) {
  return all && atomic_load_explicit(&all->count, memory_order_acquire);
}

static bool rings(const captured *c) {
  return (c->state == RESTS && is_at(c, STARTED)) ||
         (c->state == ENDS && is_at(c, PASSED));
}

bool gbi_captures_rings(gbi_captures *all) {
  bool any = false;
  pthread_mutex_lock(&all->lock);
  for (captured *c = all->first; c && !any && !all->open; c = c->next)
    any = c->work.replay && rings(c);
  pthread_mutex_unlock(&all->lock);
  return any;
}

/* With the lock held. */
static void take(captured *c) {
  set(c, GBI_ARRIVED_AT, 0);
  set(c, OVER_AT, 0);
  set(c, GO_AT, 1);
  c->state = RUNS;
  c->work.seq = gbi_seq_captured(c->number, ++c->replays);
  c->work.done = false;
  atomic_fetch_add(&c->shape.users, 1);
}

/* With the lock held. */
static void finish(captured *c) {
  if (GBI_FAULT("capture.back") != GBI_FAULT_FAIL) set(c, GO_AT, 0);
  set(c, OVER_AT, 1);
  c->state = RESTS;
}

static gb_status fail_two(const captured *a, const captured *b,
                          gb_error *error) {
  return gbi_fail(error, GB_ERR_MISMATCH,
                  "two captured calls of one group, numbers %" PRIu64
                  " and %" PRIu64
                  ", are replayed at the same time. All calls "
                  "and replays of a group must follow each other on the GPU, "
                  "by one stream or by events, as on every other rank",
                  GBI_MIN(a->number, b->number), GBI_MAX(a->number, b->number));
}

gb_status gbi_captures_take(gbi_captures *all, gb_work **work_p,
                            gb_error *error) {
  captured *found = NULL, *other = NULL;
  *work_p = NULL;
  pthread_mutex_lock(&all->lock);
  for (captured *c = all->first; c && !all->open; c = c->next) {
    if (!c->work.replay) continue;
    bool starts = c->state == RESTS && is_at(c, STARTED);
    if (c->state == ENDS && is_at(c, PASSED)) finish(c);
    if (c->state == RESTS && !starts) continue;
    other = found;
    found = c;
    if (starts) *work_p = &c->work;
  }
  gb_status status = GB_OK;
  if (other)
    status = fail_two(other, found, error);
  else if (*work_p)
    take(found);
  pthread_mutex_unlock(&all->lock);
  return status;
}

void gbi_captures_end(gb_work *work) {
  captured *c = (captured *)(void *)work;
  pthread_mutex_lock(&c->owner->lock);
  c->state = ENDS;
  pthread_mutex_unlock(&c->owner->lock);
}
