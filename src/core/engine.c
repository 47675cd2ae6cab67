#include "core/engine.h"

#include "base/fault.h"
#include "base/memory.h"
#include "core/local.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WAITS, STARTED, DONE };
enum { FDS_MAX = 8 };

/* A communicator step in flight. */
typedef struct flying {
  gbi_task *task;
  uint32_t step;
  void *state; /* one of the lane's blocks */
} flying;

typedef struct lane {
  gbi_comm *comm;
  uint8_t *blocks; /* a state for each step in flight */
  size_t block_bytes;
  void *spare[GBI_COMM_FLYING_MAX];
  int spares;
  flying flying[GBI_COMM_FLYING_MAX]; /* oldest first */
  int count;
} lane;

struct gbi_engine {
  lane lanes[GBI_RESOURCES];
  gbi_task tasks[GBI_TASKS];
  gbi_task *order[GBI_TASKS]; /* active ones, oldest first */
  int active;
  int world;
  uint64_t scratch_bytes;
  gbi_watch *watch;
  gbi_waiter *waiter;
  gbi_compress *compress; /* NULL: off */
};

/* ---- open and close ---- */

static gb_status open_lane(lane *l, gbi_comm *comm, gb_error *error) {
  l->comm = comm;
  if (!comm) return GB_OK;
  l->block_bytes = (comm->ops->state_bytes + 63) / 64 * 64;
  int most = comm->flying ? comm->flying : GBI_COMM_FLYING;
  l->blocks = gbi_aligned_alloc(64, l->block_bytes * (size_t)most);
  if (!l->blocks)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for the engine");
  memset(l->blocks, 0, l->block_bytes * (size_t)most);
  for (int i = 0; i < most; i++)
    l->spare[i] = l->blocks + l->block_bytes * (size_t)i;
  l->spares = most;
  return GB_OK;
}

gb_status gbi_engine_open(gbi_comm *const comms[GBI_RESOURCES], int world,
                          uint64_t scratch_bytes, gbi_watch *watch,
                          gbi_hostarea *area, gbi_engine **engine_p,
                          gb_error *error) {
  gbi_engine *engine = gbi_calloc(1, sizeof *engine);
  if (!engine)
    return gbi_fail(error, GB_ERR_MEMORY, "no memory for the engine");
  engine->world = world;
  engine->scratch_bytes = scratch_bytes;
  engine->watch = watch;
  engine->waiter = gbi_hostarea_waiter(area);
  gb_status status = GB_OK;
  for (int r = 0; r < GBI_RESOURCES && status == GB_OK; r++)
    status = open_lane(&engine->lanes[r], comms[r], error);
  if (status != GB_OK) {
    for (int r = 0; r < GBI_RESOURCES; r++) engine->lanes[r].comm = NULL;
    gbi_engine_close(engine);
    return status;
  }
  *engine_p = engine;
  return GB_OK;
}

void gbi_engine_stop(gbi_engine *engine) {
  for (int r = 0; r < GBI_RESOURCES; r++)
    if (engine->lanes[r].comm)
      engine->lanes[r].comm->ops->stop(engine->lanes[r].comm);
}

void gbi_engine_close(gbi_engine *engine) {
  if (!engine) return;
  for (int r = 0; r < GBI_RESOURCES; r++) {
    if (engine->lanes[r].comm)
      engine->lanes[r].comm->ops->close(engine->lanes[r].comm);
    free(engine->lanes[r].blocks);
  }
  for (int i = 0; i < GBI_TASKS; i++) {
    free(engine->tasks[i].state);
    if (engine->tasks[i].scratch)
      munmap(engine->tasks[i].scratch, engine->tasks[i].scratch_bytes);
  }
  gbi_compress_free(engine->compress);
  free(engine);
}

void gbi_engine_compress(gbi_engine *engine, gbi_compress *compress) {
  engine->compress = compress;
}

/* ---- tasks ---- */

bool gbi_engine_has(const gbi_engine *engine, int resource) {
  return engine->lanes[resource].comm;
}

gbi_task *gbi_engine_task(gbi_engine *engine) {
  for (int i = 0; i < GBI_TASKS; i++)
    if (!engine->tasks[i].active) return &engine->tasks[i];
  return NULL;
}

