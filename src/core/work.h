/* core/work: the handle of one call. Fields are guarded by the group's lock
 * once the work is queued; a sync call's work lives on its caller's stack. A
 * handle may outlive its job, so the lock is counted: gbi_works. */
#ifndef GBI_CORE_WORK_H
#define GBI_CORE_WORK_H

#include "core/gpu.h"

#include <gpubridge/coll.h>
#include <pthread.h>
#include <stdatomic.h>

/* What a group and all its works share. */
typedef struct gbi_works {
  atomic_int holds;
  pthread_mutex_t lock; /* level 10 */
  pthread_cond_t changed;
  size_t work_bytes;
  gb_work *spare; /* released ones, for the next calls */
  int spares;
} gbi_works;

/* work_bytes: of what each work is the first part of. NULL: no memory. */
gbi_works *gbi_works_new(size_t work_bytes);
/* Memory of one work, of a released one where there is one: calls cost no
 * allocation once warm. NULL: no memory. */
gb_work *gbi_works_take(gbi_works *works);
void gbi_works_release(gbi_works *works);
/* With the lock held: until somebody broadcasts, at most so long. */
void gbi_works_wait(gbi_works *works, int most_ms);

/* Of a call whose handle is more than an event: messages on a GPU. */
typedef struct gbi_work_ops {
  gb_status (*wait)(gb_work *work, uint64_t timeout_ms, gb_error *error);
  gb_status (*test)(gb_work *work, int *done_p, gb_error *error);
  void (*end)(gb_work *work); /* nobody holds it any more */
} gbi_work_ops;

struct gb_work {
  atomic_int holds; /* the caller's and the library's */
  gb_work *next;    /* in the queue */
  gbi_coll coll;    /* lengths: a queued work's own, `counts`; else borrowed */
  uint64_t *counts;
  const void *in;
  void *out;
  double factor;
  uint64_t bytes; /* of its buffers, of a queued work */
  bool queued;    /* async */
  bool done;
  gb_error error; /* status GB_OK: success */
  int source;     /* of a receive that is done: group rank; else -1 */
  uint64_t seq;
  uint64_t deadline_ns;
  gbi_task *task;  /* while it runs */
  int *plan_users; /* while it runs */
  /* On a GPU: shape NULL in the rest. */
  gbi_gpu_turn turn;
  gbi_gpu *gpu;                /* held by the work; NULL: none */
  struct gbi_control *control; /* inside gbi_gpu_enter: why a job failed */
  bool captured;               /* into a graph: it is no more than nodes */
  bool replay;                 /* of a graph: core/capture.h's */
  gbi_event event; /* the result is in place; NULL: on the caller's stream */
  const gbi_work_ops *ops; /* NULL: all as said here */
  gbi_works *works;        /* held by a queued work */
  unsigned fork_count;
  int (*hook)(void *arg);
  void *hook_arg;
};

/* A work for the queue, held by the caller and by the library; it owns all it
 * needs. NULL: no memory. */
gb_work *gbi_work_new(gbi_works *works, const gbi_coll *coll, const void *in,
                      void *out, double factor);
void gbi_work_init(gb_work *work, gbi_works *works, const gbi_coll *coll,
                   const void *in, void *out, double factor);
/* The host waits until the work is done, however it ended; 0 ms: for ever.
 * WAIT_TIMEOUT: "WHAT NOT_YET after 1.5 s; it GOES_ON"; INTERRUPTED by the
 * work's hook: "the wait was interrupted; WHAT GOES_ON". */
gb_status gbi_work_await(gb_work *work, uint64_t timeout_ms, const char *what,
                         const char *not_yet, const char *goes_on,
                         gb_error *error);
/* Of a work on a GPU, between gbi_gpu_enter and gbi_gpu_leave: what it has
 * failed with, or its job, whose opened gates let garbage through. */
gb_status gbi_work_check_sound(gb_work *work, gb_error *error);
/* The public calls of coll.h, whose contracts hold. */
gb_status gbi_work_wait(gb_work *work, uint64_t timeout_ms, gb_error *error);
gb_status gbi_work_test(gb_work *work, int *done_p, gb_error *error);
int64_t gbi_work_seq(const gb_work *work);
int gbi_work_source(const gb_work *work);
void gbi_work_release(gb_work *work);

#endif
