/* p2p: messages between two ranks of a job.
 *
 * May call base, os, transport, comm, control. Must not know islands or
 * policies. One gbi_p2p per job: a link (a transport of two members) per pair
 * of ranks that talk, made when one of them first needs it, shared by all
 * groups. docs/wire/p2p.md has what goes over it.
 *
 *   p2p.c      open, start, who drives, failure, close
 *   link.c     how a pair gets its link
 *   message.c  what goes over a link
 *   match.c    which receive gets which message
 *   head.c     the heads' bytes
 *   mesh.c     a communicator for collectives (mesh.h)
 *
 * Driving: whoever waits for a call drives, one thread at a time (its role);
 * "gb-p2p" does while there are only async calls, a mesh while its engine
 * waits. All else is done under `lock` (level 30, nothing is taken under it),
 * which nobody holds while asleep or in a callback. */
#ifndef GBI_P2P_P2P_H
#define GBI_P2P_P2P_H

#include "control/control.h"
#include "transport/transport.h"

#include <gpubridge/p2p.h>

enum { GBI_P2P_HEAD_BYTES = 144 };

typedef struct gbi_p2p gbi_p2p;
typedef struct gbi_p2p_op gbi_p2p_op;
typedef struct gbi_p2p_call gbi_p2p_call;

typedef enum gbi_p2p_class {
  GBI_P2P_USER = 1, /* FIFO among equal (group, source, tag) */
  GBI_P2P_MESH = 2  /* tag is the call's number, every (tag, step) once */
} gbi_p2p_class;

/* One send or receive, lent from start until its call is done. */
struct gbi_p2p_op {
  /* Set by the caller. */
  bool is_send;
  uint8_t class;  /* gbi_p2p_class */
  uint32_t group; /* id */
  int peer;       /* global rank; GB_ANY_SOURCE: one of members (lent) */
  const int *members;
  int members_count;
  uint64_t tag;
  uint32_t step; /* mesh only, else 0; so is call */
  gbi_call call;
  void *data; /* a send does not write it */
  size_t count;
  gb_dtype dtype;
  /* Set by p2p: global rank of the sender of a receive that is done. */
  int source;

  /* Its own. */
  size_t bytes;
  uint8_t phase;
  uint64_t id, payload;
  gbi_p2p_call *owner;
  struct gbi_p2p_link *link;
  struct gbi_p2p_list *list;
  gbi_p2p_op *next, *prev;
  gbi_p2p_op *all_next, *all_prev;
  gbi_xfer head_xfer, data_xfer;
  uint8_t head[GBI_P2P_HEAD_BYTES];
};

/* Operations that end together. */
struct gbi_p2p_call {
  /* Set by the caller. */
  gbi_p2p_op *ops;
  int count; /* at least 1 */
  uint64_t timeout_ms;
  /* Called once when all ops are done, on the thread that noticed, with no
   * lock held; it may free the call. NULL: the caller waits or looks. */
  void (*done)(gbi_p2p_call *call);
  void *arg;
  struct gbi_mesh *mesh; /* whose step it is; NULL: none's */
  /* BUSY until all ops are done; with a failure, gbi_p2p_error tells why. */
  _Atomic int status;

  /* Its own. */
  int left;
  uint64_t deadline_ns;
  gbi_p2p_call *next;
};

typedef struct gbi_p2p_params {
  int rank, world;
  const gbi_member *members;  /* all ranks, `local` as in area; copied */
  const char *const *who;     /* "rank 3 (host \"h\", amd)"; lent */
  gbi_hostarea *area;         /* lent, as the rest */
  const gbi_auth *auth;
  gbi_control *control;
  const gbi_transport_ops *network; /* for ranks of other hosts */
  const char *store_host;
  uint64_t timeout_ms; /* of the job: for setting a link up */
} gbi_p2p_params;

gb_status gbi_p2p_open(const gbi_p2p_params *params, gbi_p2p **p2p_p,
                       gb_error *error);

/* The control plane's callbacks; on gb-control. */
void gbi_p2p_on_offer(gbi_p2p *p2p, int from, const void *blob, size_t bytes);
void gbi_p2p_on_left(gbi_p2p *p2p, int rank);
void gbi_p2p_on_failure(gbi_p2p *p2p);

/* Starts all ops of a call; never blocks. Fails, without starting any, when the
 * job has failed (ABORTED), is being closed (STATE) or memory or a thread is
 * lacking. A call may be done when this returns. */
gb_status gbi_p2p_start(gbi_p2p *p2p, gbi_p2p_call *call, gb_error *error);
/* Waits for a call without `done`, drives meanwhile. hook (may be NULL) is
 * called about ten times a second: non-zero interrupts the job. */
gb_status gbi_p2p_wait(gbi_p2p *p2p, gbi_p2p_call *call, int (*hook)(void *),
                       void *hook_arg, gb_error *error);
/* Why calls failed; once one did. Any thread. */
gb_status gbi_p2p_error(gbi_p2p *p2p, gb_error *error);

/* Before the goodbye: what was sent goes out (at most a second), peers that
 * still wait for this rank learn that it leaves, pending ops end with CANCELED,
 * threads are joined, links closed. Later starts are refused. */
void gbi_p2p_stop(gbi_p2p *p2p);
/* After stop and when no callback can come any more. NULL is a no-op. */
void gbi_p2p_free(gbi_p2p *p2p);
/* "links", "bytes_sent", ... Any thread. */
void gbi_p2p_describe(gbi_p2p *p2p, gbi_fact_fn fn, void *arg);

/* "send of 4 float32 to rank 3 (...) with tag 7 in group 0" */
void gbi_p2p_op_text(const gbi_p2p *p2p, const gbi_p2p_op *op, char *buffer,
                     size_t bytes);

#endif