/* Room for the plan in the task; kept for the next one. */
static gb_status make_room(gbi_engine *engine, gbi_task *task,
                           gb_error *error) {
  if (task->plan->count > task->state_bytes) {
    uint8_t *state = gbi_realloc(task->state, task->plan->count);
    if (!state)
      return gbi_fail(error, GB_ERR_MEMORY, "no memory for %u steps",
                      task->plan->count);
    task->state = state;
    task->state_bytes = task->plan->count;
  }
  if (task->gates || !task->plan->scratch_bytes || task->scratch) return GB_OK;
  /* Populated: the first use must not pay for page faults chunk by chunk. */
  void *scratch = MAP_FAILED;
  if (GBI_FAULT("mem.map") == GBI_FAULT_FAIL)
    errno = ENOMEM;
  else
    scratch = mmap(NULL, engine->scratch_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (scratch == MAP_FAILED)
    return gbi_fail(error, GB_ERR_MEMORY,
                    "no memory for a scratch of %llu bytes: %s",
                    (unsigned long long)engine->scratch_bytes, strerror(errno));
  task->scratch = scratch;
  task->scratch_bytes = engine->scratch_bytes;
  return GB_OK;
}

gb_status gbi_engine_begin(gbi_engine *engine, gbi_task *task,
                           gb_error *error) {
  if (!task->gates && task->plan->scratch_bytes > engine->scratch_bytes)
    return gbi_fail(error, GB_ERR_INTERNAL,
                    "a plan asks for %llu bytes of scratch, %llu are there",
                    (unsigned long long)task->plan->scratch_bytes,
                    (unsigned long long)engine->scratch_bytes);
  GBI_TRY(make_room(engine, task, error));
  if (task->plan->count) memset(task->state, WAITS, task->plan->count);
  memcpy(task->cursor, task->plan->first, sizeof task->cursor);
  task->done = 0;
  task->released = 0;
  task->phases_open = 0;
  task->active = true;
  engine->order[engine->active++] = task;
  return GB_OK;
}

/* Whether what it released is not counted yet: an older one of the same gates
 * is not through, which others may overtake. */
static bool is_behind(const gbi_engine *engine, int at) {
  const gbi_task *task = engine->order[at];
  for (int i = 0; i < at && task->gates; i++)
    if (engine->order[i]->gates == task->gates &&
        engine->order[i]->done < engine->order[i]->plan->count)
      return true;
  return false;
}

gbi_task *gbi_engine_finished(gbi_engine *engine) {
  for (int i = 0; i < engine->active; i++)
    if (engine->order[i]->done == engine->order[i]->plan->count &&
        !is_behind(engine, i))
      return engine->order[i];
  return NULL;
}

void gbi_engine_release(gbi_engine *engine, gbi_task *task) {
  /* It has failed, and with it the group: nothing is added up again. */
  if (task->done < task->plan->count) gbi_compress_drop(engine->compress);
  int kept = 0;
  for (int i = 0; i < engine->active; i++)
    if (engine->order[i] != task) engine->order[kept++] = engine->order[i];
  engine->active = kept;
  task->active = false;
}

int gbi_engine_active(const gbi_engine *engine) {
  return engine->active;
}

gbi_task *gbi_engine_nth(gbi_engine *engine, int n) {
  return engine->order[n];
}

gbi_task *gbi_engine_oldest(gbi_engine *engine) {
  return engine->active ? engine->order[0] : NULL;
}

/* ---- steps ---- */

static bool gate_open(const gbi_task *task, const gbi_step *step) {
  if (!step->gate) return true;
  const gbi_gates *gates = task->gates;
  uint64_t ready = atomic_load_explicit(gates->ready, memory_order_acquire);
  return ready >= task->ready + step->gate && gates->sound(gates->arg);
}

static bool deps_done(const gbi_task *task, const gbi_step *step) {
  for (int d = 0; d < 2; d++) {
    const uint8_t *state = task->state + step->deps[d].from;
    for (uint32_t k = 0; k < step->deps[d].count; k++)
      if (state[k] != DONE) return false;
  }
  return gate_open(task, step);
}

static void *resolve(const gbi_task *task, gbi_ref ref, size_t size) {
  if (ref.place == GBI_SCRATCH)
    return (uint8_t *)(task->gates ? task->staging : task->scratch) +
           ref.offset;
  const void *base = ref.place == GBI_IN ? task->in : task->out;
  /* The input is never written by a plan (the checker proves it), but an
   * in-place call passes one memory as both. */
  return (uint8_t *)(uintptr_t)base + ref.offset * size;
}

static int phase_steps(const gbi_plan *plan, int phase) {
  int count = 0;
  for (uint32_t i = 0; i < plan->count; i++)
    count += plan->steps[i].phase == phase;
  return count;
}

static void phase_started(gbi_engine *engine, gbi_task *task, int phase) {
  uint16_t bit = (uint16_t)(1u << phase);
  if (!phase || task->phases_open & bit) return;
  task->phases_open |= bit;
  gbi_watch_phase(engine->watch, task->watch_slot, gbi_phase_name(phase),
                  phase_steps(task->plan, phase));
}

/* Members number a step by its place on this resource: their plans differ
 * elsewhere. Messages have numbers of their own: others' lists differ. */
static uint32_t step_number(const gbi_task *task, const gbi_step *step) {
  int r = step->resource;
  return r == GBI_ON_MESH ? step->number
                          : task->cursor[r] - task->plan->first[r];
}

static void start_on_comm(gbi_engine *engine, lane *l, gbi_task *task,
                          uint32_t index) {
  static const gbi_comm_kind kinds[] = {
      [GBI_DO_REDUCE] = GBI_COMM_REDUCE,
      [GBI_DO_BROADCAST] = GBI_COMM_BROADCAST,
      [GBI_DO_ALL_REDUCE] = GBI_COMM_ALL_REDUCE,
      [GBI_DO_TRANSFER] = GBI_COMM_TRANSFER,
      [GBI_DO_SEND] = GBI_COMM_SEND,
      [GBI_DO_RECV] = GBI_COMM_RECV,
      [GBI_DO_CALL] = GBI_COMM_CALL,
  };
  const gbi_step *step = &task->plan->steps[index];
  gb_dtype dtype = gbi_step_dtype(task->plan, step);
  size_t size = gb_dtype_bytes(dtype);
  gbi_comm_step out = {
      .kind = kinds[step->verb],
      .call = task->call,
      .step = step_number(task, step),
      .root = step->root,
      .peer = step->peer,
      .src = resolve(task, step->src, size),
      .dst = resolve(task, step->dst, size),
      .count = step->count,
      .dtype = dtype,
      .redop = gbi_comm_redop(task->plan->coll.redop),
  };
  flying *f = &l->flying[l->count++];
  f->task = task;
  f->step = index;
  f->state = l->spare[--l->spares];
  phase_started(engine, task, step->phase);
  l->comm->ops->start(l->comm, &out, f->state);
}

/* Counts releases in order, also over tasks: the device waits for a number, so
 * all below it must have happened. */
static void release(gbi_engine *engine, const gbi_gates *gates) {
  uint64_t value = 0;
  for (int i = 0; i < engine->active; i++) {
    gbi_task *task = engine->order[i];
    const gbi_plan *plan = task->plan;
    if (task->gates != gates) continue;
    while (task->released < plan->releases_count &&
           task->state[plan->releases[task->released]] == DONE)
      task->released++;
    value = task->arrived + task->released;
    if (task->released < plan->releases_count) break;
  }
  /* Never back: who aborts has opened everything. */
  uint64_t old = atomic_load_explicit(gates->arrived, memory_order_relaxed);
  while (old < value && !atomic_compare_exchange_weak_explicit(
                            gates->arrived, &old, value, memory_order_release,
                            memory_order_relaxed)) {
  }
}

static void finish_step(gbi_engine *engine, gbi_task *task, uint32_t index) {
  const gbi_step *step = &task->plan->steps[index];
  task->state[index] = DONE;
  task->done++;
  if (step->release) release(engine, task->gates);
  if (step->phase)
    gbi_watch_phase_step(engine->watch, task->watch_slot,
                         gbi_phase_name(step->phase));
}

static void run_on_rank(gbi_engine *engine, gbi_task *task, uint32_t index) {
  const gbi_step *step = &task->plan->steps[index];
  size_t size = gb_dtype_bytes((gb_dtype)task->plan->coll.dtype);
  void *src = resolve(task, step->src, size);
  void *dst = resolve(task, step->dst, size);
  phase_started(engine, task, step->phase);
  if (step->verb == GBI_DO_ENCODE)
    gbi_compress_encode(engine->compress, task->plan, step,
                        task->in ? task->in : task->out, src, dst);
  else if (step->verb == GBI_DO_DECODE)
    gbi_compress_decode(task->plan, step, src, dst);
  else
    gbi_local_run(&task->plan->coll, step, src, dst, engine->world,
                  task->factor);
  finish_step(engine, task, index);
}

/* Local work has no order but that of dependencies: the next chunk is encoded
 * while this one is on its way. One step at a time, so that what waits for it
 * elsewhere starts before the next. */
static bool run_next_on_rank(gbi_engine *engine, gbi_task *task) {
  const gbi_plan *plan = task->plan;
  uint32_t *cursor = &task->cursor[GBI_ON_RANK];
  uint32_t end = plan->first[GBI_ON_RANK + 1];
  for (uint32_t at = *cursor; at < end && at - *cursor < GBI_LOCAL_AHEAD;
       at++) {
    uint32_t index = plan->order[at];
    bool ran = task->state[index] != DONE;
    if (ran && !deps_done(task, &plan->steps[index])) continue;
    if (ran) run_on_rank(engine, task, index);
    if (at == *cursor) ++*cursor;
    if (ran) return true;
  }
  return false;
}

/* Starts this task's steps on one resource, in order, while they can. */
static bool start_steps(gbi_engine *engine, gbi_task *task, int resource) {
  const gbi_plan *plan = task->plan;
  lane *l = &engine->lanes[resource];
  bool any = false;
  if (resource == GBI_ON_RANK) return run_next_on_rank(engine, task);
  while (task->cursor[resource] < plan->first[resource + 1]) {
    uint32_t index = plan->order[task->cursor[resource]];
    if (!deps_done(task, &plan->steps[index])) break;
    if (!l->spares) break;
    task->state[index] = STARTED;
    start_on_comm(engine, l, task, index);
    task->cursor[resource]++;
    any = true;
  }
  return any;
}

static bool start_all(gbi_engine *engine) {
  bool any = false, closed[GBI_RESOURCES] = {false};
  for (int i = 0; i < engine->active; i++) {
    gbi_task *task = engine->order[i];
    for (int r = 0; r < GBI_RESOURCES; r++) {
      if (closed[r]) continue;
      any |= start_steps(engine, task, r);
      /* Program order: a younger task waits until this one has started all its
       * steps here. Local work has no order across tasks. */
      if (r != GBI_ON_RANK && task->cursor[r] < task->plan->first[r + 1])
        closed[r] = true;
    }
  }
  return any;
}

static gb_status progress_lane(gbi_engine *engine, lane *l, bool *any_p,
                               gb_error *error) {
  int kept = 0;
  gb_status status = GB_OK;
  for (int i = 0; i < l->count; i++) {
    flying f = l->flying[i];
    if (status == GB_OK) {
      gb_status one = l->comm->ops->progress(l->comm, f.state, error);
      if (one == GB_OK) {
        l->spare[l->spares++] = f.state;
        finish_step(engine, f.task, f.step);
        *any_p = true;
        continue;
      }
      if (one != GB_ERR_BUSY) status = one;
    }
    l->flying[kept++] = f;
  }
  l->count = kept;
  return status;
}

gb_status gbi_engine_progress(gbi_engine *engine, bool *moved_p,
                              gb_error *error) {
  bool any = start_all(engine);
  for (int r = GBI_ON_ISLAND; r < GBI_RESOURCES; r++) {
    lane *l = &engine->lanes[r];
    if (!l->count) continue;
    uint64_t before = l->comm->moved;
    GBI_TRY(progress_lane(engine, l, &any, error));
    any |= l->comm->moved != before;
  }
  *moved_p = any;
  return GB_OK;
}

/* ---- waiting ---- */

bool gbi_engine_gated(const gbi_engine *engine) {
  for (int i = 0; i < engine->active; i++) {
    const gbi_task *task = engine->order[i];
    if (task->gates &&
        atomic_load_explicit(task->gates->ready, memory_order_acquire) <
            task->ready_end)
      return true;
  }
  return false;
}

void gbi_engine_sleep(gbi_engine *engine, uint32_t seen, int most_ms) {
  struct pollfd fds[FDS_MAX];
  int count = 0;
  for (int r = GBI_ON_ISLAND; r < GBI_RESOURCES; r++) {
    lane *l = &engine->lanes[r];
    if (!l->count) continue;
    int raw[FDS_MAX];
    int n = l->comm->ops->wait_fds(l->comm, raw, FDS_MAX - count);
    for (int i = 0; i < n; i++)
      fds[count++] = (struct pollfd){raw[i], POLLIN, 0};
  }
  gbi_waiter_sleep(engine->waiter, seen, count ? fds : NULL, count, most_ms);
}

static int rank_of(const gbi_topology *topology, int rank, int resource,
                   int member) {
  if (resource == GBI_ON_ISLAND)
    return topology->islands[topology->island_of[rank]].ranks[member];
  return resource == GBI_ON_BRIDGE ? gbi_topology_linked(topology, rank, member)
                                   : member;
}

int gbi_engine_waiting_for(gbi_engine *engine, const gbi_topology *topology,
                           int rank, int *ranks, int max) {
  int count = 0;
  for (int r = GBI_ON_ISLAND; r < GBI_RESOURCES; r++) {
    lane *l = &engine->lanes[r];
    for (int i = 0; i < l->count; i++) {
      int members[64];
      int n = l->comm->ops->waiting_for(l->comm, l->flying[i].state, members,
                                        (int)GBI_COUNT(members));
      for (int k = 0; k < n && count < max; k++) {
        int who = rank_of(topology, rank, r, members[k]);
        bool known = false;
        for (int j = 0; j < count; j++) known |= ranks[j] == who;
        if (!known) ranks[count++] = who;
      }
    }
  }
  return count;
}

void gbi_engine_describe(const gbi_engine *engine, gbi_fact_fn fn, void *arg) {
  if (engine->compress) gbi_compress_describe(engine->compress, fn, arg);
  for (int r = GBI_ON_ISLAND; r < GBI_RESOURCES; r++)
    if (engine->lanes[r].comm)
      engine->lanes[r].comm->ops->describe(engine->lanes[r].comm, fn, arg);
}
