/* ccl/host, the part inside one host: collective steps over shared memory.
 *
 * Every member publishes pieces in a ring of its own that all others read.
 * How many rounds a step takes is a pure function of the step, so members
 * number them alike without a word. Same rules as comm/comm.h: same steps in
 * the same order everywhere, one thread, no blocking, no allocation after
 * connect. */
#ifndef GBI_CCL_HOST_LOCAL_H
#define GBI_CCL_HOST_LOCAL_H

#include "comm/comm.h"
#include "device/host/reduce.h"
#include "transport/shm/ring.h"

/* Part of ALL_REDUCE that fits goes in one round, added by everybody. */
#define GBI_LOCAL_SMALL_BYTES 8192
#define GBI_LOCAL_SLOT_BYTES (128 * 1024)
/* With this many members in teams slots are half as long: every member maps the
 * slots of all, and a group is to open as fast as one over a bridge. */
#define GBI_LOCAL_CROWD 5
#define GBI_LOCAL_DEPTH 8

typedef struct gbi_local_step gbi_local_step;
struct gbi_local_step {
  gbi_comm_step what;
  gbi_local_step *before, *after; /* in flight, oldest first */
  gbi_reduce_fn reduce;
  gbi_combine_fn combine;
  uint64_t first_round;
  uint64_t chain; /* hash of all calls up to this one */
  size_t bytes, piece_bytes;
  uint32_t pieces;
  uint8_t role;
  bool pub_done, read_done;
  /* How far it is, in pieces; `member` within the piece, by place in the order
   * of additions while it adds up. */
  uint32_t published, combined, copied;
  int member;
  const void *sum, *team; /* running sums of the piece; see add_member */
};

typedef struct gbi_local gbi_local;

/* members: those of this host, in member order; area indices in `local`.
 * teams: see ccl.h, NULL for none. */
gb_status gbi_local_open(gbi_hostarea *area, const gbi_member *members,
                         const int *teams, int count, int me, uint64_t *moved,
                         gbi_local **local_p, gb_error *error);
void gbi_local_address(const gbi_local *local, gbi_writer *out);
/* address of each member, in member order. */
gb_status gbi_local_connect(gbi_local *local, gbi_reader *addresses,
                            gb_error *error);
void gbi_local_start(gbi_local *local, const gbi_comm_step *what,
                     gbi_local_step *step);
gb_status gbi_local_progress(gbi_local *local, gbi_local_step *step,
                             gb_error *error);
int gbi_local_waiting_for(const gbi_local *local, const gbi_local_step *step,
                          int *members, int max);
void gbi_local_stop(gbi_local *local);
void gbi_local_close(gbi_local *local);

#endif
