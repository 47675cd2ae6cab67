/* Inside of the bridge: a step's flows. Nothing outside this folder includes
 * this header. One thread at a time, except for `stopped`. */
#ifndef GBI_BRIDGE_STEP_H
#define GBI_BRIDGE_STEP_H

#include "bridge/bridge.h"
#include "device/host/reduce.h"

#include <stdatomic.h>

/* A piece is what one addition works on: it should still be in the cache when
 * its sum is sent on. WINDOW of them cover the round trip of a local network;
 * beyond that, two members exchange everything at once (LONG_RTT_US). */
#define GBI_BRIDGE_PIECE_BYTES ((size_t)256 << 10)
#define GBI_BRIDGE_WINDOW 4
/* More members send their contributions this many pieces ahead of their own
 * sums: the round trip may be long. (Two send them close together with results
 * that are still in the cache.) */
#define GBI_BRIDGE_AHEAD 64
/* Up to here two members exchange everything, later halves. */
#define GBI_BRIDGE_PAIR_BYTES ((size_t)256 << 10)
#define GBI_BRIDGE_LONG_RTT_US 500
/* Up to here more members send everything to everybody. */
#define GBI_BRIDGE_SMALL_BYTES ((size_t)16 << 10)
/* Steps that may have begun at a time; more wait their turn. Over a long round
 * trip as many as two of it hold at 1 Gbit/s and 80 ms, in chunks of 1 MiB: a
 * lost frame holds the steps up whose pieces are behind it, for a round trip,
 * and what is not begun meanwhile cannot be sent. */
#define GBI_BRIDGE_SLOTS 8
#define GBI_BRIDGE_SLOTS_LONG 40

typedef enum gbi_bridge_mode {
  GBI_BRIDGE_COPY,    /* broadcast, transfer: the root's data goes out whole */
  GBI_BRIDGE_PAIR,    /* two members: all to the other, added in place */
  GBI_BRIDGE_SMALL,   /* everything to everybody, collected in the slot */
  GBI_BRIDGE_SEGMENT, /* to the owner of the segment, and back as results */
  GBI_BRIDGE_REDUCE   /* to the root */
} gbi_bridge_mode;

enum { GBI_GIVE, GBI_TAKE, GBI_RESULT_OUT, GBI_RESULT_IN, GBI_FLOWS };

typedef struct gbi_flow {
  uint32_t total, posted, done;
} gbi_flow;

/* A send or a receive with what its sink needs. */
typedef struct gbi_bridge_xfer {
  gbi_xfer xfer;
  gbi_reduce_fn add;
  gbi_combine_fn combine;
  size_t element;
  uint8_t *sum, *out;
  const uint8_t *own;
} gbi_bridge_xfer;

typedef struct gbi_bridge_slot {
  bool taken;
  gbi_bridge_mode mode;
  size_t bytes, element; /* of the step; of one element */
  gbi_reduce_fn add;
  gbi_combine_fn combine;
  uint32_t own_total;           /* pieces that this member adds up */
  uint32_t reduced;             /* of these, complete */
  uint32_t ahead;               /* pieces given before the own sums get there */
  gbi_flow (*flows)[GBI_FLOWS]; /* one row a member */
  gbi_bridge_xfer *xfers;       /* [member][flow][WINDOW] */
  uint8_t *small;               /* SMALL_BYTES */
} gbi_bridge_slot;

typedef struct gbi_bridge_step gbi_bridge_step;
struct gbi_bridge_step {
  gbi_comm_step step;
  gbi_bridge_slot *slot; /* NULL: waits its turn, or finished */
  gbi_bridge_step *next; /* in the queue for the turn */
  bool finished;
};

typedef struct gbi_bridge {
  gbi_comm base;
  gbi_transport *transport;
  gbi_hostarea *area; /* may be NULL */
  gbi_member *members;
  uint64_t rtt_us; /* two members only */
  int slots_count;
  gbi_bridge_slot slots[GBI_BRIDGE_SLOTS_LONG];
  uint8_t *scratch; /* WINDOW pieces; used by the step that has the turn */
  /* Steps that have not posted all their messages; the first has the turn. */
  gbi_bridge_step *turn, **turn_tail;
  /* Moves the transport on for all steps, once a round; NULL: none does. */
  gbi_bridge_step *pump;
  bool failed;
  gb_error error;
  _Atomic bool stopped; /* pairs: stop's release store, progress's acquire */
} gbi_bridge;

/* Makes them as many as `count`; false: out of memory. */
bool gbi_bridge_make_slots(gbi_bridge *b, int count);
void gbi_bridge_free_slots(gbi_bridge *b);
gbi_bridge_slot *gbi_bridge_take_slot(gbi_bridge *b);
void gbi_bridge_give_slot(gbi_bridge *b, gbi_bridge_slot *slot);

/* A step with nobody else in it. */
void gbi_bridge_alone(gbi_bridge_step *s);
/* Sets the flows up and posts what can be posted. */
void gbi_bridge_begin(gbi_bridge *b, gbi_bridge_step *s);
/* Every message of the step is on its way and the scratch is free. */
bool gbi_bridge_all_posted(const gbi_bridge *b, const gbi_bridge_step *s);
/* OK: done. BUSY. Else what an xfer with member *peer_p ended with. */
gb_status gbi_bridge_advance(gbi_bridge *b, gbi_bridge_step *s, int *peer_p);
/* Whether something from (incoming) or to `member` is missing. */
bool gbi_bridge_waits(const gbi_bridge_step *s, int member, bool incoming);

/* measure.c: two members agree on the round trip between them. */
gb_status gbi_bridge_measure(gbi_bridge *b, uint64_t deadline_ns,
                             gb_error *error);

#endif
