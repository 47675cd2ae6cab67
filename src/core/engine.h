/* core/engine: runs plans on host memory.
 *
 * A task is one collective on its way. Up to GBI_TASKS tasks are in flight; on
 * each resource the steps of an older task start before those of a younger one,
 * so the order per resource is program order on every rank, while a younger
 * task's island steps may run under an older one's bridge steps.
 *
 * One thread at a time drives an engine (the group sees to that); stop is the
 * exception. Nothing is allocated in a steady call. */
#ifndef GBI_CORE_ENGINE_H
#define GBI_CORE_ENGINE_H

#include "comm/comm.h"
#include "core/compress.h"
#include "observe/watch.h"
#include "os/hostarea.h"
#include "plan/plan.h"

#include <stdatomic.h>

#define GBI_TASKS 4 /* collectives in flight */

/* How the host's part of a collective and a device keep step: two counters in
 * pinned memory that only grow. Steps with a gate wait for `ready`, which the
 * device raises; what steps with a release have done is counted in `arrived`,
 * in the order of their numbers over all tasks of the same gates, which the
 * device waits for. */
#define GBI_OPEN_ALL (UINT64_C(1) << 62) /* every wait is for less */

typedef struct gbi_gates {
  const _Atomic uint64_t *ready;
  _Atomic uint64_t *arrived;
  /* Whether what the device raised can be believed: a library that has failed
   * lets its streams go on with what means nothing. Cheap, any thread. */
  bool (*sound)(const void *arg);
  const void *arg;
} gbi_gates;

typedef struct gbi_task {
  const gbi_plan *plan; /* lent until the task is done */
  gbi_call call;
  const void *in;
  void *out;
  double factor;           /* of this rank's contribution: scaled calls */
  const gbi_gates *gates;  /* NULL: none; then the next three say nothing */
  uint64_t ready, arrived; /* the counters' values before the task */
  void *staging;           /* stands for the scratch */
  uint64_t ready_end;      /* what the device raises it to */
  int watch_slot;
  void *owner; /* the group's */
  /* The engine's own. */
  uint8_t *state; /* per step */
  uint32_t state_bytes;
  uint32_t cursor[GBI_RESOURCES];
  uint32_t done;
  uint32_t released;
  uint16_t phases_open; /* bit p: phase p was opened */
  void *scratch;
  uint64_t scratch_bytes;
  bool active;
  gb_status status;
} gbi_task;

typedef struct gbi_engine gbi_engine;

/* comms[r]: NULL where this rank has none; given to the engine, which closes
 * them. world: divisor of AVG. scratch_bytes: the most that a plan may ask. */
gb_status gbi_engine_open(gbi_comm *const comms[GBI_RESOURCES], int world,
                          uint64_t scratch_bytes, gbi_watch *watch,
                          gbi_hostarea *area, gbi_engine **engine_p,
                          gb_error *error);
bool gbi_engine_has(const gbi_engine *engine, int resource);
/* Takes a task in: fill plan, call, in, out, factor, watch_slot, owner of the
 * returned one and call gbi_engine_begin. NULL: GBI_TASKS are in flight. */
gbi_task *gbi_engine_task(gbi_engine *engine);
gb_status gbi_engine_begin(gbi_engine *engine, gbi_task *task, gb_error *error);
/* Starts and finishes what it can. *moved_p: anything happened. A failure names
 * the resource and is final: the caller aborts the job. */
gb_status gbi_engine_progress(gbi_engine *engine, bool *moved_p,
                              gb_error *error);
/* The oldest finished task behind no unfinished one of its gates, or NULL; its
 * slot is free again after release. */
gbi_task *gbi_engine_finished(gbi_engine *engine);
void gbi_engine_release(gbi_engine *engine, gbi_task *task);
int gbi_engine_active(const gbi_engine *engine);
/* The n-th oldest one in flight. */
gbi_task *gbi_engine_nth(gbi_engine *engine, int n);
/* The oldest unfinished task. */
gbi_task *gbi_engine_oldest(gbi_engine *engine);
/* Whether a task waits for a device, which rings no bell. */
bool gbi_engine_gated(const gbi_engine *engine);
/* Sleeps until something may have changed since `seen` (gbi_bell_look), or
 * most_ms. */
void gbi_engine_sleep(gbi_engine *engine, uint32_t seen, int most_ms);
/* Group ranks that the oldest task's open steps wait for. `rank_of` maps
 * (resource, member) to a group rank. */
int gbi_engine_waiting_for(gbi_engine *engine, const gbi_topology *topology,
                           int rank, int *ranks, int max);
/* Any thread: pending steps end with CANCELED at the next progress. */
void gbi_engine_stop(gbi_engine *engine);
void gbi_engine_close(gbi_engine *engine);
/* Of plans whose sums are compressed: before the first of them, given. */
void gbi_engine_compress(gbi_engine *engine, gbi_compress *compress);
void gbi_engine_describe(const gbi_engine *engine, gbi_fact_fn fn, void *arg);

#endif
