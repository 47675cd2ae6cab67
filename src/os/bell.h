/* Bells: how one process wakes another that waits for shared memory.
 *
 * A bell is two words in memory shared by the processes of a host, two bells
 * per process and job. Whoever changes something that process r may wait for
 * rings r's bell: it bumps `rung` and, only if r sleeps, wakes it (futex, or
 * r's eventfd when r sleeps in poll because it has sockets to watch too).
 *
 * The sleeper's protocol, which pairs with gbi_bell_ring:
 *   seen = gbi_bell_look(w); ...check every condition...; nothing to do:
 *   gbi_waiter_sleep(w, seen, ...)   returns at once if rung != seen by now. */
#ifndef GBI_OS_BELL_H
#define GBI_OS_BELL_H

#include "base/base.h"

#include <poll.h>
#include <stdatomic.h>

typedef struct gbi_bell {
  _Atomic uint32_t rung;    /* pairs: ring's add (seq_cst), sleeper's look */
  _Atomic uint32_t sleeper; /* how many sleep: + 1 in futex, + 2^16 in poll */
  uint8_t pad[120];         /* one pair of cache lines a bell */
} gbi_bell;

/* The process's own end. Used by the threads that drive the job's calls; two
 * threads may sleep at once. */
typedef struct gbi_waiter {
  gbi_bell *bell; /* in shared memory */
  int event_fd;   /* others hold duplicates of it */
} gbi_waiter;

static inline uint32_t gbi_bell_look(const gbi_waiter *waiter) {
  return atomic_load_explicit(&waiter->bell->rung, memory_order_acquire);
}
/* event_fd: the duplicate of the bell's owner, -1: unknown (futex only). Any
 * thread, any process. Never blocks. */
void gbi_bell_ring(gbi_bell *bell, int event_fd);
/* Sleeps until the bell rings, one of fds is ready, or `most_ms` passed. fds
 * may be NULL. Spurious returns are fine. */
void gbi_waiter_sleep(gbi_waiter *waiter, uint32_t seen, struct pollfd *fds,
                      int count, int most_ms);
/* For whoever sleeps on another bell and would be woken by this one too: from
 * arm to disarm event_fd becomes readable when the bell rings, at once if it
 * has rung since `seen`. In pairs. */
void gbi_waiter_arm(gbi_waiter *waiter, uint32_t seen);
void gbi_waiter_disarm(gbi_waiter *waiter);

#endif
