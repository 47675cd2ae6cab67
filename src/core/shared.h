/* core/shared: memory that the members of a bridge on one host have in common,
 * pinned by each of their runtimes, so that what one GPU copies down another
 * copies up, and the host moves none of it.
 *
 * Every member has an area of its own, which it alone writes, a window of the
 * host area: a memfd sealed against shrinking, so that no peer can take it from
 * under a reader, and that stays mapped where its owner dies. All areas count
 * as large as the smallest. Behind it lies a page with one word: not 0, its
 * owner has given up.
 *
 * Set up while a group connects, and all members use it or none does: open;
 * offer, which everybody hears of every member; map; verdict, which everybody
 * hears again. What does not work out is no failure of the group: it goes
 * without, and `why` says why. One thread. */
#ifndef GBI_CORE_SHARED_H
#define GBI_CORE_SHARED_H

#include "base/wire.h"
#include "device/device.h"
#include "os/hostarea.h"

#define GBI_SHARED_MEMBERS_MAX 64
#define GBI_SHARED_MESSAGE_BYTES 512 /* an offer, a verdict */

typedef struct gbi_shared gbi_shared;

typedef struct gbi_shared_params {
  gbi_device *device; /* borrowed for its life, as is the area */
  gbi_hostarea *area;
  int members_count, me;
  uint64_t bytes;  /* of an area; 0: none is wanted */
  const char *who; /* this rank, for texts; copied */
  const char *why; /* not NULL: there is none, and this is why; copied */
} gbi_shared_params;

/* NULL: no memory even to say so. */
gbi_shared *gbi_shared_open(const gbi_shared_params *params);
void gbi_shared_offer(const gbi_shared *shared, gbi_writer *out);
/* PROTOCOL for what no member says. */
gb_status gbi_shared_hear_offer(gbi_shared *shared, int member, gbi_reader *in,
                                gb_error *error);
/* Once all were heard. */
void gbi_shared_map(gbi_shared *shared);
void gbi_shared_verdict(const gbi_shared *shared, gbi_writer *out);
gb_status gbi_shared_hear_verdict(gbi_shared *shared, int member,
                                  gbi_reader *in, gb_error *error);
/* Once all were heard: bytes of each area, 0: none, and what was taken is given
 * back. */
uint64_t gbi_shared_settle(gbi_shared *shared);
const char *gbi_shared_why(const gbi_shared *shared); /* "" where there is */
uint8_t *gbi_shared_at(const gbi_shared *shared, int member);
/* This rank's waits are about to be opened, after which its GPU may write what
 * others still read. Any thread. */
void gbi_shared_give_up(gbi_shared *shared);
/* PEER when a member has: nothing that came from areas can be believed. Any
 * thread, cheap. */
gb_status gbi_shared_check(const gbi_shared *shared, gb_error *error);
/* No GPU uses it any more. NULL is fine. */
void gbi_shared_close(gbi_shared *shared);

#endif
