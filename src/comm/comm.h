/* comm: the contract of a communicator, something that runs collective steps
 * among a fixed list of members without blocking.
 *
 * Islands (ccl) and the bridge implement it; the engine in core drives it and
 * cannot tell them apart. A step is one collective over one contiguous range.
 *
 *  - All members start the same steps in the same order. `start` never blocks
 *    and never allocates: the step's state lives in memory that the caller
 *    lends until the step is done (ops->state_bytes, 64-byte aligned).
 *  - Several steps may be in flight; `progress` is called on each, oldest
 *    first, by one thread at a time.
 *  - progress returns GB_OK once: the step is done here and its buffers are the
 *    caller's again. GB_ERR_BUSY: not yet. Anything else: the communicator is
 *    broken, the caller aborts the group.
 *  - Reductions add in member order, whatever the size, the number of pieces
 *    and the transport, and every member gets the same bits. An island that
 *    spans hosts adds per host first (ccl.h). Half types: device/host/reduce.h.
 */
#ifndef GBI_COMM_COMM_H
#define GBI_COMM_COMM_H

#include "base/base.h"
#include "transport/transport.h"

typedef enum gbi_comm_kind {
  /* Everybody contributes src; root's dst gets the reduction. dst of others is
   * not touched. dst may be src. */
  GBI_COMM_REDUCE = 1,
  /* Root's src goes to everybody's dst (root: dst is src or NULL). */
  GBI_COMM_BROADCAST,
  /* REDUCE whose result goes to everybody's dst. */
  GBI_COMM_ALL_REDUCE,
  /* Root's src goes to member `peer`'s dst; no other member takes part. The
   * others may start it too; it is done at once there. */
  GBI_COMM_TRANSFER,
  /* The mesh only (p2p/mesh.h). src goes to member `peer`, dst comes from it;
   * the peer's own list has the counterpart with the same call and step, at
   * any place. Steps of one list start in order and end in any order. */
  GBI_COMM_SEND,
  GBI_COMM_RECV,
  /* A caller's policy only (core/parts.h): call.op as a whole, from src to dst;
   * count: elements of one row, where there are rows. */
  GBI_COMM_CALL
} gbi_comm_kind;

typedef struct gbi_comm_step {
  gbi_comm_kind kind;
  gbi_call call;     /* the collective this step belongs to */
  uint32_t step;     /* number within the call, equal on all members; the
                        mesh: equal on the two that it joins */
  int root;          /* member index; 0 for ALL_REDUCE */
  int peer;          /* TRANSFER, SEND, RECV */
  const void *src;
  void *dst;
  size_t count;      /* elements, may be 0 */
  gb_dtype dtype;
  gb_redop redop;    /* gbi_comm_redop: never AVG or PREMUL_SUM */
} gbi_comm_step;

/* What members do with each other's elements in a call's reduction: AVG and
 * PREMUL_SUM are sums with work before or after. 255, no reduction: SUM. */
static inline gb_redop gbi_comm_redop(uint8_t redop) {
  bool itself = redop < GB_REDOP_COUNT && redop != GB_AVG &&
                redop != GB_PREMUL_SUM;
  return itself ? (gb_redop)redop : GB_SUM;
}

typedef struct gbi_comm gbi_comm;

typedef struct gbi_comm_ops {
  const char *name; /* "host", "bridge" */
  size_t state_bytes;

  /* Set-up in two steps, like a transport's. address: at most 4 KiB. */
  void (*address)(gbi_comm *comm, gbi_writer *out);
  gb_status (*connect)(gbi_comm *comm, const gbi_reader *addresses,
                       uint64_t deadline_ns, gb_error *error);

  void (*start)(gbi_comm *comm, const gbi_comm_step *step, void *state);
  gb_status (*progress)(gbi_comm *comm, void *state, gb_error *error);
  /* Descriptors that wake a waiter, besides the bell. Returns how many. */
  int (*wait_fds)(gbi_comm *comm, int *fds, int max);
  /* Members (indices) this step still waits for, for error texts. */
  int (*waiting_for)(gbi_comm *comm, const void *state, int *members, int max);

  /* stop: any thread, returns at once; pending steps then end with CANCELED
   * at their next progress. close: after stop, frees. */
  void (*stop)(gbi_comm *comm);
  void (*close)(gbi_comm *comm);
  void (*describe)(const gbi_comm *comm, gbi_fact_fn fn, void *arg);
} gbi_comm_ops;

/* Steps in flight on a communicator: as a rule, and the most it may ask for. */
#define GBI_COMM_FLYING 16
#define GBI_COMM_FLYING_MAX 48

struct gbi_comm {
  const gbi_comm_ops *ops;
  int members_count;
  int me;
  int flying; /* once connected; 0: as a rule */
  /* Grows whenever something moved: the engine spins while it grows. Written
   * by the driving thread only. */
  uint64_t moved;
};

#endif
