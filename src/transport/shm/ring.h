/* transport/shm: what one process publishes for others of its host.
 *
 * A ring is a window of the host area with one publisher, up to n readers and
 * D slots. Pieces go by round: a number that publisher and readers agree on
 * without talking, ascending, not every round need be used. The piece of round
 * r lies in slot r % D. The publisher overwrites a slot only when those who
 * were to read its last piece have said that they are through with that round;
 * readers take the pieces meant for them in ascending order of rounds.
 *
 * The window (every line 128 bytes, so that neighbours do not share one):
 *   line 0      filled: 1 + the newest round published   (publisher)
 *   line 1      wants_room: the publisher waits for slots (publisher)
 *   8 lines     the newest calls announced, by sequence number  (publisher)
 *   then        consumed: 1 + the newest round reader i is through with, a line
 *               a reader
 *   then, page aligned, D slots of a 64-byte head and slot_bytes of data
 *
 * One thread per process uses a ring. Nothing blocks; nothing is allocated
 * after init. Ringing bells is the caller's part. */
#ifndef GBI_TRANSPORT_SHM_RING_H
#define GBI_TRANSPORT_SHM_RING_H

#include "base/base.h"

#include <stdatomic.h>

enum { GBI_RING_ALL = -1, GBI_RING_DEPTH_MAX = 16, GBI_RING_NOTICES = 8 };

/* Head of a slot. 64 bytes, then the data.
 *   0   call   24  identity of the collective
 *   24  round   8
 *   32  tag     8  what the piece is within the call
 *   40  bytes   8  of data
 *   48  chain   8  hash of the calls up to this one
 *   56  spare   8 */
typedef struct gbi_slot {
  gbi_call call;
  uint64_t round;
  uint64_t tag;
  uint64_t bytes;
  uint64_t chain;
  uint64_t spare;
} gbi_slot;

static inline const void *gbi_slot_data(const gbi_slot *slot) {
  return slot + 1;
}

typedef struct gbi_ring_line {
  _Atomic uint64_t value;
  uint8_t pad[120];
} gbi_ring_line;

/* `version` is odd while the words change. */
typedef struct gbi_ring_notice {
  _Atomic uint64_t version;
  _Atomic uint64_t words[3];
  uint8_t pad[96];
} gbi_ring_notice;

typedef struct gbi_ring {
  gbi_ring_line *filled, *wants_room, *consumed;
  gbi_ring_notice *notices;
  uint8_t *slots;
  size_t slot_bytes, stride;
  int readers, depth;
  /* The publisher's memory; readers leave it alone. */
  int owner;        /* reader index of the publisher itself, -1: none */
  bool asked;       /* wants_room is set */
  uint64_t *seen;   /* consumed, as last read, by reader */
  uint64_t last[GBI_RING_DEPTH_MAX]; /* 1 + round in the slot, 0: empty */
  int to[GBI_RING_DEPTH_MAX];        /* its reader, or GBI_RING_ALL */
} gbi_ring;

size_t gbi_ring_bytes(int readers, int depth, size_t slot_bytes);
/* window: zeroed memory of gbi_ring_bytes. seen: NULL for readers; for the
 * publisher room for `readers` numbers, zeroed, lent for the ring's life. */
void gbi_ring_init(gbi_ring *ring, void *window, int readers, int depth,
                   size_t slot_bytes, int owner, uint64_t *seen);

/* Publisher. Where round's data goes, or NULL: readers are not through with
 * the slot; they will be told to ring. */
void *gbi_ring_room(gbi_ring *ring, uint64_t round);
/* After the data was written to what room gave. */
void gbi_ring_publish(gbi_ring *ring, uint64_t round, const gbi_call *call,
                      uint64_t tag, uint64_t chain, size_t bytes, int to);
void gbi_ring_announce(gbi_ring *ring, const gbi_call *call);
/* Readers that hold up `round`, for error texts. */
int gbi_ring_holders(const gbi_ring *ring, uint64_t round, int *readers,
                     int max);

/* Reader. The round's slot, or NULL: not published yet. */
static inline const gbi_slot *gbi_ring_peek(const gbi_ring *ring,
                                            uint64_t round) {
  /* Pairs with the store in gbi_ring_publish. */
  if (atomic_load_explicit(&ring->filled->value, memory_order_acquire) <= round)
    return NULL;
  return (const gbi_slot *)(ring->slots +
                            ring->stride * (round % (uint64_t)ring->depth));
}
/* Reader `me` is through with `round`. True: the publisher waits for it, ring
 * its bell. */
bool gbi_ring_consume(gbi_ring *ring, int me, uint64_t round);
/* The call number `seq` as the publisher announced it; false: not yet, changing
 * just now, or more than GBI_RING_NOTICES calls ago. */
bool gbi_ring_noticed(const gbi_ring *ring, uint64_t seq, gbi_call *call);

#endif
