/* control: membership, agreement, liveness, abort, who is late.
 *
 * May call base, os, store, observe. Must never carry tensors. A star of TCP
 * connections to rank 0: one thread, gb-control, per process (rank 0's also
 * serves). Found through the store once; every connection proves the job key.
 *
 * All calls that block take a deadline, call the wait hook about ten times a
 * second, and may be made by one thread at a time; the others say so. */
#ifndef GBI_CONTROL_CONTROL_H
#define GBI_CONTROL_CONTROL_H

#include "base/base.h"
#include "base/config.h"
#include "base/wire.h"
#include "os/handshake.h"
#include "store/store.h"

#include <stdatomic.h>

#define GBI_RECORD_MAX 16384    /* bytes of one rank's discovery record */
#define GBI_BLOB_MAX 65536      /* bytes of one blob in an exchange */
#define GBI_OFFER_MAX 8192      /* bytes of one offer */

typedef struct gbi_control gbi_control;

/* What a rank is doing in a group: asked for by other ranks' questions. */
typedef struct gbi_call_state {
  uint64_t started;   /* calls started so far */
  uint64_t completed;
  gbi_call last;      /* the newest one started; seq is started - 1 */
  char phase[32];     /* its open phase, or "" */
} gbi_call_state;

typedef struct gbi_control_params {
  gbi_store_params store; /* rank, world size, deadline and wait hook too */
  const char *attempt;    /* NULL: torchelastic's run id and restart count */
  /* Called on gb-control, with no lock held, when the job fails for the first
   * time: rings bells. */
  void (*on_failure)(void *arg);
  /* Called on gb-control: fills *state for `group`, false if there is none.
   * Must not block on communication. */
  bool (*report)(void *arg, uint32_t group, gbi_call_state *state);
  /* Both on gb-control, with no lock held; NULL: not wanted. on_offer: rank
   * `from` offered this blob (gbi_control_offer); what is in it is unchecked.
   * on_left: `rank` left in order; told about rank 0 and about ranks that one
   * of the two has offered something to. Once each. */
  void (*on_offer)(void *arg, int from, const void *blob, size_t bytes);
  void (*on_left)(void *arg, int rank);
  void *arg;
  /* Of this rank, for every rank's error texts; NULL: unknown. */
  const char *hostname;
  const char *vendor;
} gbi_control_params;

/* Publishes (rank 0) or reads the job's address and key, connects, proves. A
 * second claim of one rank is refused with a text that names the rank; a
 * version mismatch names both versions and ranks. Rank 0 does not wait for the
 * others here. */
gb_status gbi_control_open(const gbi_control_params *params,
                           gbi_control **control_p, gb_error *error);

const gbi_auth *gbi_control_auth(const gbi_control *control);
/* How this rank reaches rank 0's host: an address or name, "" unknown. */
const char *gbi_control_store_host(const gbi_control *control);

/* A list of byte strings, one per rank or member; owned by the caller. */
typedef struct gbi_blobs {
  gbi_reader *items; /* count readers over `storage` */
  int count;
  uint8_t *storage;
} gbi_blobs;
void gbi_blobs_free(gbi_blobs *blobs);

/* Discovery: sends this rank's record and waits for the verdict. Rank 0 waits
 * for all records, at most until the deadline; a rank that never came is named
 * (and only it): TIMEOUT on every rank that came. Then rank 0 calls `decide`
 * once, on the calling thread, with all records in rank order; its refusal is
 * what every rank raises, word for word. Otherwise all get all records. */
typedef gb_status (*gbi_decide_fn)(void *arg, gbi_reader *records, int count,
                                   gb_error *error);
gb_status gbi_control_gather(gbi_control *control, const void *record,
                             size_t bytes, gbi_decide_fn decide, void *arg,
                             uint64_t deadline_ns, gbi_blobs *records_p,
                             gb_error *error);

/* Group set-up: every member gives a blob, or `problem` (NULL when fine) that
 * ends the exchange with the same error on every member. Members call it the
 * same number of times for one group. Also fails when a member is gone. */
gb_status gbi_control_exchange(gbi_control *control, uint32_t group,
                               const int *members, int count, int me,
                               const gb_error *problem, const void *blob,
                               size_t bytes, uint64_t deadline_ns,
                               gbi_blobs *blobs_p, gb_error *error);

/* True once the job failed, with the one sentence of all ranks. Any thread, a
 * single load when nothing failed. */
bool gbi_control_failed(const gbi_control *control, gb_error *error);
/* Ends the job everywhere with `cause`. First cause wins. Any thread, returns
 * at once. */
void gbi_control_abort(gbi_control *control, const gb_error *cause);
/* A call of this rank failed with `cause`: reports it and waits until the
 * job's one sentence is known (at most 2 s), which it gives back. A cause that
 * only says that a link broke (scope LINK) yields to the reason behind it, if
 * that becomes known within half a second. Returns shared_p->status. */
gb_status gbi_control_settle(gbi_control *control, const gb_error *cause,
                             gb_error *shared_p);

/* This rank has waited long in `call`: rank 0 asks the group's members where
 * they are. A member that called something else under the same number, or has
 * left the job, aborts it (MISMATCH, PEER). Returns at once; any thread. */
void gbi_control_stalled(gbi_control *control, uint32_t group,
                         const int *members, int count, const gbi_call *call);
/* The newest answer about (group, seq): global ranks that have not started it.
 * Returns how many, -1 when there is no answer yet. Any thread. */
int gbi_control_late(gbi_control *control, uint32_t group, uint64_t seq,
                     int *ranks, int max);

/* Hands a blob of at most GBI_OFFER_MAX bytes to rank `to`, not this one, once
 * per job and rank: its on_offer gets it. When `to` has left, this rank's
 * on_left tells; after rank 0 left nothing arrives. Any thread, returns at
 * once. */
void gbi_control_offer(gbi_control *control, int to, const void *blob,
                       size_t bytes);

/* Orderly leave: tells rank 0, which tells the others. Later EOFs are no
 * failure. Bounded by the deadline. */
void gbi_control_goodbye(gbi_control *control, uint64_t deadline_ns);
/* Joins gb-control, closes every socket, frees. NULL is a no-op. */
void gbi_control_close(gbi_control *control);

extern const gbi_setting gbi_control_settings[];
extern const int gbi_control_settings_count;

#endif
