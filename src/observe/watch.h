/* observe: calls in flight, phases, records, observers.
 *
 * May call base only. Must never communicate or wait for anybody who does: what
 * is here cannot change what a call does.
 *
 * One gbi_watch per job. Lock: watch->lock, level 90, held for a few copies
 * only; no callback runs with it held. */
#ifndef GBI_OBSERVE_WATCH_H
#define GBI_OBSERVE_WATCH_H

#include "base/base.h"

#include <gpubridge/observe.h>
#include <pthread.h>

#define GBI_WATCH_CALLS 64
#define GBI_OBSERVERS_MAX 16

typedef struct gbi_watch_call {
  bool used;
  gb_record record; /* end_ns 0 while it runs */
  int open[GB_PHASES_MAX]; /* per phase: steps of it still to be done */
  int thread; /* the kernel's number */
} gbi_watch_call;

typedef struct gbi_watch {
  pthread_mutex_t lock;
  gbi_watch_call calls[GBI_WATCH_CALLS];
  struct {
    gb_observer_fn fn;
    void *arg;
  } observers[GBI_OBSERVERS_MAX];
  _Atomic int observers_count;
} gbi_watch;

void gbi_watch_init(gbi_watch *watch);
void gbi_watch_fini(gbi_watch *watch);

/* A call starts on the calling thread. Returns its slot, -1 when the table is
 * full (it is then not shown). `name`s must be static or live with the job. */
int gbi_watch_begin(gbi_watch *watch, const gb_record *record);
/* A phase of slot's call starts and has `steps` steps to do. */
void gbi_watch_phase(gbi_watch *watch, int slot, const char *name, int steps);
/* One of its steps is done; the last one closes it. */
void gbi_watch_phase_step(gbi_watch *watch, int slot, const char *name);
/* The name of the phase that is open, or "". For error texts. */
const char *gbi_watch_open_phase(gbi_watch *watch, int slot);
/* The call ended; its entry goes. With `success` the observers get the record,
 * on this thread. */
void gbi_watch_end(gbi_watch *watch, int slot, bool success);

gb_status gbi_watch_add(gbi_watch *watch, gb_observer_fn fn, void *arg,
                        gb_error *error);
void gbi_watch_remove(gbi_watch *watch, gb_observer_fn fn, void *arg);
int gbi_watch_in_flight(gbi_watch *watch, gb_in_flight *list, int max);
/* True on a thread that is inside an observer's callback. */
bool gbi_watch_inside_callback(void);

#endif
